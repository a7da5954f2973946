"""The timeline in SQLite, in the activity log's file, or without one in memory.

No task waits for the disk: entries queue up, and a worker thread writes them. Every question writes the waiting ones
first. In memory nothing else does, because entries that nobody asks for are worth no statement.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
import trio
from msgspec import structs

from appliance.core.followers import Followers
from appliance.core.records.history import Happening, HistoryQuery, Tell
from appliance.errors import Busy
from appliance.store.activity import DEFAULT_KEEP
from appliance.store.activity_schema import BUSY_MS, unusable
from appliance.trio_parts import WriteBehind, beside, persist

MAX_WAITING = 10_000
"""Entries not yet written to a file. More than that wait only while the disk stands still; the oldest are then lost."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS history (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    at REAL NOT NULL,
    kind TEXT NOT NULL,
    model TEXT NOT NULL,
    made_room_for TEXT NOT NULL,
    entry BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS idx_history_at ON history (at);
CREATE INDEX IF NOT EXISTS idx_history_model ON history (model, id);
"""
T = TypeVar("T")
log = logging.getLogger(__name__)
_decode = msgspec.json.Decoder(Happening).decode


class History:
    """Made by `open_history`."""

    def __init__(self, connection: sqlite3.Connection, path: Path | None, keep: int) -> None:
        (self._last_id,) = connection.execute("SELECT COALESCE(MAX(id), 0) FROM history").fetchone()
        self._connection = connection
        self._path = path
        self._keep = keep
        self._waiting: list[Happening] = []
        self._followers = Followers[Tell]()
        self.follow = self._followers.follow
        self._written: int = self._last_id
        """The id of the last entry that is in the table."""
        self._failing = False
        self._behind = WriteBehind()

    def add(self, happening: Happening) -> None:
        """Put it into the timeline, now; this neither blocks nor raises."""
        self._last_id += 1
        entry = structs.replace(happening, id=self._last_id, timestamp=datetime.now(UTC))
        self._waiting.append(entry)
        most = self._keep if self._path is None else MAX_WAITING
        if len(self._waiting) >= 2 * most:
            del self._waiting[:-most]
        if self._path is not None:
            self._behind.wake()
        for on_entry in self._followers.calls:
            on_entry(entry)

    async def read(self, query: HistoryQuery) -> list[Happening]:
        """Return entries, the oldest first. Raises Busy where the file cannot be read now."""

        def answer() -> list[Happening]:
            try:
                self._write()
                return _select(self._connection, query)
            except sqlite3.Error as error:
                raise Busy(f"the timeline in '{self._path}' cannot be read now ({error}); try again") from error

        return await self._in_turn(answer)

    async def write(self) -> None:
        """Write entries as they come, until cancelled."""
        await self._behind.run(lambda: self._in_turn(self._attempt))

    async def close(self) -> None:
        """Write what is waiting, and close the file."""

        def finish() -> None:
            if self._path is not None:
                self._attempt()
            self._connection.close()

        await self._behind.finish(finish)

    async def _in_turn(self, work: Callable[[], T]) -> T:
        try:
            return await self._behind.in_turn(work)
        finally:  # only the loop changes what is waiting: `add` may be called while entries are written
            self._waiting = [entry for entry in self._waiting if entry.id > self._written]

    # ---- in the worker thread, one at a time ----

    def _attempt(self) -> bool:
        """False if it did not work, and the entries still wait."""
        try:
            self._write()
        except sqlite3.Error as error:
            if not self._failing:
                log.warning("the timeline cannot be written to '%s' (%s); trying again", self._path, error)
            self._failing = True
            return False
        self._failing = False
        return True

    def _write(self) -> None:
        entries = [entry for entry in tuple(self._waiting) if entry.id > self._written]
        if not entries:
            return
        with self._connection:
            # Another program that writes to the same file may have used an id. Such an entry gets the next one.
            self._connection.executemany(
                "INSERT INTO history VALUES"
                " ((SELECT CASE WHEN EXISTS (SELECT 1 FROM history WHERE id = ?1) THEN NULL ELSE ?1 END),"
                " ?2, ?3, ?4, ?5, ?6)",
                [_stored(entry) for entry in entries],
            )
            if self._path is None:
                kept = "SELECT id FROM history ORDER BY id DESC LIMIT 1 OFFSET ?"
                self._connection.execute(f"DELETE FROM history WHERE id <= ({kept})", (self._keep,))
        self._written = entries[-1].id


@asynccontextmanager
async def open_history(path: Path | None, keep: int) -> AsyncGenerator[History]:
    """The timeline in this file, which the activity log has opened before; without one the newest ``keep`` entries.

    Raises UsageError, never in a group, for a file that cannot be used. Leaving the block writes what is waiting.
    """
    history = History(await trio.to_thread.run_sync(_open, path), path, keep if keep > 0 else DEFAULT_KEEP)
    try:
        async with beside(partial(persist, "writing the timeline", history.write)):
            yield history
    finally:
        await history.close()


def _open(path: Path | None) -> sqlite3.Connection:
    try:
        connection = sqlite3.connect(path or ":memory:", timeout=BUSY_MS / 1000, check_same_thread=False)
    except sqlite3.Error as error:
        raise unusable(path or Path(), error) from error
    try:
        connection.executescript(_SCHEMA)
    except sqlite3.Error as error:
        connection.close()
        raise unusable(path or Path(), error) from error
    return connection


def _stored(entry: Happening) -> tuple[object, ...]:
    made_room_for = entry.cause.by if entry.cause is not None else ""
    at = entry.timestamp.timestamp()
    return entry.id, at, entry.kind, entry.model, made_room_for, msgspec.json.encode(entry)


def _select(connection: sqlite3.Connection, query: HistoryQuery) -> list[Happening]:
    conditions, values = ["1"], list[object]()
    if query.models:
        places = ", ".join("?" * len(query.models))
        conditions.append(f"(model IN ({places}) OR made_room_for IN ({places}))")
        values += [*query.models, *query.models]
    if query.kinds:
        conditions.append(f"kind IN ({', '.join('?' * len(query.kinds))})")
        values += query.kinds
    start = query.start.timestamp() if query.start is not None else None
    for bound, condition in ((query.after, "id > ?"), (query.before, "id < ?"), (start, "at >= ?")):
        if bound is not None:
            conditions.append(condition)
            values.append(bound)
    order = "ASC" if query.from_oldest else "DESC"
    found = connection.execute(
        f"SELECT id, entry FROM history WHERE {' AND '.join(conditions)} ORDER BY id {order} LIMIT ?",
        (*values, query.limit),
    ).fetchall()
    entries = [entry for number, stored in found if (entry := _read(number, stored)) is not None]
    return entries if query.from_oldest else entries[::-1]


def _read(number: int, stored: bytes) -> Happening | None:
    """None for what a later version of the program wrote, and this one has no word for."""
    try:
        return structs.replace(_decode(stored), id=number)
    except msgspec.ValidationError:
        return None
