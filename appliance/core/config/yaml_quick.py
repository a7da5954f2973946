"""The YAML that people write, read twenty times as fast as the library reads it; all other YAML is left to that.

A line is a comment, or ``key: value``, or ``- value``. A value ends on its line (bare, in quotes, in brackets, an
anchor in front, or an alias), or is what is indented below, or a block of text. Everything else is *unusual*: texts,
brackets and keys over several lines, tabs, tags, directives, most escapes, and every mistake. For such a document the
answer is None, and `yaml_library` finds out what it means, or what is wrong with it. So this file decides nothing about
the dialect: where it answers, it gives the events of the library, places included, and a property holds it to that.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import accumulate

from appliance.core.config.nodes import Event, Token

_MARKER = re.compile(r"^(?:---|\.\.\.|%)", re.MULTILINE)
_REST = r" *(?: #.*)?"
"""The text that may follow a value."""
_FIRST = r"""(?:[^ \-?:,\[\]{}#&*!|>'"%@`]|-(?=[^ ]))"""
_TEXT = rf"{_FIRST}[^ :#]*(?:(?::(?=[^ ])|#| +(?=[^ :#]))[^ :#]*)*"
"""Bare text outside of brackets: ``: `` ends it, and `` #``."""
_DOUBLE = r'"[^"\\]*(?:\\["\\/][^"\\]*)*"'
_SINGLE = r"'[^']*(?:''[^']*)*'"
_ENTRY = re.compile(rf"({_TEXT}|{_DOUBLE}|{_SINGLE}):(?: +|$)")
_ITEM = re.compile(r"-(?: +|$)")
_BARE = re.compile(rf"({_TEXT}){_REST}")
_STRING = re.compile(rf"{_DOUBLE}|{_SINGLE}")
_QUOTED = re.compile(rf"({_DOUBLE}|{_SINGLE}){_REST}")
_NAME = r"[A-Za-z0-9_-]+"
_ALIAS = re.compile(rf"\*({_NAME}){_REST}")
_ANCHOR = re.compile(rf"&({_NAME})(?: +|$)")
_HEADER = re.compile(rf"([|>])([-+]?){_REST}")
_WORD = r"(?:[\w./~$+(]|-(?=\w))[\w./~$+()=@%;\-]*(?:(?::(?=[\w/])| +(?=[\w./~$+(]))[\w./~$+()=@%;\-]*)*"
"""Bare text inside of brackets, where more characters have a meaning; these have none."""
_IN_BRACKETS = re.compile(rf"({_WORD})|({_DOUBLE}|{_SINGLE})|\*({_NAME})(?=[ ,\]}}])|([\[{{])")
_COLON = re.compile(r":(?: +|(?=[,}]))")
_NEXT = re.compile(r" *([,\]}]) *")
_TAIL = re.compile(_REST)
_ESCAPE = re.compile(r"\\(.)")
_LONGEST_KEY = 1000
"""Characters; the library takes 1,024."""
_DEEPEST = 50
_LONGEST_TEXT = 4 << 20
"""Characters; twenty thousand models take a third of it. Its events come all at once; the library's do not."""
_MOST_EVENTS = 1 << 18
"""More than there may be values in a file: the library's reader ends there."""
_END = Event("end", 0, 0)
"""Nobody asks where a collection ends."""


_Anchor = tuple[str | None, int, int]
"""A node's name, and the line and column where it begins."""


class _Unusual(Exception):
    """This document is none for this file."""


def quick_events(text: str) -> list[Event] | None:
    """The events of the document's nodes; None where only `yaml_library` can tell."""
    try:
        return _Lines(text.replace("\r\n", "\n")).document()
    except _Unusual:
        return None


def quick_tokens(text: str) -> list[Token] | None:
    """The scalars and brackets, which have no place, in their order; None where only `yaml_library` can tell."""
    try:
        lines = _Lines(text)
        return list(_tokens(text, lines, lines.document()))
    except _Unusual:
        return None


def _tokens(text: str, lines: _Lines, events: Iterable[Event]) -> Iterator[Token]:
    starts = [0, *accumulate(len(line) + 1 for line in lines.lines)]
    open_brackets: list[bool] = []
    for event in events:
        if event.kind == "end":
            if open_brackets.pop():
                yield Token("close", 0, 0)
            continue
        start = starts[event.line - 1] + event.column - 1
        if event.anchor is not None and (name := _ANCHOR.match(text, start)):
            start = name.end()
        if event.kind in ("mapping", "sequence"):
            open_brackets.append(text.startswith(("[", "{"), start))
            if open_brackets[-1]:
                yield Token("open", 0, 0)
        elif event.kind == "scalar" and not event.plain:
            style = text[start]
            quoted = _STRING.match(text, start)
            end = quoted.end() if quoted else min(starts[lines.block_ends[event.line, event.column]], len(text))
            yield Token("scalar", start, end, event.text, style)
        elif event.kind == "scalar" and event.text:
            yield Token("scalar", start, start + len(event.text), event.text)


class _Lines:
    """A reader that goes down the lines. ``at`` is the next one with content, ``column`` where that begins."""

    def __init__(self, text: str) -> None:
        # Printable is less than what YAML allows. Tabs are not, nor is what only YAML takes for the end of a line.
        if len(text) > _LONGEST_TEXT or not text.replace("\n", "").isprintable() or _MARKER.search(text):
            raise _Unusual
        self.lines = text.split("\n")
        self.count = len(self.lines)
        self.at = -1
        self.column = -1
        self.events: list[Event] = []
        self.block_ends: dict[tuple[int, int], int] = {}
        """Map the place where a text block begins, as its event says, to the first line behind it, counted from 0."""
        self.go_on(0)

    def document(self) -> list[Event]:
        if self.column >= 0:
            self.block(self.column, None, 0)
        if self.column >= 0:
            raise _Unusual
        return self.events

    def go_on(self, at: int) -> None:
        """Find the next line with content, from ``at`` on; behind the last one the column is -1."""
        lines, count = self.lines, self.count
        if len(self.events) > _MOST_EVENTS:
            raise _Unusual
        while at < count:
            line = lines[at]
            content = line.lstrip(" ")
            if content and content[0] != "#":
                self.at, self.column = at, len(line) - len(content)
                return
            at += 1
        self.at, self.column = count, -1

    def block(self, column: int, anchor: _Anchor | None, depth: int) -> None:
        """The mapping or list that begins at the next line."""
        if depth > _DEEPEST:
            raise _Unusual
        is_list = _ITEM.match(self.lines[self.at], column) is not None
        name, line, start = anchor or (None, self.at + 1, column + 1)
        self.events.append(Event("sequence" if is_list else "mapping", line, start, name))
        if is_list:
            self.items(column, depth)
        else:
            self.entries(column, column, depth)
        self.events.append(_END)

    def items(self, column: int, depth: int) -> None:
        """The items of a list, up to a line that stands further left, or is none of the list's."""
        while self.column == column and (item := _ITEM.match(self.lines[self.at], column)):
            line, after = self.lines[self.at], item.end()
            entry = _ENTRY.match(line, after)
            if entry is None:
                self.value(after, column, None, depth, empty=column + 1)
            else:
                self.events.append(Event("mapping", self.at + 1, after + 1))
                self.entries(after, after, depth + 1)
                self.events.append(_END)
        if self.column > column:
            raise _Unusual

    def entries(self, start: int, column: int, depth: int) -> None:
        """The entries of a mapping, the first one at ``start`` of this line."""
        if depth > _DEEPEST:
            raise _Unusual
        lines, append = self.lines, self.events.append
        while True:
            line = lines[self.at]
            entry = _ENTRY.match(line, start)
            if entry is None or len(key := entry[1]) > _LONGEST_KEY:
                raise _Unusual
            quoted = key[0] in "\"'"
            append(Event("scalar", self.at + 1, start + 1, None, None, _unquoted(key) if quoted else key, not quoted))
            self.value(entry.end(), column, None, depth)
            if self.column != column:
                break
        if self.column > column:
            raise _Unusual

    def value(self, start: int, column: int, anchor: _Anchor | None, depth: int, empty: int | None = None) -> None:
        """The value at ``start`` of this line, or below it; ``column`` is that of the collection it belongs to.

        ``empty`` is the column behind an item's hyphen, None for the value of a key.
        """
        at = self.at
        line = self.lines[at]
        first = line[start] if start < len(line) else "#"
        name, place, begin = anchor or (None, at + 1, start + 1)
        if first == "#":
            self.go_on(at + 1)
            beside = empty is None and self.column == column  # where the list of a key may stand, too
            if self.column > column or (beside and _ITEM.match(self.lines[self.at], column)):
                self.block(self.column, anchor, depth + 1)
            else:
                name, place, begin = anchor or self.nothing(at, empty)
                self.events.append(Event("scalar", place, begin, name))
            return
        if first in "|>":
            self.text_block(start, column, name, place, begin)
            return
        if first in "\"'":
            found = _QUOTED.fullmatch(line, start)
            if found is None:
                raise _Unusual
            self.events.append(Event("scalar", place, begin, name, None, _unquoted(found[1]), plain=False))
        elif first in "[{":
            end = self.brackets(line, start, anchor, depth)
            if not _TAIL.fullmatch(line, end):
                raise _Unusual
        elif first == "*" and anchor is None:
            found = _ALIAS.fullmatch(line, start)
            if found is None:
                raise _Unusual
            self.events.append(Event("alias", at + 1, start + 1, found[1]))
        elif first == "&" and anchor is None:
            found = _ANCHOR.match(line, start)
            if found is None:
                raise _Unusual
            self.value(found.end(), column, (found[1], at + 1, start + 1), depth, empty)
            return
        else:
            found = _BARE.fullmatch(line, start)
            if found is None:
                raise _Unusual
            self.events.append(Event("scalar", place, begin, name, None, found[1]))
        self.go_on(at + 1)

    def nothing(self, at: int, empty: int | None) -> _Anchor:
        """Return the place of a missing value: behind its hyphen, or for a key, where the text continues."""
        if empty is not None:
            return None, at + 1, empty + 1
        return None, *((self.at + 1, self.column + 1) if self.column >= 0 else (self.count, len(self.lines[-1]) + 1))

    # The indentation of a block is that of its first line; blank lines belong to it whatever their indentation. The
    # header says what becomes of the line ends behind the last text: "-" drops them, "+" keeps all, neither keeps one.
    # Folding (">") joins lines with spaces, but not around blank or further indented ones: those cases are unusual.
    def text_block(self, start: int, column: int, name: str | None, place: int, begin: int) -> None:
        """The text below ``|``; below ``>``, too, where it is one paragraph of lines that begin alike."""
        header = _HEADER.fullmatch(self.lines[self.at], start)
        at = self.at + 1
        if header is None or at >= self.count:
            raise _Unusual
        lines = self.lines
        indent = len(lines[at]) - len(lines[at].lstrip(" "))
        if indent <= column or indent == len(lines[at]):
            raise _Unusual
        found: list[str] = []
        while at < self.count and (not (line := lines[at]).lstrip(" ") or line[:indent].isspace()):
            found.append(line[indent:])
            at += 1
        if at == self.count:
            if found[-1]:
                raise _Unusual  # what the last line is worth without its end is a matter of its own
            found.pop()
        last = len(found)
        while not found[last - 1]:
            last -= 1
        style, chomp = header[1], header[2]
        if style == ">" and (last < len(found) or any(not each or each[0] == " " for each in found)):
            raise _Unusual
        text = ("\n" if style == "|" else " ").join(found[:last])
        ending = {"-": "", "": "\n", "+": "\n" * (len(found) - last + 1)}[chomp]
        self.events.append(Event("scalar", place, begin, name, None, text + ending, plain=False))
        self.block_ends[place, begin] = at
        self.go_on(at)

    def brackets(self, line: str, at: int, anchor: _Anchor | None, depth: int) -> int:
        """Read brackets or braces from ``at`` to the closing one on the same line; return where they end."""
        if depth > _DEEPEST:
            raise _Unusual
        append, number = self.events.append, self.at + 1
        closing, is_mapping = ("}", True) if line[at] == "{" else ("]", False)
        name, place, begin = anchor or (None, number, at + 1)
        append(Event("mapping" if is_mapping else "sequence", place, begin, name))
        at = _skip(line, at + 1)
        if line.startswith(closing, at):
            append(_END)
            return at + 1
        while True:
            if is_mapping:
                at = self.key(line, at)
            found = _IN_BRACKETS.match(line, at)
            if found is None:
                raise _Unusual
            word, quoted, alias, _ = found.groups()
            if word is not None:
                append(Event("scalar", number, at + 1, None, None, word))
            elif quoted is not None:
                append(Event("scalar", number, at + 1, None, None, _unquoted(quoted), plain=False))
            elif alias is not None:
                append(Event("alias", number, at + 1, alias))
            end = found.end() if found[4] is None else self.brackets(line, at, None, depth + 1)
            following = _NEXT.match(line, end)
            if following is None:
                raise _Unusual
            at = following.end()
            if following[1] != ",":
                if following[1] != closing:
                    raise _Unusual
                append(_END)
                return following.end(1)

    def key(self, line: str, at: int) -> int:
        """A key in braces, with its colon; the result is where its value begins."""
        found = _IN_BRACKETS.match(line, at)
        if found is None or (found[1] is None and found[2] is None) or found.end() - at > _LONGEST_KEY:
            raise _Unusual
        colon = _COLON.match(line, found.end())
        if colon is None:
            raise _Unusual
        text = found[1] if found[1] is not None else _unquoted(found[2])
        self.events.append(Event("scalar", self.at + 1, at + 1, None, None, text, found[1] is not None))
        return colon.end()


def _skip(line: str, at: int) -> int:
    while line.startswith(" ", at):
        at += 1
    return at


def _unquoted(text: str) -> str:
    if text[0] == "'":
        return text[1:-1].replace("''", "'")
    return _ESCAPE.sub(r"\1", text[1:-1])
