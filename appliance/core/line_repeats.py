"""Detects a model that repeats the same line over and over, while its text passes."""

from __future__ import annotations


class LineRepeats:
    """Counts how often the same line came in a row. Empty lines, and blanks around a line, are ignored."""

    def __init__(self, limit: int) -> None:
        """``limit`` is the number of repetitions that is too many."""
        self._limit = limit
        self._line: list[str] = []
        self._last = ""
        self._times = 0
        self.found: str | None = None
        """The line that came too often."""

    def feed(self, text: str) -> None:
        if self.found is not None:
            return
        first, *others = text.split("\n")
        self._line.append(first)
        for piece in others:
            self._ended("".join(self._line).strip())
            self._line = [piece]

    def _ended(self, line: str) -> None:
        if not line:
            return
        self._times = self._times + 1 if line == self._last else 1
        self._last = line
        if self._times >= self._limit and self.found is None:
            self.found = line
