"""The output of model processes: the last lines of each, and live readers.

One producer (a child's pump), any number of readers. A reader that falls behind loses lines, and learns how many; it
never holds the producer up.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from appliance.core.secrets import Secrets
from appliance.trio_parts import Changed

MODEL_LIMIT = 256 * 1024
"""Characters of log kept for each model; llama-server prints about 10 KiB while it starts."""
TOTAL_LIMIT = 4 * MODEL_LIMIT
LINE_LIMIT = 8 * 1024
"""Longer lines are cut: the log is for people."""


Echo = Callable[[str, str], None]
"""Called with model and text of every line, before anything else is done with it."""


class LogLine(NamedTuple):
    """``number`` counts all lines of the program's life, from 0. ``at`` is its time, Unix seconds."""

    number: int
    model: str
    text: str
    at: float


class _Ring:
    """The newest lines whose text fits ``limit`` characters."""

    def __init__(self, limit: int) -> None:
        self.lines: deque[LogLine] = deque()
        self.appended = 0
        self._limit = limit
        self._held = 0

    def append(self, line: LogLine) -> None:
        self.lines.append(line)
        self.appended += 1
        self._held += len(line.text) + 1
        while self._held > self._limit and len(self.lines) > 1:
            self._held -= len(self.lines.popleft().text) + 1

    def since(self, number: int) -> list[LogLine]:
        """Held lines from ``number`` on."""
        found: list[LogLine] = []
        # A follower lacks the last few lines, and the ring holds thousands: from the end, only the missing ones are
        # looked at.
        for line in reversed(self.lines):
            if line.number < number:
                break
            found.append(line)
        found.reverse()
        return found


class Logs:
    """All log lines of the fleet, by model and together."""

    def __init__(self, echo: Echo | None = None) -> None:
        self.echo = echo
        self.catch_up: Callable[[], None] | None = None
        """Called before every look: it appends what has been printed by now."""
        self._all = _Ring(TOTAL_LIMIT)
        self._by_model: dict[str, _Ring] = {}
        self.next = 0
        """The number of the next line."""
        self._news = Changed()
        self._known: dict[str | None, frozenset[str]] = {}
        self.secrets = Secrets()
        """Texts that no line has, neither of these logs nor of the program's own."""

    def know(self, model: str | None, secrets: Iterable[str]) -> None:
        """Hide these from now on, instead of the earlier ones of this model's processes; None: of the program."""
        if (known := frozenset(secrets)) != self._known.get(model):
            self._known[model] = known
            self.secrets = Secrets(frozenset[str]().union(*self._known.values()))

    def append(self, model: str, text: str) -> None:
        """Add one line without its end."""
        text = self.secrets.hidden(text)
        if self.echo is not None:
            self.echo(model, text)
        line = LogLine(self.next, model, text[:LINE_LIMIT], time.time())
        self.next += 1
        self._all.append(line)
        self._by_model.setdefault(model, _Ring(MODEL_LIMIT)).append(line)
        self._news.wake()

    def lose(self, model: str, count: int) -> None:
        """So many lines were dropped before they came here; readers get that number."""
        for ring in (self._all, self._by_model.setdefault(model, _Ring(MODEL_LIMIT))):
            ring.appended += count

    def knows(self, model: str) -> bool:
        """True if the model has ever printed anything."""
        return model in self._by_model

    def tail(self, model: str | None, count: int) -> list[str]:
        """The last lines of one model, or of all with the model's name in front."""
        lines = list(self._ring(model).lines)
        return [_render(line, model) for line in lines[max(0, len(lines) - count) :]]

    def count(self, model: str) -> int:
        """How many lines the model has ever printed."""
        return self._ring(model).appended

    def follow(self, model: str | None, *, history: bool = True) -> Follower:
        """A reader of one model's lines, or of all: what is held first, then what comes."""
        return Follower(self, model, history=history)

    def read(self, model: str | None, number: int) -> tuple[list[LogLine], int, int]:
        """Held lines from ``number`` on, how many there ever were, and the number that the next line will have."""
        if self.catch_up is not None:
            self.catch_up()
        ring = self._ring(model)
        return ring.since(number), ring.appended, self.next

    async def wait_news(self, number: int) -> None:
        """Wait until a line ``number`` or later exists."""
        while self.next <= number:
            await self._news.wait()

    def _ring(self, model: str | None) -> _Ring:
        return self._all if model is None else self._by_model.get(model) or _Ring(0)


class Follower:
    """An endless async iterator over log lines; leaving the loop is all the cleaning up there is."""

    def __init__(self, logs: Logs, model: str | None, *, history: bool) -> None:
        self._logs = logs
        self._model = model
        held, self._seen, next_number = logs.read(model, 0)
        self._position = next_number
        self._pending = deque(_render(line, model) for line in (held if history else ()))

    def __aiter__(self) -> Follower:
        return self

    async def __anext__(self) -> str:
        while not self._pending:
            await self._logs.wait_news(self._position)
            lines, appended, self._position = self._logs.read(self._model, self._position)
            # Numbers count the lines of all models, so a gap in them says nothing about one model. Its own count does:
            # what it has printed since the last look, less what is still held.
            if lost := appended - self._seen - len(lines):
                self._pending.append(f"... {lost} lines lost ...")
            self._seen = appended
            self._pending.extend(_render(line, self._model) for line in lines)
        return self._pending.popleft()


def _render(line: LogLine, model: str | None) -> str:
    return line.text if model is not None else f"[{line.model}] {line.text}"
