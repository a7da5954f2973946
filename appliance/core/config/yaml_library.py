"""The one place that knows the YAML library: text to tokens or events, and its complaints in plain words.

The scanner is ruamel.yaml's in pure Python, with one rule of libyaml (and so of Go's yaml.v3): a tab may stand
wherever it cannot be indentation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, Protocol, TypeVar, cast

from ruamel.yaml import YAML
from ruamel.yaml import events as library_events
from ruamel.yaml import tokens as library_tokens
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.reader import ReaderError
from ruamel.yaml.scanner import Scanner

from appliance.core.config.nodes import BREAK, MAX_DEPTH, TOO_DEEP, Event, Kind, NotYaml, Token


def events(text: str) -> Iterator[Event]:
    """The parser's events. Raises `NotYaml`, possibly after some events."""
    return map(_event, _guarded(_new_yaml().parse(text), text))


def tokens(text: str) -> Iterator[Token]:
    """Scalars and brackets; text can have right tokens and yet be no document. Raises `NotYaml`."""
    return (token for token in map(_token, _guarded(_new_yaml().scan(text), text)) if token)


# ---- the library, whose types are empty: the casts say what its source does ------------------------------------------


class _Mark(Protocol):
    index: int
    line: int
    column: int


class _Item(Protocol):
    """An event or a token: the union of their attributes, each there for the kinds that have it."""

    start_mark: _Mark
    end_mark: _Mark
    anchor: object
    tag: object
    value: str
    style: str | None


class _Reader(Protocol):
    peek: Callable[[], str]
    forward: Callable[[], None]


class _Yaml(Protocol):
    def parse(self, stream: str) -> Iterable[_Item]: ...
    def scan(self, stream: str) -> Iterable[_Item]: ...


class _LibyamlScanner(Scanner):
    def scan_to_next_token(self) -> None:
        reader = cast("_Reader", self.reader)  # pyright: ignore[reportUnknownMemberType]
        while True:
            blanks = " \t" if self.flow_level > 0 or not self.allow_simple_key else " "
            while reader.peek() in blanks:
                reader.forward()
            if reader.peek() == "#":
                while reader.peek() not in "\0\r\n\x85\u2028\u2029":
                    reader.forward()
            if not self.scan_line_break():  # pyright: ignore[reportUnknownMemberType]
                return
            if not self.flow_level:
                self.allow_simple_key = True

    def fetch_flow_collection_start(self, TokenClass: object, to_push: str) -> None:
        """Refuse a bracket too many at once: the scanner's time grows with the square of the open ones."""
        if self.flow_level >= MAX_DEPTH:
            at = cast("_Mark", self.reader.get_mark())  # pyright: ignore[reportUnknownMemberType]
            raise NotYaml(TOO_DEEP, at.line + 1, at.column + 1)
        super().fetch_flow_collection_start(TokenClass, to_push)  # pyright: ignore[reportUnknownMemberType]


def _new_yaml() -> _Yaml:
    yaml = YAML(typ="safe", pure=True)
    yaml.Scanner = _LibyamlScanner
    return yaml


_EVENTS: dict[type, Kind] = {
    library_events.DocumentStartEvent: "document",
    library_events.ScalarEvent: "scalar",
    library_events.AliasEvent: "alias",
    library_events.MappingStartEvent: "mapping",
    library_events.SequenceStartEvent: "sequence",
    library_events.MappingEndEvent: "end",
    library_events.SequenceEndEvent: "end",
}
_BRACKETS: dict[type, Literal["open", "close"]] = {
    library_tokens.FlowSequenceStartToken: "open",
    library_tokens.FlowMappingStartToken: "open",
    library_tokens.FlowSequenceEndToken: "close",
    library_tokens.FlowMappingEndToken: "close",
}


def _event(item: _Item) -> Event:
    kind: Kind = _EVENTS.get(type(item), "other")
    line, column = item.start_mark.line + 1, item.start_mark.column + 1
    if kind == "document" or kind == "end" or kind == "other":
        return Event(kind, line, column)
    anchor = None if item.anchor is None else str(item.anchor)
    if kind == "alias":
        return Event(kind, line, column, anchor)
    tag = None if item.tag is None else str(item.tag)
    if kind != "scalar":
        return Event(kind, line, column, anchor, tag)
    return Event(kind, line, column, anchor, tag, item.value, item.style is None)


