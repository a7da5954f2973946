"""The activity log in real SQLite, in files and in memory: nothing is lost, nobody waits, and a bad file is named."""

from __future__ import annotations

import logging
import os
import sqlite3
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Generator, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import psutil
import pytest
import trio
from command_lines import run_in_shell
from full_disk import full_disk, posix_only
from hypothesis import given
from hypothesis import strategies as st
from two_users import STRANGER, open_folder
from waiting import PATIENCE, SOON, until

from appliance.core.records.activity import SORT_KEYS, Query, Row, Tokens, histogram
from appliance.errors import Busy, UsageError
from appliance.store import activity as store
from appliance.store.activity import MAX_WAITING, open_activity
from appliance.store.activity_schema import VERSION, open_file, open_memory
from appliance.store.activity_table import ActivityRows, ActivityTable
from appliance.trio_parts import WriteBehind

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
ALL = Query(limit=999)
UNUSUAL = "%" if sys.platform == "win32" else "?"
"""A character that file names may have, and that SQLite's addresses give a meaning."""


def row(number: int = 0, *, model: str = "m", tokens: Tokens | None = None) -> Row:
    return Row(
        timestamp=NOON + timedelta(seconds=number),
        model=model,
        req_path="/v1/chat/completions",
        resp_content_type="application/json",
        resp_status_code=200,
        tokens=tokens or Tokens(input_tokens=number, prompt_per_second=number + 0.5),
        duration_ms=number,
    )


def names_in(folder: Path) -> list[str]:
    return [entry.name for entry in folder.iterdir()]


async def test_a_row_comes_back_as_it_went_in(tmp_path: Path):
    full = Row(
        timestamp=NOON,
        model="m/é",
        req_path="/v1/x",
        resp_content_type="text/event-stream",
        resp_status_code=502,
        tokens=Tokens(cache_tokens=1, draft_tokens=2, draft_acc_tokens=3, tokens_per_second=4.25),
        duration_ms=12,
        error_msg="'; DROP TABLE activity; --",
        metadata={"selector": "s", "fifo_priority": "0"},
        first_token_ms=7,
        client="curl/8.5.0, 127.0.0.1",
        build="linux-x64-cpu/b11434",
    )
    for path in (None, tmp_path / f"with {UNUSUAL} and #.db"):
        async with open_activity(path, 10) as activity:
            ids = [activity.add(full), activity.add(row())]
            page = await activity.page(ALL)
        assert ids == [1, 2]
        assert page.data == (msgspec.structs.replace(row(), id=2), msgspec.structs.replace(full, id=1))
        assert (page.page, page.limit, page.total, page.total_pages) == (1, 999, 2, 1)


async def test_names_that_no_database_takes_are_kept_as_far_as_possible():
    async with open_activity(None, 10) as activity:
        activity.add(msgspec.structs.replace(row(model="a\ud800\0b" + "x" * 5000), metadata={"\udfff": "\ud800"}))
        (found,) = (await activity.page(ALL)).data
    assert (found.model, found.metadata) == ("a?\0b" + "x" * 1996, {"?": "?"})


async def test_a_file_is_never_pruned_and_its_ids_go_on(tmp_path: Path):
    path = tmp_path / "activity.db"
    async with open_activity(path, 2) as activity:
        assert [activity.add(row(n)) for n in range(5)] == [1, 2, 3, 4, 5]
        with closing(sqlite3.connect(path)) as connection, trio.fail_after(PATIENCE):  # without being asked for
            await until(lambda: connection.execute("SELECT COUNT(*) FROM activity").fetchone() == (5,))
    with closing(sqlite3.connect(path)) as connection, connection:
        done = connection.execute("SELECT version_id, is_applied FROM goose_db_version ORDER BY id").fetchall()
        assert done == [(0, 1), (1, 1)], "llama-swap looks for it"
        indexes = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'index'")}
        assert {"idx_activity_created_id", "idx_activity_model_created_id"} <= indexes
        connection.execute("DELETE FROM activity WHERE id = 5")
    async with open_activity(path, 2) as activity:
        assert activity.add(row()) == 6
        assert [found.id for found in (await activity.page(ALL)).data] == [6, 4, 3, 2, 1]
    assert names_in(tmp_path) == ["activity.db"]


