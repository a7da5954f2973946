"""Agent runs on disk: the newest of each, whatever happens to the file."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest
import trio
from waiting import until

from appliance.errors import UsageError
from appliance.features.runs.store import open_run_store
from appliance.store.activity import open_activity


async def stored(path: Path) -> list[bytes]:
    async with open_run_store(path) as store:
        return store.stored


async def test_the_newest_record_of_each_run_stays_and_forgotten_ones_go(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite"
    with trio.CancelScope() as scope:  # what waits is written even then
        async with open_activity(path, 10), open_run_store(path) as store, open_run_store(None) as none:
            assert none is None
            for n in range(50):
                store.save("a", 1.0, b"a%d" % n)
            store.save("b", 0.5, b"b")
            store.save("c", 2.0, b"c")
            store.forget("c")
            scope.cancel()
    assert await stored(path) == [b"b", b"a49"]


async def test_a_locked_file_is_waited_for_without_holding_anybody_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "log.sqlite"
    with trio.fail_after(30):
        async with open_run_store(path) as store:
            with closing(sqlite3.connect(path, isolation_level=None)) as other:
                other.execute("BEGIN EXCLUSIVE")
                store.save("a", 1.0, b"first")
                await until(lambda: "cannot be written" in caplog.text)
                store.save("a", 1.0, b"second")
                other.execute("ROLLBACK")
    assert await stored(path) == [b"second"]


async def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite"
    path.write_bytes(b"something else entirely" * 100)
    mover = "robocopy" if sys.platform == "win32" else "mkdir"
    with pytest.raises(UsageError, match=f"set it aside: {mover}"):
        await stored(path)
