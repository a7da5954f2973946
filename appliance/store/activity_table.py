"""The activity log's table in SQLite: synchronous, for a thread.

Only an owner that has something to write or to ask imports this: SQLite takes 1.8 MB of a server at rest.
"""

from __future__ import annotations

import logging
import math
import sqlite3
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import UNSET, structs

from appliance.core.records.activity import (
    CLIENT_LEFT,
    ActivityPage,
    EndedRequests,
    Query,
    Row,
    SortKey,
    Stats,
    Tokens,
    histogram,
    pages,
)
from appliance.errors import Busy
from appliance.store.activity_schema import BUSY, COLUMNS, ActivityRow, open_file, open_memory, unusable

_LISTED = ", ".join(COLUMNS)
_INSERT = f"INSERT INTO activity ({_LISTED}) VALUES ({', '.join('?' * len(COLUMNS))})"

_SORT_COLUMN: dict[SortKey, str] = {
    "id": "id",
    "time": "ts_created",
    "model": "model_id",
    "req_path": "req_path",
    "resp_status_code": "resp_status_code",
    "resp_content_type": "resp_content_type",
    "cached": "cache_tokens",
    "prompt": "input_tokens",
    "generated": "output_tokens",
    "drafted": "draft_tokens",
    "prompt_speed": "prompt_per_second",
    "gen_speed": "tokens_per_second",
    "duration": "duration_ms",
}

_SEARCHED = ("model_id", "req_path", "error_msg", "metadata_json")
MAX_TEXT = 2000
"""Longest text in a row, in characters."""

MOST_ROWS = (1 << 63) - 1
"""SQLite counts with 64 bits; a client may ask for a later page."""

_Value = int | float | str
_T = TypeVar("_T")
_metadata = msgspec.json.Decoder(dict[str, str]).decode
log = logging.getLogger(__name__)


class ActivityRows:
    """The table in a file or, without one and from the moment on in which the disk fails, in memory."""

    def __init__(self, table: ActivityTable, path: Path | None, keep: int) -> None:
        self.table = table
        self.path = path  # None: in memory
        self._keep = keep

    def write(self, rows: Sequence[Row]) -> bool:
        """Add all of the rows; False, and none, while another program has locked the file."""
        try:
            self.table.add(rows)
        except sqlite3.Error as error:
            if self.path is None:
                raise
            if error.sqlite_errorcode in BUSY:
                return False
            self._leave_file(self.path, error)
            self.table.add(rows)
        return True

    def ask(self, question: Callable[[ActivityTable], _T]) -> _T:
        """Raises Busy while another program has locked the file."""
        try:
            return question(self.table)
        except sqlite3.Error as error:
            if self.path is None:
                raise
            if error.sqlite_errorcode in BUSY:
                raise Busy(f"the activity log '{self.path}' is locked by another program; try again") from error
            self._leave_file(self.path, error)
            return question(self.table)

    def _leave_file(self, path: Path, error: sqlite3.Error) -> None:
        """The disk is full or broken: serve from memory from here on, with the newest rows that can still be read."""
        log.warning(
            "the activity log cannot be written to '%s' (%s); it is kept in memory until the program is restarted",
            path,
            error,
        )
        memory = ActivityTable(open_memory(), self._keep)
        try:
            memory.add(self.table.newest(self._keep))
            self.table.close()
        except sqlite3.Error:
            log.warning("the rows that '%s' has already are not shown", path)
        self.table, self.path = memory, None


def rows_in_memory(keep: int) -> ActivityRows:
    return ActivityRows(ActivityTable(open_memory(), keep), None, keep)


def rows_in_file(path: Path, keep: int, busy_ms: int) -> tuple[ActivityRows, int]:
    """Return the rows and the highest id of them. Raises UsageError."""
    table = ActivityTable(open_file(path, busy_ms), None)
    try:
        return ActivityRows(table, path, keep), table.last_id()
    except sqlite3.Error as error:  # a page of it is damaged
        table.close()
        raise unusable(path, error) from error