_BEFORE = """
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
"""
"""The table as llama-swap has it, and as this program had it before it noted first tokens, clients and builds."""
_INSERT_BEFORE = "INSERT INTO activity (ts_created, model_id, duration_ms) VALUES (1800000000, ?, 5)"


LATER = "ALTER TABLE activity ADD COLUMN src TEXT NOT NULL DEFAULT '';"
"""What a later migration of llama-swap may do."""


@pytest.mark.parametrize("more", ["PRAGMA user_version = 1;", LATER])
async def test_a_file_of_before_gets_the_new_columns_and_serves_the_old_program_as_well(tmp_path: Path, more: str):
    path = tmp_path / "activity.db"
    with closing(sqlite3.connect(path)) as old, old:
        old.executescript(f"{_BEFORE}{more}")
        old.execute(_INSERT_BEFORE, ("before",))
    new = msgspec.structs.replace(row(), first_token_ms=0, client="c", build="b")
    for _ in range(2):
        async with open_activity(path, 10) as activity:
            activity.add(new)
    with closing(sqlite3.connect(path)) as old, old:
        old.execute(_INSERT_BEFORE, ("went back",))
        assert old.execute("PRAGMA user_version").fetchone() == (1,), "the program of before refuses a later one"
    async with open_activity(path, 10) as activity:
        found = [(one.model, one.first_token_ms, one.client, one.build) for one in (await activity.page(ALL)).data]
    assert found == [("went back", -1, "", ""), ("m", 0, "c", "b"), ("m", 0, "c", "b"), ("before", -1, "", "")]


async def test_memory_keeps_the_newest():
    async with open_activity(None, 3) as activity:
        for n in range(10):
            activity.add(row(n))
            if n % 4 == 0:
                assert (await activity.page(ALL)).total == min(n + 1, 3)
        page = await activity.page(Query(limit=2, page=2))
        assert ([found.id for found in page.data], page.total, page.total_pages) == ([8], 3, 2)
        assert activity.add(row()) == 11


@pytest.fixture
def table() -> Generator[ActivityTable]:
    with closing(ActivityTable(open_memory(), None)) as opened:
        yield opened


@pytest.mark.parametrize("key", SORT_KEYS)
@pytest.mark.parametrize("order", ["asc", "desc"])
def test_every_sort_key_sorts_and_pages_do_not_overlap(table: ActivityTable, key: str, order: str):
    table.add([msgspec.structs.replace(row(n * 7 % 10, model=f"m{n % 3}"), id=n + 1) for n in range(10)])
    query = msgspec.convert({"sort": key, "order": order, "limit": 4}, Query)
    found = [one for page in (1, 2, 3, 4) for one in table.page(msgspec.structs.replace(query, page=page)).data]
    fields = {
        "id": lambda r: r.id,
        "time": lambda r: r.timestamp,
        "model": lambda r: r.model,
        "prompt": lambda r: r.tokens.input_tokens,
        "prompt_speed": lambda r: r.tokens.prompt_per_second,
        "duration": lambda r: r.duration_ms,
    }
    value = fields.get(key, lambda r: 0)
    everything = table.page(ALL).data
    assert found == sorted(everything, key=lambda r: (value(r), r.id), reverse=order == "desc")


def test_filters(table: ActivityTable):
    table.add([msgspec.structs.replace(row(n, model=f"m{n % 3}"), id=n + 1) for n in range(9)])

    def ids(**filters: object) -> list[int]:
        query = msgspec.structs.replace(Query(order="asc", limit=999), **filters)
        page = table.page(query)
        assert page.total == len(page.data)
        return [found.id for found in page.data]

    assert ids(models=("m0", "m2")) == [1, 3, 4, 6, 7, 9]
    assert ids(models=("m0' OR 1=1 --",)) == []
    assert ids(min_id=4, max_id=6) == [4, 5, 6]
    assert ids(start=NOON + timedelta(seconds=2), end=NOON + timedelta(seconds=4, microseconds=9)) == [3, 4, 5]
    assert ids(start=NOON + timedelta(seconds=5), models=("m2",), max_id=8) == [6]
    assert ids(min_id=10**17) == []
    broken, refused = row(9, model="M%"), row(10, model="it's")
    table.add(
        [
            msgspec.structs.replace(broken, id=10, error_msg="The engine _ended", resp_status_code=200),
            msgspec.structs.replace(refused, id=11, resp_status_code=404, metadata={"peer": "Box"}),
        ]
    )
    assert ids(failed=True, min_id=10) == [10, 11]
    assert [ids(search=text) for text in ("m%", "ENGINE _e", "box", "it's")] == [[10], [10], [11], [11]]
    assert ids(search="' OR 1=1 --") == []
    assert table.page(Query(page=10**17)).data == ()


