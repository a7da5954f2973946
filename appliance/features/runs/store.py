"""Agent runs in SQLite, in the activity log's file: one row for each run, its record as JSON.

No task waits for the disk: records queue up, only the newest of each run, and a worker thread writes them.
A disk that fails costs the stored runs, with a warning, and nothing else.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import trio

from appliance.store.activity_schema import unusable
from appliance.trio_parts import WriteBehind, beside, persist

log = logging.getLogger(__name__)

BUSY_MS = 2000
_SCHEMA = """
CREATE TABLE IF NOT EXISTS agent_runs (id TEXT PRIMARY KEY, created REAL NOT NULL, record BLOB NOT NULL);
"""


class RunStore:
    """Made by `open_run_store`. ``stored`` is the earlier content, oldest first."""

    def __init__(self, connection: sqlite3.Connection, stored: list[bytes], path: Path) -> None:
        self.stored = stored
        self._connection = connection
        self._path = path
        self._waiting: dict[str, tuple[float, bytes] | None] = {}
        self._behind = WriteBehind()
        self._failing = False

    def save(self, run_id: str, created: float, record: bytes) -> None:
        self._waiting[run_id] = (created, record)
        self._behind.wake()

    def forget(self, run_id: str) -> None:
        self._waiting[run_id] = None
        self._behind.wake()

    async def write(self) -> None:
        """Write rows as they come, until cancelled."""
        await self._behind.run(self._write_waiting)

    async def close(self) -> None:
        """Write waiting rows and close the file."""

        def finish() -> None:
            self._write(self._waiting)
            self._connection.close()

        await self._behind.finish(finish)

    async def _write_waiting(self) -> bool:
        """Return False if it did not work, and the rows still wait."""
        batch, self._waiting = self._waiting, {}
        written = False
        try:
            written = await self._behind.in_turn(partial(self._write, batch))
        finally:
            if not written:
                self._waiting = {**batch, **self._waiting}
        return written

    def _write(self, batch: Mapping[str, tuple[float, bytes] | None]) -> bool:
        """Write rows in the worker thread, one call at a time; True if that worked."""
        gone = [(run_id,) for run_id, row in batch.items() if row is None]
        rows = [(run_id, *row) for run_id, row in batch.items() if row is not None]
        try:
            with self._connection:
                self._connection.executemany("DELETE FROM agent_runs WHERE id = ?", gone)
                self._connection.executemany("INSERT OR REPLACE INTO agent_runs VALUES (?, ?, ?)", rows)
        except sqlite3.Error as error:
            if not self._failing:
                log.warning("agent runs cannot be written to '%s' (%s); trying again", self._path, error)
            self._failing = True
            return False
        self._failing = False
        return True


@asynccontextmanager
async def open_run_store(path: Path) -> AsyncGenerator[RunStore]:
    """Open the runs in this file, which the activity log has opened before.

    Raises UsageError, never in a group, for a file that cannot be used. Leaving the block writes waiting rows.
    """
    store = RunStore(*await trio.to_thread.run_sync(_open, path), path)
    try:
        async with beside(partial(persist, "writing runs down", store.write)):
            yield store
    finally:
        await store.close()


def _open(path: Path) -> tuple[sqlite3.Connection, list[bytes]]:
    try:
        connection = sqlite3.connect(path, timeout=BUSY_MS / 1000, check_same_thread=False)
    except sqlite3.Error as error:
        raise unusable(path, error) from error
    try:
        connection.executescript(_SCHEMA)
        found = connection.execute("SELECT record FROM agent_runs ORDER BY created").fetchall()
    except sqlite3.Error as error:
        connection.close()
        raise unusable(path, error) from error
    return connection, [bytes(record) for (record,) in found]
