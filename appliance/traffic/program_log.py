"""The program's own log, and readers that see it beside what the model processes print."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import datetime
from functools import partial
from itertools import islice

import trio

from appliance.core.records.log_lines import (
    LEVELS,
    Level,
    LineStyle,
    LogSource,
    LogToStdout,
    in_console,
    is_quiet,
    request_line,
)
from appliance.fleet.logs import LogLine, Logs
from appliance.traffic.request import Request
from appliance.trio_parts import Changed, wait_any

LIMIT = 100 * 1024
"""Characters of the program's own log that are kept, more or less: lines of requests are estimated; llama-swap's
number."""

GATHER = 0.1
"""Seconds that a reader waits for more once there is a line: the lines of a busy server come together."""

_LEVEL, _TIME = 9, 36
"""Characters of a line besides what it says: at most."""
_REQUEST_LINE = 60
"""Characters of a request's line besides its path and its sender's user agent."""


_Answered = tuple[str, str, str, str, int, int, bytes, float]
"""The arguments of `request_line`."""


class _Own:
    """One line. It is put into words when somebody reads it: most lines of a busy server nobody ever reads."""

    __slots__ = ("_style", "_told", "_what", "at", "mark", "size")

    def __init__(self, level: Level, what: str | _Answered, size: int, style: LineStyle, mark: int) -> None:
        self.mark = mark
        """The number that the next line of the processes had when this one was written: where it belongs among
        theirs."""
        self.size = size
        self._what: tuple[Level, str | _Answered] = level, what
        self._style = style
        self.at = time.time()
        self._told = ""

    @property
    def text(self) -> str:
        if not self._told:
            level, what = self._what
            when = datetime.fromtimestamp(self.at).astimezone() if self._style.time_format else None
            self._told = self._style.line(level, what if isinstance(what, str) else request_line(*what), when)
        return self._told


class ProgramLog:
    """The newest lines the program has written about itself. ``style`` follows the configuration."""

    def __init__(self, processes: Logs) -> None:
        self.style = LineStyle()
        self.next = 0
        """The number of the next line."""
        self._processes = processes
        self._lines: deque[_Own] = deque()
        self._held = 0
        self._news = Changed()

    @property
    def style(self) -> LineStyle:
        return self._style

    @style.setter
    def style(self, style: LineStyle) -> None:
        self._style = style
        self._shown = frozenset(level for level in LEVELS if style.shows(level))
        self._around = _LEVEL + (_TIME if style.time_format else 0)

    @property
    def first(self) -> int:
        """The number of the oldest line that is held."""
        return self.next - len(self._lines)

    def say(self, level: Level, text: str) -> None:
        """Add a line, unless its level is below ``logLevel``."""
        if level in self._shown:
            text = self._processes.secrets.hidden(text)
            self._append(level, text, len(text))

    def answered(self, request: Request, status: int, sent: int, seconds: float) -> None:
        """Add the line of a request that is over, unless it is one that is asked all the time.

        The page asks for its views once a second. In a secure context browsers name such requests; those that went
        well are lines for debugging, or the log would hold nothing else.
        """
        path = request.path
        of_page = request.method == "GET" and request.first.get(b"sec-fetch-site") == b"same-origin" and status < 400
        level: Level = "debug" if of_page else "info"
        if level not in self._shown or is_quiet(path):
            return
        agent = request.first.get(b"user-agent", b"")
        told = (request.client, request.method, path, request.http_version, status, sent, agent, seconds)
        self._append(level, told, len(path) + len(agent) + _REQUEST_LINE)

    def since(self, number: int) -> list[_Own]:
        """Held lines from ``number`` on."""
        return list(islice(self._lines, max(number - self.first, 0), None))

    async def wait_news(self, number: int) -> None:
        """Wait until a line ``number`` or later exists."""
        while self.next <= number:
            await self._news.wait()

    def _append(self, level: Level, what: str | _Answered, size: int) -> None:
        size += self._around
        self._lines.append(_Own(level, what, size, self._style, self._processes.next))
        self.next += 1
        self._held += size
        while self._held > LIMIT and len(self._lines) > 1:
            self._held -= self._lines.popleft().size
        self._news.wake()


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

    def __init__(self, own: ProgramLog, processes: Logs, mode: Callable[[], LogToStdout]) -> None:
        self.own = own
        self.processes = processes
        self.mode = mode

    def program(self, *, history: bool = True) -> LogReader:
        """The program's own lines."""
        return LogReader(self, lambda source: source == "proxy", None, history=history)

    def upstream(self, model: str | None = None, *, history: bool = True) -> LogReader:
        """Return a reader of one model's processes, or of all with the model's id in front of each line."""
        return LogReader(self, lambda source: source == "upstream", model, history=history)

    def combined(self, *, history: bool = True) -> LogReader:
        """Yield the lines that ``logToStdout`` lets through, in the order in which they were written."""
        return LogReader(self, lambda source: in_console(self.mode(), source), None, history=history)


class LogReader:
    """One reader. It never holds a writer up, and it learns how many lines it has missed.

    ``search``: only lines with this text, in any case. ``times``: each begins with its time in Unix seconds.
    """

    search = ""
    times = False

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
            self._process_line, self._own_line = 0, feeds.own.first

    def take(self) -> list[str]:
        """Every line there is by now, possibly none."""
        own = self._feeds.own
        lines, appended, self._process_line = self._feeds.processes.read(self._model, self._process_line)
        own_lines = own.since(self._own_line)
        lost, found = 0, list[tuple[int, int, float, str]]()
        if self._wants("upstream"):
            lost += appended - self._seen - len(lines)
            found += [(line.number, 1, line.at, self._render(line)) for line in lines]
        if self._wants("proxy"):
            lost += max(own.first - self._own_line, 0)
            found += [(line.mark, 0, line.at, line.text) for line in own_lines]
        self._seen, self._own_line = appended, own.next
        found.sort(key=lambda line: line[:2])
        wanted = self.search.casefold()
        texts = [
            f"{at:.3f} {text}" if self.times else text
            for _, _, at, text in found
            if not wanted or wanted in text.casefold()
        ]
        return [f"... {lost} lines lost ...", *texts] if lost else texts

    async def wait(self) -> None:
        """Wait until `take` has something new, or probably."""
        feeds = self._feeds
        await wait_any(
            partial(feeds.own.wait_news, self._own_line), partial(feeds.processes.wait_news, self._process_line)
        )
        await trio.sleep(GATHER)

    def _render(self, line: LogLine) -> str:
        return line.text if self._model is not None else f"[{line.model}] {line.text}"


def _level(number: int) -> Level:
    if number >= logging.ERROR:
        return "error"
    return "warn" if number >= logging.WARNING else "info" if number >= logging.INFO else "debug"
