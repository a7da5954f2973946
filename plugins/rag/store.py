"""The index of one set of folders: an SQLite file of files, their chunks, and the chunks' vectors by model.

Blocks; call it in a thread. Every call opens and closes its own connection, so that no thread inherits one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from .chunks import Chunk
from .files import Found

SCHEMA = """
CREATE TABLE IF NOT EXISTS files (
    id INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE, name TEXT NOT NULL, size INTEGER NOT NULL,
    mtime_ns INTEGER NOT NULL, hash TEXT NOT NULL, recipe TEXT NOT NULL, left_out TEXT
);
CREATE TABLE IF NOT EXISTS chunks (
    id INTEGER PRIMARY KEY, file INTEGER NOT NULL REFERENCES files (id) ON DELETE CASCADE,
    heading TEXT NOT NULL, line INTEGER NOT NULL, text TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS chunks_of_file ON chunks (file);
CREATE TABLE IF NOT EXISTS vectors (
    chunk INTEGER NOT NULL REFERENCES chunks (id) ON DELETE CASCADE, model TEXT NOT NULL, vector BLOB NOT NULL,
    PRIMARY KEY (model, chunk)
);
CREATE INDEX IF NOT EXISTS vectors_of_chunk ON vectors (chunk);
"""
LOCK_WAIT = 30.0
"""Seconds to wait for another request's transaction; each writes one file or one batch."""


@dataclass(frozen=True, kw_only=True)
class Known:
    """The index's record of a file. ``recipe`` says how it was cut into chunks."""

    id: int
    size: int
    mtime_ns: int
    hash: str
    recipe: str


@dataclass(frozen=True, kw_only=True)
class Passage:
    """A chunk as it is shown."""

    name: str
    heading: str
    line: int
    text: str


@dataclass(frozen=True, kw_only=True)
class Counts:
    files: int
    left_out: dict[str, int]
    """Files without text, by reason."""
    chunks: int
    embedded: int


class Damaged(Exception):
    """The file is not an index, or not a complete one."""


class Unusable(Exception):
    """The index cannot be read or written at this moment: the disk is full, or somebody else uses it."""


class Store:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    def files(self) -> dict[str, Known]:
        """Return every file of the index by its path."""
        rows = self._db.execute("SELECT path, id, size, mtime_ns, hash, recipe FROM files")
        return {path: Known(id=i, size=s, mtime_ns=m, hash=h, recipe=r) for path, i, s, m, h, r in rows}

    def touch(self, file: int, found: Found) -> None:
        """The file has new times and the same content."""
        with self._db:
            self._db.execute(
                "UPDATE files SET size = ?, mtime_ns = ?, name = ? WHERE id = ?",
                (found.size, found.mtime_ns, found.name, file),
            )

    def put(self, found: Found, digest: str, recipe: str, cut: Iterable[Chunk], left_out: str | None = None) -> None:
        """Replace a file and its chunks in one step; a chunk whose text was there before keeps its vectors."""
        with self._db:
            kept = self._vectors_by_text(found.path)
            self._db.execute("DELETE FROM files WHERE path = ?", (found.path,))
            file = self._db.execute(
                "INSERT INTO files (path, name, size, mtime_ns, hash, recipe, left_out) VALUES (?, ?, ?, ?, ?, ?, ?)",
                (found.path, found.name, found.size, found.mtime_ns, digest, recipe, left_out),
            ).lastrowid
            for piece in cut:
                chunk = self._db.execute(
                    "INSERT INTO chunks (file, heading, line, text) VALUES (?, ?, ?, ?)",
                    (file, piece.heading, piece.line, piece.text),
                ).lastrowid
                vectors = [
                    (chunk, model, vector) for model, vector in kept.get((piece.heading, piece.text), {}).items()
                ]
                self._db.executemany("INSERT INTO vectors (chunk, model, vector) VALUES (?, ?, ?)", vectors)

    def _vectors_by_text(self, path: str) -> dict[tuple[str, str], dict[str, bytes]]:
        rows = self._db.execute(
            "SELECT heading, text, model, vector FROM files JOIN chunks ON file = files.id "
            "JOIN vectors ON chunk = chunks.id WHERE path = ?",
            (path,),
        )
        kept: dict[tuple[str, str], dict[str, bytes]] = {}
        for heading, text, model, vector in rows:
            kept.setdefault((heading, text), {})[model] = vector
        return kept

    def remove(self, files: Iterable[int]) -> None:
        with self._db:
            self._db.executemany("DELETE FROM files WHERE id = ?", [(file,) for file in files])

    def chunk_count(self) -> int:
        return self._db.execute("SELECT count(*) FROM chunks").fetchone()[0]

    def unembedded(self, model: str, count: int) -> list[tuple[int, str]]:
        """Return up to ``count`` chunks without a vector of ``model``: the id, and the text under its heading."""
        rows = self._db.execute(
            "SELECT id, heading, line, text FROM chunks WHERE NOT EXISTS "
            "(SELECT 1 FROM vectors WHERE model = ? AND chunk = chunks.id) ORDER BY id LIMIT ?",
            (model, count),
        )
        return [(i, Chunk(heading=heading, line=line, text=text).embedded) for i, heading, line, text in rows]

    def add_vectors(self, model: str, vectors: Sequence[tuple[int, bytes]]) -> None:
        """Add vectors of chunks by id. A chunk that has been deleted meanwhile is skipped."""
        with self._db:
            self._db.executemany(
                "INSERT OR REPLACE INTO vectors (chunk, model, vector) SELECT id, ?, ? FROM chunks WHERE id = ?",
                [(model, vector, chunk) for chunk, vector in vectors],
            )

    def forget_unlike(self, model: str, vector: bytes) -> None:
        """Drop the vectors of ``model`` with another length than ``vector``: its name belongs to another model now."""
        one = self._db.execute("SELECT length(vector) FROM vectors WHERE model = ? LIMIT 1", (model,)).fetchone()
        if one is not None and one[0] != len(vector):
            with self._db:
                self._db.execute("DELETE FROM vectors WHERE model = ?", (model,))

    def forget_models(self, but: str) -> None:
        with self._db:
            self._db.execute("DELETE FROM vectors WHERE model != ?", (but,))

    def vectors(self, model: str) -> Iterator[tuple[int, bytes]]:
        """Return every vector of ``model`` with its chunk's id."""
        yield from self._db.execute("SELECT chunk, vector FROM vectors WHERE model = ?", (model,))

    def passage(self, chunk: int) -> Passage:
        name, heading, line, text = self._db.execute(
            "SELECT name, heading, line, text FROM chunks JOIN files ON files.id = file WHERE chunks.id = ?", (chunk,)
        ).fetchone()
        return Passage(name=name, heading=heading, line=line, text=text)

    def counts(self, model: str) -> Counts:
        left_out = self._db.execute("SELECT left_out, count(*) FROM files WHERE left_out IS NOT NULL GROUP BY 1")
        numbers = self._db.execute(
            "SELECT (SELECT count(*) FROM files WHERE left_out IS NULL), (SELECT count(*) FROM chunks), "
            "(SELECT count(*) FROM vectors WHERE model = ?)",
            (model,),
        ).fetchone()
        return Counts(left_out=dict(left_out.fetchall()), files=numbers[0], chunks=numbers[1], embedded=numbers[2])


@contextmanager
def open_store(path: Path) -> Generator[Store]:
    """Open the index, or create it. Raises Damaged and Unusable, also during its use."""
    connection: sqlite3.Connection | None = None
    try:
        with suppress(OSError):  # SQLite says what is wrong
            path.touch(0o600)
            path.chmod(0o600)  # it holds passages of documents; SQLite gives the files beside it the same rights
        connection = sqlite3.connect(path, timeout=LOCK_WAIT)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.executescript(SCHEMA)
        yield Store(connection)
    except sqlite3.DatabaseError as error:
        if type(error) is sqlite3.DatabaseError:  # its subclasses are about the moment, or the statement
            raise Damaged(f"{path} is damaged ({error}); delete it, and the documents are indexed anew") from error
        if isinstance(error, sqlite3.OperationalError):
            advice = "make room on that disk, and see that the program may write there"
            raise Unusable(f"the index {path} cannot be used ({error}); {advice}") from error
        raise
    finally:
        if connection is not None:
            connection.close()
