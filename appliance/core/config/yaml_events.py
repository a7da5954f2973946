"""The parts of a YAML text, for every reader: events, tokens, and the first place where the text is not YAML."""

from __future__ import annotations

import re
from typing import Literal

from msgspec import Struct

BREAK = re.compile("\r\n|\n|\r")
"""The ends of a line when lines are counted. (The scanner knows U+0085, U+2028, U+2029 as well; editors do not.)"""

Kind = Literal["document", "scalar", "alias", "mapping", "sequence", "end", "other"]


class Event(Struct, frozen=True):
    """One step of the parser. Line and column count from 1; the other fields have meaning for nodes only."""

    kind: Kind
    line: int
    column: int
    anchor: str | None = None
    tag: str | None = None
    text: str = ""
    plain: bool = True
    """Neither in quotes nor a block."""


class Token(Struct, frozen=True):
    """A scalar, or a bracket, between two offsets of the text. ``style`` is a quote, ``|``, ``>`` or empty (plain)."""

    kind: Literal["scalar", "open", "close"]
    start: int
    end: int
    text: str = ""
    style: str = ""


class NotYaml(Exception):
    """The text breaks a rule of YAML. Line and column count from 1."""

    def __init__(self, message: str, line: int, column: int) -> None:
        super().__init__(message)
        self.message = message
        self.line = line
        self.column = column
