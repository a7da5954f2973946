"""The activity log's owner: takes rows without making anybody wait, writes them in batches, answers questions.

One SQLite connection, used only in a worker thread and by one call at a time. A row is in the log from the moment
``add`` returns: every question writes what is waiting first. Where the log is kept in memory, nothing else does: rows
that nobody asks for are worth no statement.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import msgspec
import trio

from appliance.core.records.activity import Query
from appliance.errors import Busy
from appliance.store.activity_schema import BUSY, open_file, open_memory, unusable
from appliance.store.activity_table import ActivityTable
from appliance.trio_parts import persist
from appliance.wire.activity import Page, Row, Stats

log = logging.getLogger(__name__)

MAX_WAITING = 10_000
"""Rows not yet written to a file. More than that wait only while the disk stands still; newer ones are then lost."""

DEFAULT_KEEP = 1000
"""Rows kept in memory where the configuration says 0 or less."""

PAUSE = 0.05
"""Seconds between two batches: a thread for every row would cost each request a tenth of its time."""

RETRY = 1.0
"""Seconds until rows are offered again to a file that another process has locked."""

FLUSH = 3.0
"""Seconds that the last rows get when the program ends."""

_T = TypeVar("_T")


class Activity:
    """Made by ``open_activity``."""

    def __init__(self, table: ActivityTable, last_id: int, path: Path | None, keep: int) -> None:
        self._table = table
        self._last_id = last_id
        self._path = path  # None: in memory, from the start or since the disk failed
        self._keep = keep
        self._waiting: list[tuple[int, Row]] = []  # by their ids
        self._written = last_id  # the id of the last row that is in the table
        self._lost = 0  # rows in a row that found no place
        self._wake = trio.Event()
        self._turn = trio.CapacityLimiter(1)

    def add(self, row: Row) -> int:
        """Queue a row; returns its id. The id of ``row`` itself does not matter."""
        self._last_id = max(self._last_id, self._table.taken_by_others) + 1
        if self._path is None:
            self._waiting.append((self._last_id, row))
            if len(self._waiting) >= 2 * self._keep:
                self._waiting = self._waiting[-self._keep :]
        elif len(self._waiting) < MAX_WAITING:
            self._waiting.append((self._last_id, row))
            self._lost = 0
            self._wake.set()
        else:
            self._lost += 1
            if self._lost == 1:
                log.warning("the activity log is not written fast enough; rows are lost until it is")
        return self._last_id

    async def page(self, query: Query) -> Page:
        return await self._ask(lambda: self._table.page(query))

    async def stats(self, models: Sequence[str] = ()) -> Stats:
        """Return the rows of these models; of all models if none is named."""
        return await self._ask(lambda: self._table.stats(models))

    async def _ask(self, question: Callable[[], _T]) -> _T:
        def answer() -> _T:
            self._write_waiting()
            try:
                return question()
            except sqlite3.Error as error:
                if self._path is None:
                    raise
                if error.sqlite_errorcode in BUSY:
                    raise Busy(f"the activity log '{self._path}' is locked by another program; try again") from error
                self._leave_file(error)
                return question()

        return await self._in_turn(answer)

    async def write(self) -> None:
        """Write rows as they come, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            if await self._in_turn(self._write_waiting):
                await trio.sleep(PAUSE)
            else:
                await trio.sleep(RETRY)
                self._wake.set()

    async def close(self) -> None:
        """Write what is waiting, for at most FLUSH seconds, and let go of the file."""

        def finish() -> bool:
            written = self._write_waiting()
            self._table.close()
            return written

        written = False
        with trio.move_on_after(FLUSH, shield=True):
            written = await trio.to_thread.run_sync(finish, limiter=self._turn, abandon_on_cancel=True)
        if not written:
            log.warning("the last rows of the activity log could not be written to '%s'", self._path)

    async def _in_turn(self, work: Callable[[], _T]) -> _T:
        try:
            return await trio.to_thread.run_sync(work, limiter=self._turn)
        finally:  # only the loop changes what is waiting: `add` may be called while rows are written
            self._waiting = [(id, row) for id, row in self._waiting if id > self._written]

    # ---- in the worker thread, one at a time ----

    def _write_waiting(self) -> bool:
        """False when the file is locked and the rows stay queued."""
        waiting = tuple(self._waiting)
        rows = [msgspec.structs.replace(row, id=id) for id, row in waiting if id > self._written]
        if not rows:
            return True
        try:
            self._table.add(rows)
        except sqlite3.Error as error:
            if self._path is None:
                raise
            if error.sqlite_errorcode in BUSY:
                return False
            self._leave_file(error)
            self._table.add(rows)
        self._written = rows[-1].id
        return True

    def _leave_file(self, error: sqlite3.Error) -> None:
        """The disk is full or broken: serve from memory from here on, with the newest rows that can still be read."""
        log.warning(
            "the activity log cannot be written to '%s' (%s); it is kept in memory until the program is restarted",
            self._path,
            error,
        )
        memory = ActivityTable(open_memory(), self._keep)
        try:
            memory.add(self._table.newest(self._keep))
            self._table.close()
        except sqlite3.Error:
            log.warning("the rows that '%s' has already are not shown", self._path)
        self._table, self._path = memory, None


def _open(path: Path | None, keep: int) -> tuple[ActivityTable, int]:
    """Return the table and the highest id in it. Raises UsageError."""
    if path is None:
        return ActivityTable(open_memory(), keep), 0
    table = ActivityTable(open_file(path), None)
    try:
        return table, table.last_id()
    except sqlite3.Error as error:  # a page of it is damaged
        table.close()
        raise unusable(path, error) from error


def check_activity(path: Path) -> None:
    """Read what an activity log reads first. Raises UsageError for a file that cannot be one."""
    table, _ = _open(path, DEFAULT_KEEP)
    table.close()


@asynccontextmanager
async def open_activity(path: Path | None, keep: int) -> AsyncGenerator[Activity]:
    """The log in this file, all of it, or without one the newest ``keep`` rows in memory.

    Raises UsageError for a file that cannot be used. Leaving the block writes what is waiting.
    """
    keep = keep if keep > 0 else DEFAULT_KEEP

    activity = Activity(*await trio.to_thread.run_sync(_open, path, keep), path, keep)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(persist, "writing the activity log", activity.write)
            yield activity
            nursery.cancel_scope.cancel()
    finally:
        await activity.close()
