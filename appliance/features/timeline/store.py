"""The timeline in SQLite, in the activity log's file, or without one in memory.

No task waits for the disk: entries queue up, and a worker thread writes them. Every question writes the waiting ones
first. In memory nothing else does, or opens SQLite: entries that nobody asks for are worth neither.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import trio
from msgspec import structs

from appliance.core.followers import Followers
from appliance.core.records.history import Happening, HistoryQuery, Tell
from appliance.store.activity import DEFAULT_KEEP
from appliance.trio_parts import WriteBehind, beside, persist

if TYPE_CHECKING:
    from appliance.features.timeline.table import HistoryTable

MAX_WAITING = 10_000
"""Entries not yet written to a file. More than that wait only while the disk stands still; the oldest are then lost."""
T = TypeVar("T")
log = logging.getLogger(__name__)


class History:
    """Made by `open_history`."""

    def __init__(self, table: HistoryTable | None, keep: int) -> None:
        self._table = table
        """None: in memory, and nobody has asked yet."""
        self._in_file = table is not None
        self._last_id: int = table.written if table is not None else 0
        self._keep = keep
        self._waiting: list[Happening] = []
        self._followers = Followers[Tell]()
        self.follow = self._followers.follow
        self._behind = WriteBehind()

    def add(self, happening: Happening) -> None:
        """Put it into the timeline, now; this neither blocks nor raises."""
        self._last_id += 1
        entry = structs.replace(happening, id=self._last_id, timestamp=datetime.now(UTC))
        self._waiting.append(entry)
        most = MAX_WAITING if self._in_file else self._keep
        if len(self._waiting) >= 2 * most:
            del self._waiting[:-most]
        if self._in_file:
            self._behind.wake()
        for on_entry in self._followers.calls:
            on_entry(entry)

    async def read(self, query: HistoryQuery) -> list[Happening]:
        """Return entries, the oldest first. Raises Busy where the file cannot be read now."""

        def answer() -> list[Happening]:
            if self._table is None:
                from appliance.features.timeline.table import HistoryTable

                self._table = HistoryTable(None, self._keep)
            return self._table.read(tuple(self._waiting), query)

        return await self._in_turn(answer)

    async def write(self) -> None:
        """Write entries as they come, until cancelled."""
        if (table := self._table) is not None:
            await self._behind.run(partial(self._in_turn, partial(self._attempt, table)))

    async def close(self) -> None:
        """Write what is waiting, and close the file."""
        if (table := self._table) is None:
            return

        def finish() -> None:
            if self._in_file:
                self._attempt(table)
            table.close()

        await self._behind.finish(finish)

    async def _in_turn(self, work: Callable[[], T]) -> T:
        try:
            return await self._behind.in_turn(work)
        finally:  # only the loop changes what is waiting: `add` may be called while entries are written
            written = self._table.written if self._table is not None else 0
            self._waiting = [entry for entry in self._waiting if entry.id > written]

    def _attempt(self, table: HistoryTable) -> bool:
        """In the worker thread. False if it did not work, and the entries still wait."""
        return table.attempt(tuple(self._waiting))


@asynccontextmanager
async def open_history(path: Path | None, keep: int) -> AsyncGenerator[History]:
    """The timeline in this file, which the activity log has opened before; without one the newest ``keep`` entries.

    Raises UsageError, never in a group, for a file that cannot be used. Leaving the block writes what is waiting.
    """
    keep, table = keep if keep > 0 else DEFAULT_KEEP, None
    if path is not None:
        from appliance.features.timeline.table import HistoryTable

        table = await trio.to_thread.run_sync(HistoryTable, path, keep)
    history = History(table, keep)
    try:
        async with beside(partial(persist, "writing the timeline", history.write)):
            yield history
    finally:
        await history.close()