def test_statistics_are_those_of_the_rows(table: ActivityTable):
    assert table.stats(()).total_requests == 0
    assert table.stats(()).prompt_histogram is None
    speeds = [float(n * n % 97) - 3 for n in range(300)]
    table.add([
        msgspec.structs.replace(
            row(model=f"m{n % 2}", tokens=Tokens(input_tokens=n - 5, prompt_per_second=speed)), id=n + 1
        )
        for n, speed in enumerate(speeds)
    ])  # fmt: skip
    for models, kept in (((), range(300)), (("m1",), range(1, 300, 2)), (("m0", "m1"), range(300))):
        stats = table.stats(models)
        assert stats.total_requests == len(kept)
        assert stats.total_input_tokens == sum(max(n - 5, 0) for n in kept)
        assert (stats.total_output_tokens, stats.total_cache_tokens) == (0, 0)
        assert stats.gen_histogram is None
        assert stats.prompt_histogram == histogram(Sorted([speeds[n] for n in kept if speeds[n] > 0]))


class Sorted:
    def __init__(self, values: list[float]) -> None:
        self._values = sorted(values)
        self.count = len(values)

    def at(self, ranks: Sequence[int]) -> list[float]:
        return [self._values[rank] for rank in ranks]

    def binned(self, low: float, width: float, bins: int) -> list[int]:
        places = [min(int((value - low) / width), bins - 1) for value in self._values]
        return [places.count(number) for number in range(bins)]


# ---- files that cannot be used ----


async def refusal(path: Path, busy_ms: int = 2000) -> str:
    with pytest.raises(UsageError) as raised:
        async with open_activity(path, 10, busy_ms=busy_ms):
            pass
    return str(raised.value)


async def test_places_that_cannot_hold_a_file(tmp_path: Path):
    assert "is empty" in await refusal(Path())
    assert f"'{tmp_path}' is a directory; name a file" in await refusal(tmp_path)
    assert f"'{tmp_path / 'no'}' does not exist; create it" in await refusal(tmp_path / "no" / "activity.db")
    assert "not a regular file" in await refusal(Path(os.devnull))


async def test_files_with_something_else_in_them(tmp_path: Path):
    text = tmp_path / "notes.txt"
    text.write_text("not a database at all, but long enough to have a header\n" * 10)
    assert "notes.txt' cannot be used as an SQLite database: file is not a database" in await refusal(text)
    assert text.read_text().startswith("not a database")

    other = tmp_path / "other.db"
    with closing(sqlite3.connect(other)) as connection, connection:
        connection.execute("CREATE TABLE activity (id INTEGER, ts_created INTEGER)")
    assert "another table named activity (it has no model_id, req_path" in await refusal(other)

    later = tmp_path / "later.db"
    with closing(sqlite3.connect(later)) as connection:
        connection.execute(f"PRAGMA user_version = {VERSION + 1}")
    assert f"later version of this program (schema {VERSION + 1}," in await refusal(later)


async def test_a_damaged_page_names_the_command_that_sets_the_file_aside(tmp_path: Path):
    path = tmp_path / "activity.db"
    async with open_activity(path, 10) as activity:
        for _ in range(300):
            activity.add(row())
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(path.stat().st_size - 4096))
    said = await refusal(path)
    assert "malformed" in said
    command = said.partition("set it aside: ")[2]
    assert "activity.db.damaged" in command
    await run_in_shell(command)
    async with open_activity(path, 10) as activity:
        assert activity.add(row()) == 1
    assert (tmp_path / "activity.db.damaged" / "activity.db").stat().st_size > 4096


