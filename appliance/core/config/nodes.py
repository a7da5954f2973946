"""The text of a configuration file as values with their places, before they have a meaning; and problems."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class Position(Struct, frozen=True, order=True):
    """A place in a file; line and column count from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


Plain = str | int | float | bool | None


class Scalar(Struct, frozen=True):
    """One value with the type that the YAML dialect gave it. ``text`` is as written, quotes and escapes resolved."""

    value: Plain
    text: str
    at: Position
    quoted: bool = False
    """Quoted or a block: a string whatever it looks like, and never taken for a number."""


class Sequence(Struct, frozen=True):
    items: tuple[Node, ...]
    at: Position


class Entry(Struct, frozen=True):
    """One key of a mapping with its value."""

    key: Scalar
    value: Node


class Mapping(Struct, frozen=True):
    """Keys in the order of the file; no key occurs twice."""

    entries: tuple[Entry, ...]
    at: Position

    def get(self, key: str) -> Node | None:
        return next((entry.value for entry in self.entries if entry.key.text == key), None)


Node = Scalar | Sequence | Mapping


class Problem(Struct, frozen=True, kw_only=True):
    """One thing that is wrong, or odd, in a configuration. ``path`` is dotted: ``models.llama.ttl``."""

    message: str
    """The mistake and the fix in one sentence, without place or path."""
    path: str = ""
    at: Position | None = None
    level: Literal["error", "warning"] = "error"

    def __str__(self) -> str:
        place = f"{self.at}: " if self.at else ""
        return f"{place}{self.level}: {self.path + ': ' if self.path else ''}{self.message}"
