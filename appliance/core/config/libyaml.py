"""The one place that knows PyYAML: text to the events of libyaml, and its complaints in plain words.

Go's yaml.v3, which reads llama-swap's files, is a port of libyaml. So both take the same texts for YAML, with the same
rule for tabs. The types of values are another matter: PyYAML's are those of YAML 1.1, and nobody asks it for them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from yaml.error import MarkedYAMLError, YAMLError
from yaml.events import Event
from yaml.reader import ReaderError

from appliance.core.config.nodes import BREAK
from appliance.errors import UsageError

try:
    from yaml._yaml import CParser
except ImportError:
    raise UsageError(
        "PyYAML is here without libyaml (yaml.CParser is missing), so no configuration can be read; install a wheel of "
        "PyYAML that has it, as those on PyPI do"
    ) from None

_COMPLAINTS = (
    (r"token: \t|a tab character", "a tab cannot indent or begin a value; use spaces"),
    (r"cannot start any token: (.)", "a value cannot begin with {0}; put it in quotes"),
    (
        r"mapping values are not allowed",
        "a ':' is not expected here: a value that contains ': ' needs quotes, and a new key must be indented like the "
        "keys beside it",
    ),
    (r"sequence entries are not allowed", "a '- ' is not expected here; list items go on lines of their own"),
    (r"mapping keys are not allowed", "a '? ' is not expected here; a value that begins with it needs quotes"),
    (r"expected (?:key|node content): :", "a key is missing before this ':'; put it in quotes if it is text"),
    (r"expected node content", "a value is missing before this; put it in quotes if it is text"),
    (
        r"block collection: did not find",
        "this is not an item of the list{start}, and a key is not expected here: check the indentation, and put text "
        "behind a quote or a bracket inside of it",
    ),
    (
        r"block mapping: did not find",
        "this does not fit the lines before it{start}: check the indentation, and put text behind a quote or a bracket "
        "inside of it",
    ),
    (
        r"block scalar: (?:did not find|found an indentation)",
        "after | or > only + - or a digit may follow; text in front of them needs quotes",
    ),
    (r"could not find expected ':'", "a key without ':'{start}: write 'key: value', with a space"),
    (r"quoted scalar: found unexpected (?:end of stream|document)", "the quote that opens here is never closed"),
    (
        r"found unknown escape character: \\(.)",
        "\\{0} is not an escape in double quotes; write \\\\{0}, or use single quotes",
    ),
    (
        r"expected hexdecimal number",
        "an escape in double quotes is \\x with 2 hexadecimal digits, \\u with 4 of them, or \\U with 8",
    ),
    (
        r"invalid Unicode character escape",
        "this escape is not a character; write both halves, or \\U and 8 digits",
    ),
    (r"flow sequence: did not find", "the list in brackets{start} needs ',' between items and ']' at its end"),
    (r"flow mapping: did not find", "the mapping in braces{start} needs ',' between entries and '}}' at its end"),
    (
        r"while scanning an? (?:anchor|alias)",
        "after & or * an anchor's name must follow; a value that begins so needs quotes",
    ),
    (
        r"while (?:scanning|parsing) a tag|tag handle",
        "after ! a tag's name must follow; a value that begins with ! needs quotes",
    ),
    (r"expected <document start>", "this is outside of the document; is the indentation right?"),
)
"""Patterns of "context: problem: the two characters there", in the order in which they are tried, and what is said."""


class NotYaml(Exception):
    """The text breaks a rule of YAML at an offset."""

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.message = message
        self.offset = offset


def events(text: str) -> Iterator[Event]:
    """The parser's events, from the stream's start to its end. Raises `NotYaml`, possibly after some."""
    try:
        parser = CParser(text)
        while (event := parser.get_event()) is not None:
            yield event
    except MarkedYAMLError as error:
        raise _plain(error, text) from None
    except ReaderError as error:
        raise _not_allowed(text, len(text.encode()[: error.position].decode())) from None
    except UnicodeEncodeError as error:
        raise _not_allowed(text, error.start) from None
    except YAMLError as error:
        raise NotYaml(f"this is not YAML: {error}", 0) from None


def _not_allowed(text: str, offset: int) -> NotYaml:
    code = f"{ord(text[offset]):04X}"
    return NotYaml(f"the character U+{code} is not allowed in YAML; in double quotes, write it as \\u{code}", offset)


def _plain(error: MarkedYAMLError, text: str) -> NotYaml:
    problem, context, begun = error.problem or "", error.context or "", error.context_mark
    mark = begun if begun and "end of stream" in problem else error.problem_mark or begun
    offset = mark.index if mark else 0
    start = f" (from line {len(BREAK.split(text[: begun.index]))} on)" if begun else ""
    for pattern, words in _COMPLAINTS:
        if found := re.search(pattern, f"{context}: {problem}: {text[offset : offset + 2]}", re.DOTALL):
            return NotYaml(words.format(*found.groups(), start=start), offset)
    return NotYaml(f"this is not YAML: {problem or context}", offset)