def _token(item: _Item) -> Token | None:
    start, end = item.start_mark.index, item.end_mark.index
    if isinstance(item, library_tokens.ScalarToken):
        return Token("scalar", start, end, item.value, item.style or "")
    kind = _BRACKETS.get(type(item))
    return Token(kind, start, end) if kind else None


# ---- its complaints --------------------------------------------------------------------------------------------------

T = TypeVar("T")


class _Complaint(Protocol):
    problem: str | None
    problem_mark: _Mark | None
    context: str | None
    context_mark: _Mark | None


def _guarded(items: Iterable[T], text: str) -> Iterator[T]:
    try:
        yield from items
    except MarkedYAMLError as error:
        raise _plain(error) from None
    except ReaderError as error:
        raise _at_offset(text, cast("int", error.position)) from None  # pyright: ignore[reportUnknownMemberType]
    except (YAMLError, ValueError, OverflowError, AssertionError) as error:  # the last: a %YAML of another version
        # The scanner lets int() and chr() complain about escapes and versions out of range; they know no place.
        raise NotYaml(f"this is not YAML: {error}", 1, 1) from None


def _at_offset(text: str, offset: int) -> NotYaml:
    lines = BREAK.split(text[:offset])
    character = ord(text[offset])
    why = f"the character U+{character:04X} is not allowed in YAML; in double quotes, write it as \\u{character:04X}"
    return NotYaml(why, len(lines), len(lines[-1]) + 1)


def _plain(error: _Complaint) -> NotYaml:
    at = error.problem_mark or error.context_mark
    problem, context = error.problem or "", error.context or ""
    start = f" (from line {error.context_mark.line + 1} on)" if error.context_mark else ""
    for pattern, words in _WORDS:
        if found := re.search(pattern, f"{context}: {problem}", re.DOTALL):
            message = words.format(*found.groups(), start=start)
            break
    else:
        message = f"this is not YAML: {problem or context}"
    if "end of stream" in problem and error.context_mark:
        at = error.context_mark
    return NotYaml(message, at.line + 1 if at else 1, at.column + 1 if at else 1)


_WORDS = (
    (r"found character '\\t'", "a tab cannot indent or begin a value; use spaces"),
    (r"found character '(.)' that cannot start", "a value cannot begin with {0}; put it in quotes"),
    (
        r"mapping values are not allowed",
        "a ':' is not expected here: a value that contains ': ' needs quotes, and a new key must be indented like the "
        "keys beside it",
    ),
    (r"sequence entries are not allowed", "a '- ' is not expected here; list items go on lines of their own"),
    (r"mapping keys are not allowed", "a '? ' is not expected here; a value that begins with it needs quotes"),
    (
        r"block (?:mapping|collection): expected <block end>, but found '\?'",
        "a key is not expected here; is this line indented like the lines before it{start}?",
    ),
    (
        r"block (?:mapping|collection): (?:expected <block end>|did not find)",
        "this does not fit the lines before it{start}: check the indentation, and put text behind a quote or a bracket "
        "inside of it",
    ),
    (
        r"block scalar: expected chomping",
        "after | or > only + - or a digit may follow; text in front of them needs quotes",
    ),
    (r"could not find expected ':'", "a key without ':'{start}: write 'key: value', with a space"),
    (r"quoted scalar: found unexpected (?:end of stream|document)", "the quote that opens here is never closed"),
    (
        r"found unknown escape character '(.)'",
        "\\{0} is not an escape in double quotes; write \\\\{0}, or use single quotes",
    ),
    (r"expected escape sequence of (\d+)", "this escape in double quotes needs {0} hexadecimal digits"),
    (r"flow sequence: expected ',' or '\]'", "the list in brackets{start} needs ',' between items and ']' at its end"),
    (
        r"flow mapping: expected ',' or '\}'",
        "the mapping in braces{start} needs ',' between entries and '}}' at its end",
    ),
    (
        r"while scanning an? (?:anchor|alias)",
        "after & or * an anchor's name must follow; a value that begins so needs quotes",
    ),
    (
        r"while (?:scanning|parsing) a.* tag|tag handle",
        "after ! a tag's name must follow; a value that begins with ! needs quotes",
    ),
    (r"expected '<document start>'", "this is outside of the document; is the indentation right?"),
)
