"""Opens the activity log's SQLite database: which files may be used, and their content.

The table, its indexes and its seconds are those that llama-swap 0bdb3720 writes, so a file of one serves the other.
Further columns have defaults: llama-swap and earlier versions of this program name theirs, and go on writing rows.
"""

from __future__ import annotations

import logging
import os
import shlex
import sqlite3
import sys
from collections.abc import Sequence
from glob import escape
from pathlib import Path

from msgspec import Struct

from appliance.errors import UsageError
from appliance.store.versions import restored

VERSION = 1
"""Kept in ``user_version``; a later program wrote a file with a higher one. llama-swap leaves it at 0."""

_SCHEMA = """
CREATE TABLE activity (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    ts_created INTEGER NOT NULL,
    model_id TEXT NOT NULL,
    req_path TEXT NOT NULL DEFAULT '',
    resp_content_type TEXT NOT NULL DEFAULT '',
    resp_status_code INTEGER NOT NULL DEFAULT 0,
    cache_tokens INTEGER NOT NULL DEFAULT 0,
    draft_tokens INTEGER NOT NULL DEFAULT 0,
    draft_acc_tokens INTEGER NOT NULL DEFAULT 0,
    input_tokens INTEGER NOT NULL DEFAULT 0,
    output_tokens INTEGER NOT NULL DEFAULT 0,
    prompt_per_second REAL NOT NULL DEFAULT 0,
    tokens_per_second REAL NOT NULL DEFAULT 0,
    duration_ms INTEGER NOT NULL DEFAULT 0,
    error_msg TEXT NOT NULL DEFAULT '',
    metadata_json TEXT NOT NULL DEFAULT ''
);
CREATE INDEX idx_activity_created_id ON activity (ts_created DESC, id DESC);
CREATE INDEX idx_activity_model_created_id ON activity (model_id, ts_created DESC, id DESC);
CREATE TABLE goose_db_version (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    version_id INTEGER NOT NULL,
    is_applied INTEGER NOT NULL,
    tstamp TIMESTAMP DEFAULT (datetime('now'))
);
INSERT INTO goose_db_version (version_id, is_applied) VALUES (0, 1), (1, 1);
"""
"""In the second table llama-swap notes which of its migrations a file has had; it refuses one with only the first."""

_ADDED = {
    "first_token_ms": "INTEGER NOT NULL DEFAULT -1",
    "client": "TEXT NOT NULL DEFAULT ''",
    "build": "TEXT NOT NULL DEFAULT ''",
    "conversation": "TEXT NOT NULL DEFAULT ''",
    "cache_miss": "TEXT NOT NULL DEFAULT ''",
    "again_tokens": "INTEGER NOT NULL DEFAULT 0",
}
"""Columns that llama-swap's table does not have. A file without them gets them when it is opened."""

_SPEED_INDEXES = """
CREATE INDEX IF NOT EXISTS idx_activity_prompt_speed ON activity (prompt_per_second) WHERE prompt_per_second > 0;
CREATE INDEX IF NOT EXISTS idx_activity_token_speed ON activity (tokens_per_second) WHERE tokens_per_second > 0;
"""
"""For the histograms of all models."""


class ActivityRow(Struct, array_like=True, frozen=True):
    """A row as the table has it."""

    id: int | None
    ts_created: int
    model_id: str
    req_path: str
    resp_content_type: str
    resp_status_code: int
    cache_tokens: int
    draft_tokens: int
    draft_acc_tokens: int
    input_tokens: int
    output_tokens: int
    prompt_per_second: float
    tokens_per_second: float
    duration_ms: int
    error_msg: str
    metadata_json: str
    first_token_ms: int
    client: str
    build: str
    conversation: str
    cache_miss: str
    again_tokens: int


COLUMNS = ActivityRow.__struct_fields__
log = logging.getLogger(__name__)

BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
"""The codes of an error that says that another program is at the file."""
PARTS = ("", "-wal", "-shm")
"""The suffixes of the files of a database."""


def open_memory() -> sqlite3.Connection:
    connection = _connect(":memory:")
    connection.executescript(_SCHEMA + _added(()) + _SPEED_INDEXES)
    return connection


