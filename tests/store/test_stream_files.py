"""Streams on disk: what survives which end of the program, within which limits."""

from __future__ import annotations

import stat
import subprocess
import sys
import time
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
import trio
from full_disk import REFUSED, full_disk, posix_only
from waiting import until

from appliance.core.config.types import StreamsConfig
from appliance.errors import UsageError
from appliance.store import stream_files
from appliance.store.stream_files import About, Stored, StreamFiles, open_stream_files
from appliance.streams.generation import RingSink
from appliance.streams.owner import check_streams, open_streams

LAST = b"data: interrupted\n\n"


def opened(
    path: Path, max_bytes: int = 1000, max_total: int = 100_000, keep: float = 300
) -> AbstractAsyncContextManager[tuple[StreamFiles, list[Stored]]]:
    return open_stream_files(path, max_bytes, max_total, keep)


def about(conversation: str) -> About:
    return About(conversation=conversation, started_at=5.0, interrupted=LAST)


def files_in(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


async def written(path: Path, count: int) -> None:
    await until(lambda: len(files_in(path)) == count, within=10)


async def test_a_stream_that_has_ended_is_there_again(tmp_path: Path):
    async with opened(tmp_path) as (files, stored):
        assert stored == []
        key = files.begin(about("é::ü/x"))
        files.append(key, b"data: 1\n\n")
        files.append(key, b"data: 2\n\n")
        done = time.time()
        files.finish(key, done)
    async with opened(tmp_path) as (_, stored):
        (found,) = stored
        assert found.about.conversation == "é::ü/x"
        assert found.data == b"data: 1\n\ndata: 2\n\n"
        assert found.completed_at == pytest.approx(done, abs=0.01)
        assert found.interrupted_at is None
    assert [file.suffix for file in files_in(tmp_path)] == [".sse"]


async def test_nobody_else_may_read_them(tmp_path: Path):
    folder = tmp_path / "made" / "here"
    async with opened(folder) as (files, _):
        files.append(files.begin(about("a")), b"x")
        await written(folder, 1)
        (file,) = files_in(folder)
        if sys.platform != "win32":
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700


DIES = """
import sys, trio
from pathlib import Path
from appliance.store.stream_files import About, open_stream_files

async def main():
    async with open_stream_files(Path(sys.argv[1]), 1000, 100_000, 300) as (files, stored):
        key = files.begin(About(conversation="a", started_at=5.0, interrupted=b"data: interrupted\\n\\n"))
        for number in range(1000):
            files.append(key, b"data: %d\\n\\n" % number)
            if number == 20:
                print("now", flush=True)
            await trio.sleep(0.01)

trio.run(main)
"""


def run_and_kill(folder: Path) -> None:
    """Some records are in its files then, and some it had only just said."""
    with subprocess.Popen([sys.executable, "-c", DIES, str(folder)], stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        program.stdout.readline()
        time.sleep(0.3)
        program.kill()


async def test_what_a_killed_program_has_said_is_there_with_its_break(tmp_path: Path):
    run_and_kill(tmp_path)
    (part,) = files_in(tmp_path)
    assert part.suffix == ".part"
    with part.open("ab") as file:
        file.write(b"data: torn by the cra")
    async with opened(tmp_path) as (_, stored):
        (found,) = stored
        assert found.data.startswith(b"data: 0\n\ndata: 1\n\n")
        assert found.data.endswith(b"\n\n" + LAST)
        assert b"torn" not in found.data
        assert found.interrupted_at == len(found.data) - len(LAST)
        assert found.completed_at == pytest.approx(time.time(), abs=5)
    async with opened(tmp_path) as (_, again):
        assert [(one.data, one.interrupted_at) for one in again] == [(found.data, found.interrupted_at)]


async def test_who_had_seen_more_than_was_saved_hears_of_the_break(tmp_path: Path):
    line = b'{"conversation":"a","started_at":5,"interrupted":"ZGF0YTogZW5kCgo="}\n'
    (tmp_path / "stream-0000000007.part").write_bytes(line + b"data: 1\n\n")
    async with open_streams(StreamsConfig(path=str(tmp_path))) as streams:
        generation = streams.find("a")
        assert generation is not None
        for offset, expected in ((0, b"data: 1\n\ndata: end\n\n"), (9, b"data: end\n\n"), (500, b"data: end\n\n")):
            assert await generation.reader(offset).receive() == expected


async def test_a_long_stream_keeps_its_end(tmp_path: Path):
    whole = b"".join(b"data: %06d\n\n" % number for number in range(2000))
    async with opened(tmp_path) as (files, _):
        key = files.begin(about("a"))
        for at in range(0, len(whole), 280):
            files.append(key, whole[at : at + 280])
            if at % 2800 == 0:
                await trio.sleep(0.12)
            if at > 14_000:
                break
        end = at + 280
        files.finish(key, time.time())
        await trio.sleep(0.3)
        (file,) = files_in(tmp_path)
        assert file.stat().st_size < 2500
    async with opened(tmp_path) as (_, stored):
        (found,) = stored
        assert found.dropped + len(found.data) == end
        assert found.data == whole[found.dropped : end]
        assert len(found.data) >= 1000


async def test_the_oldest_go_when_there_are_too_many(tmp_path: Path):
    async with opened(tmp_path, max_total=2500) as (files, _):
        for name in "abcd":
            key = files.begin(about(name))
            files.append(key, b"x" * 1000)
            files.finish(key, time.time())
        await written(tmp_path, 2)
    async with opened(tmp_path, max_total=1500) as (_, stored):
        assert [found.about.conversation for found in stored] == ["d"]


async def test_what_is_discarded_or_too_old_is_deleted(tmp_path: Path):
    async with opened(tmp_path) as (files, _):
        first, second = files.begin(about("a")), files.begin(about("b"))
        files.append(first, b"x")
        files.finish(second, time.time() - 400)
        await written(tmp_path, 2)
        files.discard(first)
        await written(tmp_path, 1)
    async with opened(tmp_path) as (_, stored):
        assert stored == []
    assert files_in(tmp_path) == []


async def test_files_of_others_and_damaged_ones(tmp_path: Path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "stream-x.sse").write_text("mine")
    (tmp_path / "stream-0000000004.sse").write_bytes(b"\xff\x00")
    async with opened(tmp_path) as (files, stored):
        assert stored == []
        assert files.begin(about("a")) == 5
    assert [path.name for path in files_in(tmp_path)] == ["notes.txt", "stream-0000000005.part", "stream-x.sse"]


@posix_only
async def test_a_disk_that_fails_is_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    full = trio.Event()
    async with open_streams(StreamsConfig(path=str(tmp_path))) as streams:

        async def work(sink: RingSink) -> None:
            sink.start(200, ((b"content-type", b"text/event-stream"),))
            await full.wait()
            for _ in range(10):
                await sink.write(b"data: 1\n\n")
                await trio.sleep(0.05)
            await sink.end()

        generations = [streams.begin(name, work) for name in "ab"]
        await until(lambda: [path.stat().st_size > 0 for path in files_in(tmp_path)] == [True, True])
        with full_disk():
            full.set()
            for generation in generations:
                with trio.fail_after(5):
                    reader, got = generation.reader(0), b""
                    while data := await reader.receive():
                        got += data
                assert got == b"data: 1\n\n" * 10
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1
    assert REFUSED in warnings[0]
    assert files_in(tmp_path) == []


async def test_a_disk_that_stands_still_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(stream_files, "MAX_WAITING", 5000)
    async with opened(tmp_path) as (files, _):
        key = files.begin(about("a"))
        for _ in range(100):
            files.append(key, b"x" * 100)
        assert files.failed
    assert "too slow" in caplog.text


def test_a_folder_that_cannot_be_used_is_told_before_anything_runs(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"streams\.path"):
        check_streams(StreamsConfig(path=str(tmp_path / "file" / "below")))
    check_streams(StreamsConfig(path=str(tmp_path / "new")))
    check_streams(StreamsConfig())


async def test_later_it_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    (tmp_path / "file").write_text("")
    async with open_streams(StreamsConfig(path=str(tmp_path / "file" / "below"))) as streams:
        assert streams.find("a") is None
    assert "are not kept" in caplog.text
