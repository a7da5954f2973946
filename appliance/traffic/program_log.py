"""The program's own log, and readers that see it beside what the model processes print."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import NamedTuple, Protocol

import trio

from appliance.core.log_lines import Level, LineStyle, LogSource, LogToStdout, in_console
from appliance.fleet.logs import Line

LIMIT = 100 * 1024
"""Characters of the program's own log that are kept; llama-swap's number."""


class ProcessLogs(Protocol):
    """What is used of the fleet's logs, see `appliance.fleet.logs.Logs`."""

    def read(self, model: str | None, number: int) -> tuple[list[Line], int, int]: ...

    async def wait_news(self, number: int) -> None: ...


class _Own(NamedTuple):
    number: int
    mark: int
    """The number that the next line of the processes had when this one was written: where it belongs among theirs."""
    text: str


class ProgramLog:
    """The newest lines the program has written about itself. ``style`` follows the configuration."""

    def __init__(self, processes: ProcessLogs) -> None:
        self.style = LineStyle()
        self.next = 0
        self._processes = processes
        self._lines: deque[_Own] = deque()
        self._held = 0
        self._news = trio.Event()

    def say(self, level: Level, text: str) -> None:
        """Add a line, unless its level is below ``logLevel``."""
        if self.style.shows(level):
            now = datetime.now()
            self._append(self.style.line(level, text, now.astimezone() if self.style.time_format else now))

    def since(self, number: int) -> list[_Own]:
        """Held lines from ``number`` on."""
        return [line for line in self._lines if line.number >= number]

    async def wait_news(self, number: int) -> None:
        """Wait until a line ``number`` or later exists."""
        while self.next <= number:
            await self._news.wait()

    def _append(self, text: str) -> None:
        _, _, mark = self._processes.read(None, 1 << 62)
        self._lines.append(_Own(self.next, mark, text))
        self.next += 1
        self._held += len(text) + 1
        while self._held > LIMIT and len(self._lines) > 1:
            self._held -= len(self._lines.popleft().text) + 1
        self._news.set()
        self._news = trio.Event()


class ToProgramLog(logging.Handler):
    """Takes the records of Python's logging into the program's log, from any thread."""

    def __init__(self, log: ProgramLog) -> None:
        super().__init__()
        self._log = log
        self._token = trio.lowlevel.current_trio_token()
        self._home = threading.get_ident()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self.format(record)
        except Exception:  # noqa: BLE001  as logging's own handlers: a wrong format string must not end a request
            self.handleError(record)
            return
        if threading.get_ident() == self._home:
            self._log.say(_level(record.levelno), text)
            return
        try:
            self._token.run_sync_soon(self._log.say, _level(record.levelno), text)
        except trio.RunFinishedError:
            pass  # the program has ended, and nobody reads any more


class LogFeeds:
    """Makes readers. ``mode`` tells what the combined log holds: ``logToStdout``."""

    def __init__(self, own: ProgramLog, processes: ProcessLogs, mode: Callable[[], LogToStdout]) -> None:
        self.own = own
        self.processes = processes
        self.mode = mode

    def program(self, *, history: bool = True) -> LogReader:
        """The program's own lines."""
        return LogReader(self, lambda source: source == "proxy", None, history=history)

    def upstream(self, model: str | None = None, *, history: bool = True) -> LogReader:
        """What one model's processes print, or those of all with the model's id in front."""
        return LogReader(self, lambda source: source == "upstream", model, history=history)

    def combined(self, *, history: bool = True) -> LogReader:
        """What ``logToStdout`` lets through, in the order in which it was written."""
        return LogReader(self, lambda source: in_console(self.mode(), source), None, history=history)


class LogReader:
    """One reader; it never holds a writer up, and is told how many lines it has missed."""

    def __init__(
        self, feeds: LogFeeds, wants: Callable[[LogSource], bool], model: str | None, *, history: bool
    ) -> None:
        self._feeds = feeds
        self._wants = wants
        self._model = model
        _, self._seen, self._process_line = feeds.processes.read(model, 1 << 62)
        self._own_line = feeds.own.next
        if history:
            held, _, _ = feeds.processes.read(model, 0)
            self._seen -= len(held)
            self._process_line, self._own_line = 0, _first(feeds.own.since(0), feeds.own.next)

    def take(self) -> list[str]:
        """Every line there is by now, possibly none."""
        own = self._feeds.own
        lines, appended, self._process_line = self._feeds.processes.read(self._model, self._process_line)
        own_lines = own.since(self._own_line)
        lost, found = 0, list[tuple[int, int, str]]()
        if self._wants("upstream"):
            lost += appended - self._seen - len(lines)
            found += [(line.number, 1, self._render(line)) for line in lines]
        if self._wants("proxy"):
            lost += _first(own_lines, own.next) - self._own_line
            found += [(line.mark, 0, line.text) for line in own_lines]
        self._seen, self._own_line = appended, own.next
        found.sort(key=lambda line: line[:2])
        texts = [text for _, _, text in found]
        return [f"... {lost} lines lost ...", *texts] if lost else texts

    async def wait(self) -> None:
        """Wait until `take` has something new, or probably."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._wait_own, nursery.cancel_scope)
            nursery.start_soon(self._wait_processes, nursery.cancel_scope)

    async def _wait_own(self, waiting: trio.CancelScope) -> None:
        await self._feeds.own.wait_news(self._own_line)
        waiting.cancel()

    async def _wait_processes(self, waiting: trio.CancelScope) -> None:
        await self._feeds.processes.wait_news(self._process_line)
        waiting.cancel()

    def _render(self, line: Line) -> str:
        return line.text if self._model is not None else f"[{line.model}] {line.text}"


def _first(lines: Iterable[_Own], otherwise: int) -> int:
    return next((line.number for line in lines), otherwise)


def _level(number: int) -> Level:
    if number >= logging.ERROR:
        return "error"
    return "warn" if number >= logging.WARNING else "info" if number >= logging.INFO else "debug"
