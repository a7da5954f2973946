"""Versions of the program and of its databases: an older release and this one read each other's files."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from appliance.core.programs import LINE
from appliance.core.versions import BuildLine, StepDone, UpdateBegun, VersionState
from appliance.errors import UsageError
from appliance.features.conversations.store import VERSION, ConversationStore
from appliance.features.engines.shelf import StateFile
from appliance.start import program_file
from appliance.store.version_file import FILE
from appliance.store.versions import keep, restored

OLD, NEW = f"{LINE}/0.1.0-aaaaaaaaaaaa", f"{LINE}/0.2.0-bbbbbbbbbbbb"
OF_OLDER = f"""
{{"version": 1, "state": {{
  "proofs": [], "probations": [], "listed": [], "look": null, "signature": "", "use": null, "pinned": false,
  "models": {{}}, "channel": "latest",
  "lines": [{{"name": "{LINE}", "current": "{NEW}", "previous": ["{OLD}"], "switched_at": 5.0}}],
  "withdrawn": {{"{LINE}/0.3.0-cccccccccccc": "it crashed"}}, "journal": null, "refused": null, "contexts": []
}}}}
"""


def test_what_an_older_release_has_written_is_read(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(OF_OLDER, "utf-8")
    state = program_file(tmp_path).read()
    line = BuildLine(name=LINE, current=NEW, previous=(OLD,), switched_at=5.0)
    assert state == VersionState(lines=(line,), withdrawn={f"{LINE}/0.3.0-cccccccccccc": "it crashed"})


def test_an_older_release_reads_what_this_one_writes(tmp_path: Path) -> None:
    """Its file had the shape of that of engines, whose keys it does without."""
    state = program_file(tmp_path).apply([UpdateBegun(build=NEW, old=OLD, at=1.0), *[StepDone(2.0)] * 4])
    older = StateFile(tmp_path).read()
    assert (older.lines, older.journal) == (state.lines, state.journal)
    assert older.role(NEW) == "current"
    assert not (tmp_path / f"{FILE}.unreadable").exists()


def make(path: Path, schema: int, *rows: str) -> sqlite3.Connection:
    database = sqlite3.connect(path)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute(f"PRAGMA user_version = {schema}")
    database.execute("CREATE TABLE IF NOT EXISTS rows (row TEXT)")
    database.executemany("INSERT INTO rows VALUES (?)", [(row,) for row in rows])
    database.commit()
    return database


def rows(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as database:
        return [row for (row,) in database.execute("SELECT row FROM rows")]


def test_a_copy_holds_what_others_have_written_into_the_log_file(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    path.touch(0o600)
    with closing(make(path, 1, "one", "two")):
        keep(path, tmp_path / "trial" / "a.db")
        assert rows(tmp_path / "a.db.v1") == rows(tmp_path / "trial" / "a.db") == ["one", "two"]
    if os.name == "posix":
        assert (tmp_path / "a.db.v1").stat().st_mode & 0o777 == 0o600
    keep(tmp_path / "none.db", tmp_path / "trial" / "none.db")
    assert not (tmp_path / "trial" / "none.db").exists()


def test_of_the_copies_the_newest_that_is_known_comes_back_and_the_later_one_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    for schema in (1, 2):
        make(path, schema, f"of {schema}").close()
        keep(path, tmp_path / "trial.db")
    make(path, 4, "of 4").close()
    assert not restored(path, 0)
    assert restored(path, 3)
    assert rows(path) == ["of 1", "of 2"]
    assert rows(tmp_path / "a.db.v4-1") == ["of 1", "of 2", "of 4"]
    assert rows(tmp_path / "a.db.v2") == ["of 1", "of 2"]


def test_a_database_that_somebody_has_open_stays_where_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    make(path, 1).close()
    keep(path, tmp_path / "trial.db")
    with closing(make(path, 2, "later")), pytest.raises(sqlite3.OperationalError, match="locked"):
        restored(path, 1)
    assert rows(path) == ["later"]


def test_conversations_of_a_later_version_give_way_to_their_copy(tmp_path: Path) -> None:
    path = tmp_path / "conversations.db"
    ConversationStore(path, 1 << 20).close()
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"PRAGMA user_version = {VERSION + 1}")
    with pytest.raises(UsageError, match="later version"):
        ConversationStore(path, 1 << 20)
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"PRAGMA user_version = {VERSION}")
    keep(path, tmp_path / "trial.db")
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"PRAGMA user_version = {VERSION + 1}")
    ConversationStore(path, 1 << 20).close()
    assert (tmp_path / f"conversations.db.v{VERSION + 1}-1").exists()