class ActivityTable:
    """One connection. Methods raise sqlite3.Error; none may run while another one does."""

    def __init__(self, connection: sqlite3.Connection, keep: int | None) -> None:
        self.connection = connection
        self._keep = keep
        """Number of newest rows that stay; None keeps all."""
        self.taken_by_others = 0
        """The highest id after another process was found to write to the same file; 0 if none was."""

    def close(self) -> None:
        self.connection.close()

    def last_id(self) -> int:
        """Return the highest id that was ever given, so that none is given twice even when its row is gone."""
        (last,) = self.connection.execute(
            "SELECT MAX((SELECT COALESCE(MAX(id), 0) FROM activity),"
            " (SELECT COALESCE(MAX(seq), 0) FROM sqlite_sequence WHERE name = 'activity'))"
        ).fetchone()
        return int(last)

    def add(self, rows: Sequence[Row]) -> None:
        """Add all of the rows or, when it raises, none."""
        with self.connection:
            try:
                self.connection.executemany(_INSERT, [_stored(row, row.id) for row in rows])
            except sqlite3.IntegrityError:
                # Another process writes to this file and has used one of the ids: these rows get other ones.
                self.connection.rollback()
                self.connection.executemany(_INSERT, [_stored(row, None) for row in rows])
                self.taken_by_others = self.last_id()
            if self._keep is not None:
                self.connection.execute(
                    "DELETE FROM activity WHERE id <= (SELECT id FROM activity ORDER BY id DESC LIMIT 1 OFFSET ?)",
                    (self._keep,),
                )

    def page(self, query: Query) -> ActivityPage:
        where, values = _where(query)
        (total,) = self.connection.execute(f"SELECT COUNT(*) FROM activity{where}", values).fetchone()
        return ActivityPage(
            data=self.rows(query),
            page=query.page,
            limit=query.limit,
            total=total,
            total_pages=pages(total, query.limit),
        )

    def rows(self, query: Query) -> tuple[Row, ...]:
        """Return the rows of a page, without a count of all that there are: that takes longer the more there are."""
        where, values = _where(query)
        column, order = _SORT_COLUMN[query.sort], "ASC" if query.order == "asc" else "DESC"
        offset = min((query.page - 1) * query.limit, MOST_ROWS)
        rows = self.connection.execute(
            f"SELECT {_LISTED} FROM activity{where} ORDER BY {column} {order}, id {order} LIMIT ? OFFSET ?",
            (*values, query.limit, offset),
        )
        return tuple(map(_row, rows))

    def last_used(self) -> dict[str, datetime]:
        """Return the time of the newest row of each model."""
        found = self.connection.execute("SELECT model_id, MAX(ts_created) FROM activity GROUP BY model_id")
        return {model: datetime.fromtimestamp(seconds, UTC) for model, seconds in found}

    def newest(self, count: int) -> list[Row]:
        """Return them in the order in which they were added."""
        rows = self.connection.execute(f"SELECT {_LISTED} FROM activity ORDER BY id DESC LIMIT ?", (count,)).fetchall()
        return [_row(row) for row in reversed(rows)]

    def stats(self, models: Sequence[str]) -> Stats:
        """Compute totals and histograms in SQLite: however many rows there are, few numbers come back."""
        where, values = _where(Query(models=tuple(models)))
        total, *sums = self.connection.execute(
            "SELECT COUNT(*), SUM(MAX(input_tokens, 0)), SUM(MAX(output_tokens, 0)), SUM(MAX(cache_tokens, 0))"
            f" FROM activity{where}",
            values,
        ).fetchone()
        input_tokens, output_tokens, cache_tokens = (int(number or 0) for number in sums)
        return Stats(
            total_requests=total,
            total_input_tokens=input_tokens,
            total_output_tokens=output_tokens,
            total_cache_tokens=cache_tokens,
            prompt_histogram=histogram(_Column(self.connection, "prompt_per_second", where, values)),
            gen_histogram=histogram(_Column(self.connection, "tokens_per_second", where, values)),
        )

    def failures(self, since: float) -> tuple[EndedRequests, ...]:
        """Return the requests of each model that had any failed or refused one since a Unix time, the worst first."""
        found = self.connection.execute(
            # SQLite takes the error from the row of MAX.
            "SELECT model_id, COUNT(*), SUM(failed), SUM(NOT failed AND error != ''),"
            " MAX(CASE WHEN error != '' THEN id END), error FROM ("
            "   SELECT id, model_id, resp_status_code >= 500 OR (resp_status_code < 400 AND error_msg != '') AS failed,"
            "   CASE WHEN resp_status_code >= 400 THEN resp_status_code || ' ' ELSE '' END || error_msg AS error"
            f"   FROM activity WHERE ts_created >= ? AND resp_status_code != {CLIENT_LEFT}"
            ") GROUP BY model_id HAVING SUM(error != '') > 0 ORDER BY 3 DESC, 4 DESC, 1",
            (since,),
        )
        return tuple(
            EndedRequests(model=model, ended=ended, failed=failed, refused=refused, last=last)
            for model, ended, failed, refused, _, last in found
        )


