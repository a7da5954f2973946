"""The INI dialect of llama-server's model presets: sections of settings with their places. It knows no keys.

The rules are those of llama.cpp b11434, tried out against its ``llama-server``: a section header and ``key = value``
begin in the first column; a comment begins with ``;`` or ``#`` anywhere, so that no value can hold either; blank lines
and indented comments are passed over; quotes are part of a value; a repeated section discards the earlier one. This
reader takes two things more: a byte order mark, and dashes in front of a key.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct

from appliance.core.config.nodes import Position, Problem

DEFAULT = "default"
"""The model for settings before the first section."""
EVERYWHERE = "*"
"""The section for every model."""

_ENDS = re.compile(r"\r\n|\n|\r")
_HEADER = re.compile(r"\[([^\]]*)\][ \t]*(?:[;#].*)?")
_SETTING = re.compile(r"(-*)([A-Za-z_][A-Za-z0-9_.-]*)[ \t]*=[ \t]*(.*)")
_COMMENT = re.compile(r"[;#]")


class Setting(Struct, frozen=True, kw_only=True):
    """``key = value``: the key without dashes in front, the value without the blanks and the comment around it."""

    key: str
    value: str
    at: Position


class Section(Struct, frozen=True, kw_only=True):
    """One section, or (named `DEFAULT`) the settings before the first."""

    name: str
    settings: tuple[Setting, ...] = ()
    at: Position


def parse(text: str, file: str) -> tuple[list[Section], list[Problem]]:
    """The sections in the order of the file, each name once, and all problems and oddities of the lines."""
    problems: list[Problem] = []
    opened: list[tuple[Section, list[Setting]]] = []
    for line in _lines(text.removeprefix("\ufeff"), file):
        match line:
            case Problem():
                problems.append(line)
            case Section():
                opened.append((line, []))
            case Setting():
                if not opened:
                    opened.append((Section(name=DEFAULT, at=line.at), []))
                opened[-1][1].append(line)
    sections: dict[str, Section] = {}
    for header, settings in opened:
        if earlier := sections.pop(header.name, None):
            message = f"this [{header.name}] discards the one in line {earlier.at.line}, as in llama-server; join them"
            problems.append(Problem(message=message, at=header.at, level="warning"))
        sections[header.name] = Section(name=header.name, settings=tuple(settings), at=header.at)
    return list(sections.values()), sorted(problems, key=lambda problem: problem.at.line if problem.at else 0)


def _lines(text: str, file: str) -> Iterator[Section | Setting | Problem]:
    for number, line in enumerate(_ENDS.split(text), start=1):
        at = Position(file, number, 1)
        bare = line.strip(" \t")
        if not bare or bare[0] in ";#":
            continue
        if "\0" in line:
            yield Problem(message="this line holds a NUL character; save the file as plain text", at=at)
        elif line != line.lstrip(" \t"):
            indent = len(line) - len(line.lstrip(" \t"))
            advice = "this line is indented; sections and keys begin in the first column: remove the blanks in front"
            yield Problem(message=advice, at=Position(file, number, indent + 1))
        elif line.startswith("["):
            yield _header(bare, at)
        else:
            yield from _setting(bare, at)


def _header(line: str, at: Position) -> Section | Problem:
    match = _HEADER.fullmatch(line)
    if match is None:
        wrong = "there is text behind the section's ']'; remove it" if "]" in line else "the section's ']' is missing"
        return Problem(message=wrong, at=at)
    name = match[1].strip(" \t")
    if not name:
        return Problem(message="the section has no name; write the model's name, or [*] for all models", at=at)
    return Section(name=name, at=at)


def _setting(line: str, at: Position) -> Iterator[Setting | Problem]:
    match = _SETTING.fullmatch(line)
    if match is None:
        yield Problem(message=_not_a_setting(line), at=at)
        return
    dashes, key, rest = match.groups()
    value = _COMMENT.split(rest, maxsplit=1)[0]
    for oddity in _oddities(dashes, key, value, rest):
        yield Problem(message=oddity, at=at, level="warning")
    yield Setting(key=key, value=value.rstrip(" \t"), at=at)


def _not_a_setting(line: str) -> str:
    key, equals, _ = line.partition("=")
    if not equals:
        return f"{line[:40]!r} is neither [section] nor key = value; a flag without a value is written key = true"
    return f"{key.strip()!r} cannot be a key: it begins with a letter and holds letters, digits, '_', '.' and '-'"


def _oddities(dashes: str, key: str, value: str, rest: str) -> Iterator[str]:
    """A setting that works, though perhaps not as intended."""
    if dashes:
        yield f"llama-server itself refuses dashes in front of a key; write {key}"
    cut = len(value) < len(rest)
    if cut and (value.rstrip(" \t") == value != "" or value.count('"') % 2 or value.count("'") % 2):
        yield f"the value ends before {rest[len(value)]!r}, which begins a comment even within quotes"
    elif len(bare := value.strip()) > 1 and bare[0] == bare[-1] and bare[0] in "\"'":
        yield f"the quotes are part of the value, as in llama-server; write {bare[1:-1]} without them"
