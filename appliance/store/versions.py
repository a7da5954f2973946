"""Databases across versions of the program: a copy before an upgrade, and the way back to it.

``<file>.v<schema>`` beside a database is a copy from the last upgrade; ``schema`` is SQLite's ``user_version``. A
program that meets a database of a later schema takes the copy that it knows, and keeps the later one. So an upgrade may
change a schema, and a return to the version before still finds its data. Everything here waits for the disk.
"""

from __future__ import annotations

import itertools
import logging
import os
import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from appliance.store.model_files import replace

log = logging.getLogger(__name__)


def keep(path: Path, into: Path) -> None:
    """Copy a database as it is now, while others may write to it: beside itself, and to ``into``.

    Does nothing if there is none. Raises sqlite3.Error, OSError.
    """
    if not path.is_file():
        return
    with closing(sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True)) as database:
        (schema,) = database.execute("PRAGMA user_version").fetchone()
        kept = path.with_name(f"{path.name}.v{schema}")
        fresh = path.with_name(f".{path.name}.new")
        fresh.unlink(missing_ok=True)
        os.close(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, path.stat().st_mode & 0o666))
        with closing(sqlite3.connect(fresh)) as copy:
            database.backup(copy)
    with fresh.open("r+b") as file:  # Windows writes only what may be written to the disk
        os.fsync(file.fileno())
    replace(fresh, kept)
    into.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(kept, into)


def restored(path: Path, known: int) -> bool:
    """Put the newest copy of a schema up to ``known`` in the place of a later database, which is set aside.

    False: there is no such copy. Raises OSError, and sqlite3.Error if a process has the database open.
    """
    copies = {int(found[1]): copy for copy in path.parent.glob(f"{path.name}.v*") if (found := _copy_of(path, copy))}
    usable = [schema for schema in copies if schema <= known]
    if not usable:
        return False
    with closing(sqlite3.connect(path)) as database:
        (schema,) = database.execute("PRAGMA user_version").fetchone()
        # Leaving the write-ahead log needs the database for itself alone, and brings everything into the one file.
        database.execute("PRAGMA journal_mode = DELETE")
    places = (path.with_name(f"{path.name}.v{schema}-{number}") for number in itertools.count(1))
    aside = next(place for place in places if not place.exists())
    replace(path, aside)
    fresh = path.with_name(f".{path.name}.new")
    shutil.copy2(copies[max(usable)], fresh)
    replace(fresh, path)
    log.warning(
        "%s was written by a later version of this program; it is now %s, and the copy from before the upgrade is used",
        path,
        aside.name,
    )
    return True


def _copy_of(path: Path, copy: Path) -> re.Match[str] | None:
    return re.fullmatch(re.escape(path.name) + r"\.v(\d{1,9})", copy.name)