async def test_a_locked_file_is_not_called_damaged(tmp_path: Path):
    path = tmp_path / "activity.db"
    with closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert "another program holds it; stop that program" in await refusal(path, busy_ms=50)


REFUSED = """
import os, sys
from pathlib import Path
from appliance.errors import UsageError
from appliance.store.activity_schema import open_file
os.setuid(int(sys.argv[1]))
for name in ("new.db", "old.db"):
    try:
        open_file(Path(name), 2000)
    except UsageError as error:
        print(error)
"""


@pytest.mark.needs("root")
def test_a_user_without_the_right_to_write_is_told() -> None:
    with open_folder() as folder:
        (folder / "old.db").touch(0o444)
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
        command = [sys.executable, "-c", REFUSED, str(STRANGER)]
        told = subprocess.check_output(command, cwd=folder, env=environment, text=True, timeout=60)
    new, old = told.splitlines()
    assert new.startswith("store.path 'new.db': the directory '.' cannot be written; allow it")
    assert old.startswith("store.path 'old.db' cannot be written; allow it")


# ---- trouble while it runs ----


async def test_another_writer_takes_an_id(tmp_path: Path):
    path = tmp_path / "shared.db"
    async with open_activity(path, 10) as activity, open_activity(path, 10) as other:
        assert activity.add(row(1)) == other.add(row(2)) == 1
        await activity.page(ALL)
        first = {one.duration_ms: one.id for one in (await other.page(ALL)).data}
        assert first in ({1: 1, 2: 2}, {1: 2, 2: 1}), "who was written first, by chance, has kept its id"
        assert other.add(row(3)) == first[2] + 1, "beyond its own last one; what the other took it learns by writing"
        found = (await other.page(ALL)).data + (await activity.page(ALL)).data
    assert {one.duration_ms: one.id for one in found} == first | {3: 3}


