"""Values of reading a configuration: files, values with their places, problems, the result."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import abc
from typing import Literal

from msgspec import Struct

from appliance.core.config.types import Config
from appliance.errors import InvalidConfig

BREAK = re.compile("\r\n|\n|\r")
"""The ends of lines as editors count them. YAML has three more: U+0085, U+2028, U+2029."""
_MOST_SHOWN = 1000
"""Characters of a path, and of a message."""
NO_PORTS: dict[str, int] = {}


class Position(Struct, frozen=True, order=True, gc=False):
    """A place in a file; line and column count from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


class LineIndex:
    """A file's offsets as places in it."""

    def __init__(self, file: str, text: str) -> None:
        self._file = file
        self._starts = [0, *(found.end() for found in BREAK.finditer(text))]

    def at(self, offset: int) -> Position:
        line = bisect_right(self._starts, offset)
        return Position(self._file, line, offset - self._starts[line - 1] + 1)


Plain = str | int | float | bool | None


class ScalarNode(Struct, frozen=True, gc=False):
    """One value with the type that the YAML dialect gave it. ``text`` is as written, quotes and escapes resolved."""

    value: Plain
    text: str
    at: Position
    quoted: bool = False
    """Quoted or a block: a string whatever it looks like, and never taken for a number."""


class SequenceNode(Struct, frozen=True):
    items: tuple[Node, ...]
    at: Position


class KeyValue(Struct, frozen=True):
    """One key of a mapping with its value."""

    key: ScalarNode
    value: Node


class MappingNode(Struct, frozen=True):
    """Keys in the order of the file; no key occurs twice."""

    entries: tuple[KeyValue, ...]
    at: Position

    def get(self, key: str) -> Node | None:
        return next((entry.value for entry in self.entries if entry.key.text == key), None)


Node = ScalarNode | SequenceNode | MappingNode


def is_null(node: Node | None) -> bool:
    """True for a key without a value, and for a key that is not there."""
    return node is None or (isinstance(node, ScalarNode) and node.value is None)


class Problem(Struct, frozen=True, kw_only=True):
    """One thing that is wrong, or odd, in a configuration. ``path`` is dotted: ``models.llama.ttl``."""

    message: str
    """The mistake and the fix in one sentence, without place or path."""
    path: str = ""
    at: Position | None = None
    level: Literal["error", "warning"] = "error"

    def __str__(self) -> str:
        """In short: a key or a value of megabytes loses its middle."""
        place = f"{self.at}: " if self.at else ""
        return f"{place}{self.level}: {_shown(self.path) + ': ' if self.path else ''}{_shown(self.message)}"


class PathPlaces(Struct, frozen=True):
    """Dotted path (``models.llama.aliases[0]``) to the place of its value. A key without a value has no place."""

    known: abc.Mapping[str, Position]

    def given(self, path: str) -> bool:
        """True if the file has something there."""
        return path in self.known

    def at(self, path: str) -> Position | None:
        """The place of ``path``, else of the nearest thing around it, None where nothing was read from a file."""
        while path and path not in self.known:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return self.known.get(path)


class ProblemReport:
    """Collects problems; ``places`` says where they are."""

    def __init__(self, places: PathPlaces) -> None:
        self.places = places
        self.problems: list[Problem] = []

    def error(self, path: str, message: str) -> None:
        self.problems.append(Problem(message=message, path=path, at=self.places.at(path)))

    def warn(self, path: str, message: str) -> None:
        self.problems.append(Problem(message=message, path=path, at=self.places.at(path), level="warning"))


class SourceFile(Struct, frozen=True):
    """One file; ``file`` is its name in messages."""

    file: str
    text: str


class Loaded(Struct, frozen=True):
    """``config`` is None when there are errors. Problems are in the order of the files."""

    config: Config | None
    problems: tuple[Problem, ...]
    ports: abc.Mapping[str, int] = NO_PORTS
    """The port of each model that uses ``${PORT}``."""

    @property
    def errors(self) -> tuple[Problem, ...]:
        return tuple(problem for problem in self.problems if problem.level == "error")

    @property
    def warnings(self) -> tuple[Problem, ...]:
        return tuple(problem for problem in self.problems if problem.level == "warning")

    def require(self) -> Config:
        """The configuration. Raises InvalidConfig with every error."""
        if self.config is None:
            raise InvalidConfig(self.errors)
        return self.config


def _shown(text: str) -> str:
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN // 2]}...{text[-_MOST_SHOWN // 2 :]}"