class _Column:
    """The positive values of a speed column, for ``core.records.activity.histogram``."""

    def __init__(self, connection: sqlite3.Connection, column: str, where: str, values: tuple[_Value, ...]) -> None:
        self._connection = connection
        self._column = column
        self._from = f"FROM activity{where}{' AND' if where else ' WHERE'} {column} > 0"
        self._values = values
        (self.count,) = connection.execute(f"SELECT COUNT(*) {self._from}", values).fetchone()

    def at(self, ranks: Sequence[int]) -> list[float]:
        # One pass for all ranks: with a model's rows alone each pass would have to sort them.
        statement = (
            f"SELECT place, value FROM (SELECT {self._column} AS value, ROW_NUMBER() OVER (ORDER BY {self._column}) - 1"
            f" AS place {self._from}) WHERE place IN ({', '.join('?' * len(ranks))})"
        )
        found = dict(self._connection.execute(statement, (*self._values, *ranks)).fetchall())
        return [float(found[rank]) for rank in ranks]

    def binned(self, low: float, width: float, bins: int) -> list[int]:
        statement = (
            f"SELECT MIN(CAST(({self._column} - ?) / ? AS INTEGER), ?) AS bin, COUNT(*) {self._from} GROUP BY bin"
        )
        counts = dict(self._connection.execute(statement, (low, width, bins - 1, *self._values)).fetchall())
        return [counts.get(number, 0) for number in range(bins)]


def _stored(row: Row, number: int | None) -> tuple[object, ...]:
    """Return a row as the table has it; without a number the table gives one."""
    metadata = {_text(key): _text(value) for key, value in row.metadata.items()} if row.metadata else None
    return structs.astuple(
        ActivityRow(
            id=number,
            ts_created=int(row.timestamp.timestamp()),
            model_id=_text(row.model),
            req_path=_text(row.req_path),
            resp_content_type=_text(row.resp_content_type),
            resp_status_code=row.resp_status_code,
            duration_ms=row.duration_ms,
            error_msg=_text(row.error_msg or ""),
            metadata_json=msgspec.json.encode(metadata).decode() if metadata else "",
            first_token_ms=row.first_token_ms,
            client=_text(row.client),
            build=row.build,
            conversation=_text(row.conversation),
            cache_miss=row.cache_miss,
            again_tokens=row.again_tokens,
            **structs.asdict(row.tokens),
        )
    )


def _text(text: str) -> str:
    """A client's name may contain half a character, which no database takes, and be as long as a book."""
    return text if text.isascii() and len(text) <= MAX_TEXT else text[:MAX_TEXT].encode("utf-8", "replace").decode()


def _row(values: object) -> Row:
    stored = msgspec.convert(values, ActivityRow)
    metadata = stored.metadata_json
    return Row(
        id=stored.id or 0,
        timestamp=datetime.fromtimestamp(stored.ts_created, UTC),
        model=stored.model_id,
        req_path=stored.req_path,
        resp_content_type=stored.resp_content_type,
        resp_status_code=stored.resp_status_code,
        tokens=Tokens(
            cache_tokens=stored.cache_tokens,
            draft_tokens=stored.draft_tokens,
            draft_acc_tokens=stored.draft_acc_tokens,
            input_tokens=stored.input_tokens,
            output_tokens=stored.output_tokens,
            prompt_per_second=stored.prompt_per_second,
            tokens_per_second=stored.tokens_per_second,
        ),
        duration_ms=stored.duration_ms,
        error_msg=stored.error_msg or UNSET,
        metadata=_metadata(metadata) if metadata else UNSET,
        first_token_ms=stored.first_token_ms,
        client=stored.client,
        build=stored.build,
        conversation=stored.conversation,
        cache_miss=stored.cache_miss,
        again_tokens=stored.again_tokens,
    )


def _where(query: Query) -> tuple[str, tuple[_Value, ...]]:
    conditions: list[str] = []
    values: list[_Value] = []
    if query.models:
        conditions.append(f"model_id IN ({', '.join('?' * len(query.models))})")
        values += query.models
    for bound, condition in ((query.start, "ts_created >= ?"), (query.end, "ts_created <= ?")):
        if bound is not None:
            conditions.append(condition)
            values.append(math.floor(bound.timestamp()))
    for bound, condition in ((query.min_id, "id >= ?"), (query.max_id, "id <= ?")):
        if bound is not None:
            conditions.append(condition)
            values.append(bound)
    if query.failed:
        conditions.append("(resp_status_code >= 400 OR error_msg != '')")
    if query.search:
        conditions.append(f"({' OR '.join(f'instr(lower({column}), lower(?))' for column in _SEARCHED)})")
        values += [query.search] * len(_SEARCHED)
    return (" WHERE " + " AND ".join(conditions) if conditions else ""), tuple(values)
