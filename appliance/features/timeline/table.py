"""The timeline's table in SQLite: synchronous, for a thread."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import structs

from appliance.core.records.history import Happening, HistoryQuery
from appliance.errors import Busy
from appliance.store.activity import BUSY_MS
from appliance.store.activity_schema import unusable

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
log = logging.getLogger(__name__)
_decode = msgspec.json.Decoder(Happening).decode


class HistoryTable:
    """Holds the newest ``keep`` entries, or in a file all of them. Raises UsageError for a file that cannot be used."""

    def __init__(self, path: Path | None, keep: int) -> None:
        self._path = path
        self._keep = keep
        self._failing = False
        try:
            self._connection = sqlite3.connect(path or ":memory:", timeout=BUSY_MS / 1000, check_same_thread=False)
        except sqlite3.Error as error:
            raise unusable(path or Path(), error) from error
        try:
            self._connection.executescript(_SCHEMA)
            (last,) = self._connection.execute("SELECT COALESCE(MAX(id), 0) FROM history").fetchone()
        except sqlite3.Error as error:
            self._connection.close()
            raise unusable(path or Path(), error) from error
        self.written = int(last)
        """The id of the last entry that is in the table."""

    def close(self) -> None:
        self._connection.close()

    def attempt(self, entries: Sequence[Happening]) -> bool:
        """Write those that are new; False, and none, where that cannot be done now. The log says the first failure."""
        try:
            self._write(entries)
        except sqlite3.Error as error:
            if not self._failing:
                log.warning("the timeline cannot be written to '%s' (%s); trying again", self._path, error)
            self._failing = True
            return False
        self._failing = False
        return True

    def read(self, entries: Sequence[Happening], query: HistoryQuery) -> list[Happening]:
        """Write ``entries``, and return those that are asked for, the oldest first. Raises Busy."""
        try:
            self._write(entries)
            return self._select(query)
        except sqlite3.Error as error:
            raise Busy(f"the timeline in '{self._path}' cannot be read now ({error}); try again") from error

    def _write(self, entries: Sequence[Happening]) -> None:
        entries = [entry for entry in entries if entry.id > self.written]
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
        self.written = entries[-1].id

    def _select(self, query: HistoryQuery) -> list[Happening]:
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
        found = self._connection.execute(
            f"SELECT id, entry FROM history WHERE {' AND '.join(conditions)} ORDER BY id {order} LIMIT ?",
            (*values, query.limit),
        ).fetchall()
        entries = [entry for number, stored in found if (entry := _read(number, stored)) is not None]
        return entries if query.from_oldest else entries[::-1]


def _stored(entry: Happening) -> tuple[object, ...]:
    made_room_for = entry.cause.by if entry.cause is not None else ""
    at = entry.timestamp.timestamp()
    return entry.id, at, entry.kind, entry.model, made_room_for, msgspec.json.encode(entry)


def _read(number: int, stored: bytes) -> Happening | None:
    """None for what a later version of the program wrote, and this one has no word for."""
    try:
        return structs.replace(_decode(stored), id=number)
    except msgspec.ValidationError:
        return None
