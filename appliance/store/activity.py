"""The activity log's owner: takes rows without making anybody wait, writes them in batches, answers questions.

One SQLite connection, used only in a worker thread and by one call at a time. A row is in the log from the moment
``add`` returns: every question writes what is waiting first. Where the log is kept in memory, nothing else does, and
nothing else opens SQLite: rows that nobody asks for are worth neither.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import trio
from msgspec import structs

from appliance.core.records.activity import ActivityPage, Query, Row
from appliance.trio_parts import WriteBehind, beside, persist

if TYPE_CHECKING:
    from appliance.store.activity_table import ActivityRows, ActivityTable

MAX_WAITING = 10_000
"""Rows not yet written to a file. More than that wait only while the disk stands still; newer ones are then lost."""
DEFAULT_KEEP = 1000
"""Rows kept in memory where the configuration says 0 or less."""
BUSY_MS = 2000
"""Milliseconds that a statement waits for another process that writes to the same file."""
_T = TypeVar("_T")
log = logging.getLogger(__name__)


class Activity:
    """Made by ``open_activity``."""

    def __init__(self, rows: ActivityRows | None, last_id: int, keep: int, behind: WriteBehind) -> None:
        self._rows = rows  # None: in memory, and nobody has asked yet
        self._behind = behind
        self._last_id = last_id
        self._keep = keep
        self._waiting: list[tuple[int, Row]] = []  # by their ids
        self._written = last_id  # the id of the last row that is in the table
        self._lost = 0  # rows in a row that found no place

    @property
    def keep(self) -> int | None:
        """The number of newest rows that stay; None where a file keeps all."""
        return self._keep if self._rows is None or self._rows.path is None else None

    def pass_over(self) -> int:
        """Give the next id to a row that is not worth adding: newer ones have its place already."""
        taken_by_others = self._rows.table.taken_by_others if self._rows is not None else 0
        self._last_id = max(self._last_id, taken_by_others) + 1
        return self._last_id

    def add(self, row: Row) -> int:
        """Queue a row; returns its id. The id of ``row`` itself does not matter."""
        self.pass_over()
        if self.keep is not None:
            self._waiting.append((self._last_id, row))
            if len(self._waiting) >= 2 * self._keep:
                self._waiting = self._waiting[-self._keep :]
        elif len(self._waiting) < MAX_WAITING:
            self._waiting.append((self._last_id, row))
            self._lost = 0
            self._behind.wake()
        else:
            self._lost += 1
            if self._lost == 1:
                log.warning("the activity log is not written fast enough; rows are lost until it is")
        return self._last_id

    async def page(self, query: Query) -> ActivityPage:
        return await self.read(lambda table: table.page(query))

    async def read(self, question: Callable[[ActivityTable], _T]) -> _T:
        """Ask the table, with every row that was added. Raises Busy while another program has locked the file."""

        def answer() -> _T:
            if self._rows is None:
                from appliance.store.activity_table import rows_in_memory

                self._rows = rows_in_memory(self._keep)
            self._write_waiting(self._rows)
            return self._rows.ask(question)

        return await self._in_turn(answer)

    async def write(self) -> None:
        """Write rows as they come, until cancelled."""
        if self._rows is not None:
            await self._behind.run(partial(self._in_turn, partial(self._write_waiting, self._rows)))

    async def close(self) -> None:
        """Write what is waiting, and close the file."""
        if (rows := self._rows) is None:
            return

        def finish() -> bool:
            written = self._write_waiting(rows)
            rows.table.close()
            return written

        if not await self._behind.finish(finish):
            log.warning("the last rows of the activity log could not be written to '%s'", rows.path)

    async def _in_turn(self, work: Callable[[], _T]) -> _T:
        try:
            return await self._behind.in_turn(work)
        finally:  # only the loop changes what is waiting: `add` may be called while rows are written
            self._waiting = [(id, row) for id, row in self._waiting if id > self._written]

    def _write_waiting(self, rows: ActivityRows) -> bool:
        """In the worker thread. False while the file is locked and the rows stay queued."""
        waiting = [structs.replace(row, id=id) for id, row in tuple(self._waiting) if id > self._written]
        if waiting:
            if not rows.write(waiting):
                return False
            self._written = waiting[-1].id
        return True


@asynccontextmanager
async def open_activity(
    path: Path | None, keep: int, *, busy_ms: int = BUSY_MS, behind: WriteBehind | None = None
) -> AsyncGenerator[Activity]:
    """The log in this file, all of it, or without one the newest ``keep`` rows in memory.

    Raises UsageError, never in a group, for a file that cannot be used. Leaving the block writes what is waiting.
    """
    rows, last_id, keep = None, 0, keep if keep > 0 else DEFAULT_KEEP
    if path is not None:
        from appliance.store.activity_table import rows_in_file

        rows, last_id = await trio.to_thread.run_sync(rows_in_file, path, keep, busy_ms)
    activity = Activity(rows, last_id, keep, behind or WriteBehind())
    try:
        async with beside(partial(persist, "writing the activity log", activity.write)):
            yield activity
    finally:
        await activity.close()
