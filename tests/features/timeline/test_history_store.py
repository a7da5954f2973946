"""The timeline in a file and in memory: what is added is found, by every question, also after a restart."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trio
from waiting import until

from appliance.core.records.history import Happening, HistoryQuery
from appliance.core.scheduling.effects import Cause
from appliance.errors import UsageError
from appliance.features.timeline.store import History, open_history
from appliance.store.activity import open_activity


def entry(model: str, by: str = "") -> Happening:
    cause = Cause(rule="number", by=by, most=2) if by else None
    return Happening(kind="evicted" if by else "loaded", model=model, cause=cause)


async def ids(history: History, **asked: object) -> list[int]:
    return [one.id for one in await history.read(HistoryQuery(**asked))]  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("stored", [True, False])
async def test_questions(tmp_path: Path, stored: bool) -> None:
    before = datetime.now(UTC)
    async with open_history(tmp_path / "log.sqlite" if stored else None, 100) as history:
        for each in (entry("a"), entry("b"), entry("a", by="c"), entry("c")):
            history.add(each)
        assert await ids(history) == [1, 2, 3, 4]
        assert await ids(history, limit=2) == [3, 4], "the newest"
        assert await ids(history, before=3, limit=1) == [2]
        assert await ids(history, after=1, limit=2) == [2, 3], "the next"
        assert await ids(history, models=("a",)) == [1, 3]
        assert await ids(history, models=("c",)) == [3, 4], "a went for c"
        assert await ids(history, kinds=("loaded",), models=("a", "b")) == [1, 2]
        assert await ids(history, start=before, limit=1) == [1]
        assert await ids(history, start=datetime.now(UTC) + timedelta(hours=1)) == []
        [found] = await history.read(HistoryQuery(kinds=("evicted",)))
        assert found.cause == Cause(rule="number", by="c", most=2)
        assert before <= found.timestamp <= datetime.now(UTC)


async def test_in_memory_the_newest_stay() -> None:
    async with open_history(None, 10) as history:
        for _ in range(95):
            history.add(entry("a"))
        assert await ids(history, after=0) == list(range(86, 96))
        history.add(entry("a"))
        assert await ids(history, after=0) == list(range(87, 97))


async def test_a_file_keeps_all_and_numbers_go_on(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite"
    with trio.CancelScope() as scope:  # what waits is written even then
        async with open_activity(path, 10), open_history(path, 10) as history:
            for _ in range(50):
                history.add(entry("a"))
            scope.cancel()
    async with open_activity(path, 10), open_history(path, 10) as history:
        history.add(entry("b"))
        assert await ids(history, after=0) == list(range(1, 52))


async def test_two_programs_may_write_to_one_file(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite"
    async with open_history(path, 10) as one, open_history(path, 10) as other:
        one.add(entry("a"))
        assert await ids(one) == [1]
        other.add(entry("b"))
        other.add(entry("c"))
        assert [(each.id, each.model) for each in await other.read(HistoryQuery())] == [(1, "a"), (2, "b"), (3, "c")]


async def test_a_locked_file_holds_nobody_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "log.sqlite"
    with trio.fail_after(30):
        async with open_history(path, 10) as history:
            with closing(sqlite3.connect(path, isolation_level=None)) as other:
                other.execute("BEGIN EXCLUSIVE")
                history.add(entry("a"))
                await until(lambda: "cannot be written" in caplog.text)
                history.add(entry("b"))
                other.execute("ROLLBACK")
            assert await ids(history) == [1, 2]


async def test_what_a_later_version_wrote_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite"
    async with open_history(path, 10) as history:
        history.add(entry("a"))
        assert await ids(history) == [1]
        with closing(sqlite3.connect(path)) as other, other:
            other.execute("INSERT INTO history VALUES (2, 0, 'new', 'a', '', '{\"kind\":\"new\"}')")
        assert await ids(history) == [1]


async def test_a_file_that_cannot_be_used_is_said(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite"
    path.write_bytes(b"something else entirely" * 100)
    with pytest.raises(UsageError, match="set it aside"):
        async with open_history(path, 10):
            pass
    with pytest.raises(UsageError, match="no/such"):
        async with open_history(tmp_path / "no/such", 10):
            pass


async def test_a_follower_gets_every_entry_until_it_leaves() -> None:
    heard: list[int] = []
    async with open_history(None, 10) as history:
        with history.follow(lambda each: heard.append(each.id)):
            history.add(entry("a"))
            history.add(entry("a"))
        history.add(entry("a"))
    assert heard == [1, 2]