def open_file(path: Path, busy_ms: int) -> sqlite3.Connection:
    """Open or create the file. Raises UsageError, with its name and the remedy, when it cannot be used."""
    _check_place(path)
    try:
        make_private(path)
        connection = _connect(str(path), busy_ms)
    except OSError as error:
        raise UsageError(f"store.path '{path}' cannot be made: {error.strerror or error}") from None
    except sqlite3.Error as error:
        raise unusable(path, error) from error
    try:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > VERSION:
            connection.close()
            if not restored(path, VERSION):
                raise UsageError(
                    f"store.path '{path}' was written by a later version of this program (schema {version}, this one "
                    f"knows {VERSION}); use that version, or name another file"
                )
            connection = _connect(str(path), busy_ms)
        _prepare(connection, path)
    except sqlite3.Error as error:
        connection.close()
        raise unusable(path, error) from error
    except UsageError:
        connection.close()
        raise
    return connection


def make_private(path: Path) -> None:
    """Have the file of a database, which only this user can read; SQLite gives the files beside it the same rights.

    A file or a copy (`store.versions`) that other users could read before is closed to them, with a line in the log,
    unless it belongs to one of them. Raises OSError.
    """
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    if sys.platform == "win32":
        return
    files = (*(path.with_name(f"{path.name}{part}") for part in PARTS), *path.parent.glob(f"{escape(path.name)}.v*"))
    for file in files:
        if file.is_file() and (found := file.stat()).st_mode & 0o077 and found.st_uid == os.geteuid():
            file.chmod(0o600)
            log.warning("%s could be read by other users; now only you can", file)


def _connect(name: str, busy_ms: int = 0) -> sqlite3.Connection:
    # Trio's worker threads come and go; the caller sees to it that they take turns.
    return sqlite3.connect(name, timeout=busy_ms / 1000, check_same_thread=False)


def _check_place(path: Path) -> None:
    shown = f"store.path '{path}'"
    if path == Path():
        raise UsageError("store.path is empty; name a file, or remove 'store' to keep the activity log in memory")
    if path.is_dir():
        raise UsageError(f"{shown} is a directory; name a file in it")
    if path.exists():
        if not path.is_file():
            raise UsageError(f"{shown} is not a regular file; name another one")
        if not os.access(path, os.R_OK | os.W_OK):
            raise UsageError(f"{shown} cannot be written; allow it for this user, or name another file")
    elif not path.parent.is_dir():
        raise UsageError(f"{shown}: the directory '{path.parent}' does not exist; create it, or name another file")
    elif not os.access(path.parent, os.W_OK | os.X_OK):
        raise UsageError(f"{shown}: the directory '{path.parent}' cannot be written; allow it, or name another file")


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")  # a power cut may cost the last rows, never the file
    with connection:
        connection.execute("BEGIN IMMEDIATE")  # another process may open the file now, and add the same columns
        columns = [row[1] for row in connection.execute("PRAGMA table_info(activity)")]
        missing = [name for name in COLUMNS if name not in columns and name not in _ADDED]
        if columns and missing:
            raise UsageError(
                f"store.path '{path}' is a database with another table named activity (it has no "
                f"{', '.join(missing)}); name another file"
            )
        table = "" if columns else _SCHEMA
        _fill(connection, f"{table}{_added(columns)}{_SPEED_INDEXES}PRAGMA user_version = {VERSION};")


def _added(columns: Sequence[str]) -> str:
    """Return the statements that add the columns of ours that a table with these has not got."""
    missing = ((name, kind) for name, kind in _ADDED.items() if name not in columns)
    return "".join(f"ALTER TABLE activity ADD COLUMN {name} {kind};" for name, kind in missing)


def _fill(connection: sqlite3.Connection, script: str) -> None:
    """Run the statements, in the transaction that is open: `executescript` would end it."""
    for statement in script.split(";"):
        connection.execute(statement)


def unusable(path: Path, error: sqlite3.Error) -> UsageError:
    """Return what is wrong with the file, with the command that helps."""
    if getattr(error, "sqlite_errorcode", None) in BUSY:
        advice = "another program holds it; stop that program, or name another file"
    else:
        advice = f"name another file, or {set_aside(path)}"
    return UsageError(f"store.path '{path}' cannot be used as an SQLite database: {error}; {advice}")


def set_aside(path: Path) -> str:
    """Return the advice to move a damaged database away, with what belongs to it."""
    beside = f"{path}.damaged"
    if sys.platform == "win32":  # the same words for cmd and PowerShell
        files = " ".join(f'"{path.name}{suffix}"' for suffix in PARTS)
        return f'set it aside: robocopy "{path.parent}" "{beside}" {files} /mov'
    files = " ".join(shlex.quote(f"{path}{suffix}") for suffix in PARTS)
    return f"set it aside: mkdir {shlex.quote(beside)}; mv {files} {shlex.quote(beside)}"
