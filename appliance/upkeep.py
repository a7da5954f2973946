"""A running server's other work: it follows its configuration's files, writes its log, gives memory back."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from functools import partial

import trio

from appliance.catalog.configuration import Reloads
from appliance.fleet.logs import Echo
from appliance.platform.console import into_file, print_through, said_at_once, say_here
from appliance.platform.machine import give_back_memory, own_bytes
from appliance.platform.stopping import on_hangup
from appliance.settings import AppSettings
from appliance.traffic.program_log import LogFeeds, LogReader, ProgramLog, ToProgramLog
from appliance.trio_parts import beside, persist, wait_any

ROOT = "appliance"
"""The logger above all of the program's own."""
LAST_LINES = 0.5
"""Seconds that the last lines of the log get to be written; for ever, if nobody reads them."""
MAX_WAITING = 10_000
"""Lines of model processes kept for a standard error that does not take them; beyond that the oldest are lost."""
LOOK_AT_MEMORY = 20.0
"""Seconds."""
GROWN = 2 << 20
"""Bytes."""


@asynccontextmanager
async def following_files(reloads: Reloads, *, watch: bool) -> AsyncGenerator[None]:
    """For the length of the block: reload on SIGHUP, and with ``watch`` when a file changes."""
    if not reloads.anything:
        yield
        return
    async with beside() as nursery:
        if watch:
            nursery.start_soon(reloads.watch)
        nursery.start_soon(on_hangup, partial(persist, "reading the configuration", reloads.reload_quietly))
        yield


async def keep_small() -> None:
    """Give memory back whenever `GROWN` of it is no longer in use: that of a busy minute would be kept for ever.

    Growth alone does not tell: memory that was in use at the last look may be free now.
    """
    least, idle = own_bytes(), 0
    while least:
        await trio.sleep(LOOK_AT_MEMORY)
        least = min(least, now := own_bytes())
        if now > least + GROWN:
            idle = await trio.to_thread.run_sync(give_back_memory, idle + GROWN if idle else 0)


@contextmanager
def logging_into(program_log: ProgramLog) -> Generator[None]:
    """The program's log records go into its log for the length of the block."""
    logger = logging.getLogger(ROOT)
    handler = ToProgramLog(program_log)
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


@asynccontextmanager
async def log_on_console(logs: LogFeeds | None) -> AsyncGenerator[None]:
    """For the length of the block: standard output gets what ``logToStdout`` says; nothing without ``logs``."""
    if logs is None:
        yield
        return
    ended = trio.Event()
    async with trio.open_nursery() as nursery:
        write = partial(_write_lines, logs.combined(), ended)
        nursery.start_soon(persist, "writing to standard output", write)
        yield
        ended.set()
        nursery.cancel_scope.deadline = trio.current_time() + LAST_LINES


async def _write_lines(reader: LogReader, ended: trio.Event) -> None:
    """Until the end, or until nobody can read any more. One who reads slowly, or not at all, holds nothing up."""
    while True:
        last = ended.is_set()
        text = "".join(f"{line}\n" for line in reader.take())
        if text and not await trio.to_thread.run_sync(print_through, text, abandon_on_cancel=True):
            return  # standard output is closed
        if last:
            return
        await wait_any(reader.wait, ended.wait)


@asynccontextmanager
async def echoing_engine_log(settings: AppSettings) -> AsyncGenerator[Echo | None]:
    """Put the output of model processes on standard error for the block; users of llama-server look for it there.

    Each line begins with the model's name if there are several. `serve` does not show it. A line is there before
    anything that its process does later can be noticed, unless standard error is slow.
    """
    if not settings.echo or settings.quiet:
        yield None
        return
    echo = _Echo()

    def say_line(model: str, text: str) -> None:
        echo.say(text if settings.http.single is not None else f"[{model}] {text}")

    async with beside(partial(persist, "writing to standard error", echo.catch_up)):
        yield say_line


class _Echo:
    """Lines for standard error: written at once, or by a thread where that might take time."""

    def __init__(self) -> None:
        self._waiting: deque[str] = deque(maxlen=MAX_WAITING)
        self._behind = trio.Event()

    def say(self, line: str) -> None:
        into_file(line)
        if self._behind.is_set() or not said_at_once(f"{line}\n".encode(errors="replace")):
            self._waiting.append(line)
            self._behind.set()

    async def catch_up(self) -> None:
        while True:
            await self._behind.wait()
            while self._waiting:
                lines = "\n".join(self._waiting)
                self._waiting.clear()
                await trio.to_thread.run_sync(say_here, lines, abandon_on_cancel=True)  # nobody may be reading
            self._behind = trio.Event()
