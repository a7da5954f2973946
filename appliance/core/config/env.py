"""``${env.NAME}`` in the text of a configuration file, before it is YAML.

A name must be set where it stands in a value or key, also under unknown keys and in ``#`` lines of block texts; in YAML
comments it need not be. A value is put in as what it is: escaped inside quotes, as it stands in bare and block text.
(llama-swap escapes everywhere, so that backslashes appear twice outside of double quotes.) Where a bare value would be
read as something else than one value it is an error, and quotes around the macro are the cure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import islice

from msgspec import Struct
from yaml.events import NodeEvent, ScalarEvent
from yaml.tokens import (
    FlowMappingEndToken,
    FlowMappingStartToken,
    FlowSequenceEndToken,
    FlowSequenceStartToken,
    ScalarToken,
)

from appliance.core.config.libyaml import NotYaml, events, tokens
from appliance.core.config.nodes import BREAK, LineIndex, Problem
from appliance.core.config.yaml import MAX_DEPTH

_MACRO = re.compile(r"\$\{env\.([a-zA-Z_][a-zA-Z0-9_]*)\}")
_LOOKS_LIKE_ONE = re.compile(r"\$\{env\.[^}\s]*\}?")
_FILLERS = range(0x3400, 0x4DC0)
"""Letters: no YAML has another meaning for them."""
_UNPRINTABLE = re.compile("[^\t\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")
"""Characters that YAML refuses or takes for the end of a line, such as the byte order mark and lone surrogates."""


class _Place(Struct, frozen=True):
    """The scalar that a macro stands in."""

    style: str
    """A quote, ``|``, ``>``, or empty for bare text."""
    in_brackets: bool
    start: int
    end: int
    text: str
    """The text for YAML, with filler characters instead of macros."""


def substitute_env(text: str, file: str, env: Mapping[str, str]) -> tuple[str, list[Problem]]:
    """Return the text with macros replaced by values of ``env``, and a problem for each variable that cannot be used.

    Lines keep their numbers and lines without a macro do not change. A macro that cannot be replaced stays (bare in
    brackets, its name does), so that the text can still be searched for other mistakes.
    """
    text = text.removeprefix("\ufeff")
    if "${env." not in text:
        return text, []
    substitution = _Substitution(text, file, env)
    return substitution.replaced(), substitution.problems


class _Substitution:
    def __init__(self, text: str, file: str, env: Mapping[str, str]) -> None:
        self.problems: list[Problem] = []
        self._text = text
        self._lines = LineIndex(file, text)
        self._env = env
        self._reported: set[str] = set()
        self._filler = next(chr(code) for code in _FILLERS if chr(code) not in text)

    # The text is not YAML before its macros are replaced: braces begin a mapping. So the places are found in a text of
    # the same length that has letters instead of macros.
    def replaced(self) -> str:
        try:
            places = list(_places(_MACRO.sub(lambda macro: self._filler * len(macro[0]), self._text)))
        except NotYaml:
            # The parser will say what is wrong; values can be put in anywhere, and comments look like text.
            places = None
        pieces: list[str] = []
        done = 0
        for place in [_Place("", False, 0, len(self._text), "")] if places is None else places:
            macros = list(_MACRO.finditer(self._text, place.start, place.end))
            values = [self._value(macro, place) for macro in macros]
            if places is not None and macros and place.style == "" and not self._stays_one_value(place, macros, values):
                self._report_structure(macros, values)
                values = [None] * len(macros)
            for macro, value in zip(macros, values, strict=True):
                left = macro[1] if place.in_brackets and not place.style else macro[0]  # braces would be a mapping
                pieces += self._text[done : macro.start()], left if value is None else _written(value, place.style)
                done = macro.end()
        self._odd_names()
        return "".join([*pieces, self._text[done:]])

    def _value(self, macro: re.Match[str], place: _Place) -> str | None:
        name = macro[1]
        value = self._env.get(name)
        if value is None:
            self._report(name, f"environment variable {name} is not set; set it, or remove ${{env.{name}}}", macro)
            return None
        if why := self._unusable(value, macro, place):
            self._report(name, f"environment variable {name} {why}", macro)
            return None
        if place.style == "" and macro.start() == place.start:
            return value.lstrip(" \t")  # no part of the text for YAML, but it would indent a key
        return value

    def _unusable(self, value: str, macro: re.Match[str], place: _Place) -> str:
        if re.search("[\n\r\0]", value):
            return "contains a line break or a NUL character, which a configuration value cannot hold"
        if re.search("[\ud800-\udfff]", value):
            return "is not valid UTF-8"
        if place.style != '"' and (odd := _UNPRINTABLE.search(value)):
            return f"contains the character U+{ord(odd[0]):04X}; put double quotes around ${{env.{macro[1]}}}"
        head = BREAK.split(self._text[place.start : macro.start()])
        first_of_block = place.style in ("|", ">") and len(head) > 1 and not "".join(head[1:]).strip()
        if first_of_block and value[:1] in (" ", "\t"):
            return "begins with a space, which the first line of a block text cannot; put something before it"
        return ""

    def _stays_one_value(self, place: _Place, macros: list[re.Match[str]], values: list[str | None]) -> bool:
        """True if a bare scalar is still one, with the text that is meant; its type may change (42 is a number)."""
        stand_ins = [self._filler if value is None else value for value in values]
        expected, rest = "", place.text
        for macro, stand_in in zip(macros, stand_ins, strict=True):
            head, _, rest = rest.partition(self._filler * len(macro[0]))
            expected += head + stand_in
        expected += rest
        if not expected.strip():
            return True
        pieces = _MACRO.split(self._text[place.start : place.end])
        pieces[1::2] = stand_ins
        written = "".join(pieces)
        around = 8 + 2 * place.in_brackets
        try:
            read = list(islice(events(f"k: [{written}]" if place.in_brackets else f"k: {written}"), around + 1))
        except NotYaml:
            return False
        value = [event for event in read if isinstance(event, NodeEvent)][-1]
        return (
            len(read) == around
            and isinstance(value, ScalarEvent)
            and not value.style
            and value.tag is value.anchor is None
            and value.value.split() == expected.split()
        )

    def _report_structure(self, macros: list[re.Match[str]], values: list[str | None]) -> None:
        for macro, value in zip(macros, values, strict=True):
            if value is not None:
                why = "would be read as more, or something else, than one text"
                cure = f"put quotes around the whole value that contains ${{env.{macro[1]}}}"
                self._report(macro[1], f"the value of environment variable {macro[1]} {why} here; {cure}", macro)

    def _report(self, name: str, message: str, macro: re.Match[str]) -> None:
        if name not in self._reported:
            self._reported.add(name)
            self.problems.append(Problem(message=message, at=self._lines.at(macro.start())))

    def _odd_names(self) -> None:
        for found in _LOOKS_LIKE_ONE.finditer(self._text):
            if not _MACRO.fullmatch(found[0]):
                why = "is not an environment macro and stays: a name is letters, digits and _, as in ${env.HOME}"
                at = self._lines.at(found.start())
                self.problems.append(Problem(message=f"'{found[0]}' {why}", at=at, level="warning"))


def _places(text: str) -> Iterator[_Place]:
    depth = 0
    for token in tokens(text):
        if isinstance(token, FlowSequenceStartToken | FlowMappingStartToken):
            depth += 1
            if depth > MAX_DEPTH:  # the scanner's time grows with their square
                raise NotYaml("too deep", token.start_mark.index)
        elif isinstance(token, FlowSequenceEndToken | FlowMappingEndToken):
            depth -= 1
        elif isinstance(token, ScalarToken):
            start = token.start_mark.index
            if token.style in ("|", ">") and (header := BREAK.search(text, start)):
                start = header.start()  # behind | there may be a comment
            yield _Place(token.style, depth > 0, start, token.end_mark.index, token.value)


def _written(value: str, style: str) -> str:
    match style:
        case '"':
            escaped = value.replace("\\", "\\\\").replace('"', '\\"')
            return _UNPRINTABLE.sub(lambda odd: f"\\u{ord(odd[0]):04x}", escaped)
        case "'":
            return value.replace("'", "''")
        case _:
            return value