async def test_rows_wait_while_another_process_has_locked_the_file(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    path = tmp_path / "activity.db"
    async with open_activity(path, 10, busy_ms=50, behind=WriteBehind(retry=0.05)) as activity:
        with closing(sqlite3.connect(path, isolation_level=None)) as holder:
            holder.execute("BEGIN IMMEDIATE")
            first = activity.add(row())
            assert (await activity.page(ALL)).total == 0
            await trio.sleep(0.15)
            holder.execute("ROLLBACK")
        await until(lambda: activity.page(ALL), lambda page: page.total)
        assert (await activity.page(ALL)).data[0].id == first
    assert caplog.records == []


async def test_a_question_to_a_locked_file_is_refused_for_now(tmp_path: Path):
    """Where the file system has no shared memory, SQLite cannot use WAL, and a writer locks out readers."""
    path = tmp_path / "activity.db"
    open_file(path, 50).close()
    connection = sqlite3.connect(path, timeout=0.05, check_same_thread=False)
    assert connection.execute("PRAGMA journal_mode = DELETE").fetchone() == ("delete",)
    activity = store.Activity(ActivityRows(ActivityTable(connection, None), path, 10), 0, 10, WriteBehind())
    with closing(sqlite3.connect(path, isolation_level=None)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        activity.add(row())
        with pytest.raises(Busy, match=r"activity\.db' is locked by another program"):
            await activity.page(ALL)
        holder.execute("ROLLBACK")
    assert (await activity.page(ALL)).total == 1
    await activity.close()


async def test_more_rows_than_can_wait_are_lost_and_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    async with open_activity(tmp_path / "activity.db", 10) as activity:
        ids = [activity.add(row()) for _ in range(MAX_WAITING + 5)]
        assert ids == list(range(1, MAX_WAITING + 6))
        assert (await activity.page(ALL)).total == MAX_WAITING
        activity.add(row())
        assert (await activity.page(ALL)).data[0].id == MAX_WAITING + 6
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


@posix_only
async def test_a_full_disk_costs_a_warning_and_no_row_that_is_still_to_be_seen(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    path = tmp_path / "activity.db"
    async with open_activity(path, 200) as activity:
        for n in range(7):
            activity.add(row(n))
        assert (await activity.page(ALL)).total == 7
        with full_disk():
            for n in range(7, 60):
                last = activity.add(row(n))
                if n % 5 == 0:
                    await activity.page(Query())
            page = await activity.page(ALL)
            assert (page.total, page.data[0].id) == (60, last)
            assert [found.duration_ms for found in page.data] == list(range(59, -1, -1))
            assert (await activity.read(lambda table: table.stats(()))).total_requests == 60
    (warning,) = caplog.messages
    assert warning.startswith("the activity log cannot be written to ")


async def test_leaving_writes_what_is_waiting_even_when_cancelled(tmp_path: Path):
    path = tmp_path / "activity.db"
    with trio.CancelScope() as scope:
        async with open_activity(path, 10) as activity:
            scope.cancel()
            for n in range(50):
                activity.add(row(n))
            await trio.sleep_forever()
    async with open_activity(path, 10) as activity:
        assert (await activity.page(ALL)).total == 50


async def test_leaving_does_not_wait_for_ever(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    path = tmp_path / "activity.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as holder:
        async with open_activity(path, 10, busy_ms=30_000, behind=WriteBehind(flush=0.2)) as activity:
            holder.execute("BEGIN IMMEDIATE")
            activity.add(row())
            began = time.monotonic()
        assert time.monotonic() - began < SOON
        holder.execute("ROLLBACK")
    # The thread that was left alone closes the file when its wait for the lock is over.
    await until(lambda: str(path) not in [file.path for file in psutil.Process().open_files()])
    assert "could not be written" in caplog.text


def test_statistics_of_many_rows_bring_few_of_them_here(table: ActivityTable):
    table.connection.executescript(
        "INSERT INTO activity (ts_created, model_id, input_tokens, prompt_per_second, tokens_per_second)"
        " WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 30000)"
        " SELECT i, 'm' || (i % 3), i % 7, (i * 7919) % 10007 / 10.0, (i * 31) % 997 / 10.0 FROM n;"
    )
    for models in ((), ("m1",)):
        began = time.perf_counter()
        tracemalloc.start()
        stats = table.stats(models)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        print(models, f"{time.perf_counter() - began:.2f} s", f"{peak} bytes")
        assert stats.total_requests >= 10_000
        assert len(stats.prompt_histogram.bins) >= 15
        assert peak < 100_000


async def test_the_last_use_of_each_model_is_that_of_its_newest_row(tmp_path: Path):
    async with open_activity(tmp_path / "log.sqlite", 0) as activity:
        assert await activity.read(ActivityTable.last_used) == {}
        for number, model in enumerate(("a", "b", "a", "c", "b")):
            activity.add(row(number, model=model))
        assert await activity.read(ActivityTable.last_used) == {
            "a": NOON + timedelta(seconds=2),
            "b": NOON + timedelta(seconds=4),
            "c": NOON + timedelta(seconds=3),
        }


ENDS = st.tuples(
    st.integers(-50, 50),
    st.sampled_from("ab"),
    st.sampled_from([200, 400, 404, 499, 500, 503]),
    st.sampled_from(["", "x"]),
)


@given(st.lists(ENDS, max_size=30))
def test_failures_are_those_of_the_rows(ends: list[tuple[int, str, int, str]]):
    with closing(ActivityTable(open_memory(), None)) as table:
        table.add(
            [
                msgspec.structs.replace(row(second, model=model), id=n + 1, resp_status_code=status, error_msg=error)
                for n, (second, model, status, error) in enumerate(ends)
            ]
        )
        found = {one.model: one for one in table.failures(NOON.timestamp())}
    for model in "ab":
        seen = [(status, error) for second, name, status, error in ends if (name, second >= 0) == (model, True)]
        ended = [(status, error) for status, error in seen if status != 499]
        failed = [each for each in ended if each[0] >= 500 or each == (200, "x")]
        refused = [each for each in ended if 400 <= each[0] < 500]
        if not failed and not refused:
            assert model not in found
            continue
        one = found[model]
        assert (one.ended, one.failed, one.refused) == (len(ended), len(failed), len(refused))
        status, error = next(each for each in reversed(ended) if each in failed or each in refused)
        assert one.last == (error if status == 200 else f"{status} {error}")
