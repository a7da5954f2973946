"""Streams on disk: what survives which end of the program, within which limits."""

from __future__ import annotations

import stat
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
from full_disk import REFUSED, full_disk, posix_only
from waiting import until

from appliance.errors import UsageError
from appliance.features.streams import files as stream_files
from appliance.features.streams.ends import RingSink
from appliance.features.streams.files import About, StoredStream, StreamFiles, open_stream_files
from appliance.features.streams.keys import StreamsConfig
from appliance.features.streams.owner import check_streams, open_streams
from appliance.replay.generation import Generation

LAST = b"data: interrupted\n\n"


@asynccontextmanager
async def opened(
    path: Path,
    max_bytes: int = 1000,
    max_total: int = 100_000,
    *,
    retry: float = 10,
    max_waiting: int = stream_files.MAX_WAITING,
) -> AsyncGenerator[tuple[StreamFiles, list[StoredStream]]]:
    """``stored`` grows when streams of an earlier run are found later."""
    kept = open_stream_files(path, max_bytes, max_total, retry=retry, max_waiting=max_waiting)
    async with kept as (files, stored), trio.open_nursery() as nursery:
        nursery.start_soon(files.write, stored.extend)
        yield files, stored
        nursery.cancel_scope.cancel()


def about(conversation: str) -> About:
    return About(conversation=conversation, started_at=5.0, interrupted=LAST)


def store(files: StreamFiles, name: str, *data: bytes, ended: float | None = None) -> int:
    """A stream that has ended, now or then."""
    key = files.begin(about(name))
    for each in data:
        files.append(key, each)
    files.finish(key, time.time() if ended is None else ended)
    return key


def files_in(folder: Path) -> list[Path]:
    """All but the lock."""
    return sorted(path for path in folder.iterdir() if path.name != "lock")


async def written(path: Path, count: int) -> None:
    await until(lambda: len(files_in(path)) == count, within=10)


async def test_a_stream_that_has_ended_is_there_again(tmp_path: Path):
    async with opened(tmp_path) as (files, stored):
        assert stored == []
        store(files, "é::ü/x", b"data: 1\n\n", b"data: 2\n\n", ended=(done := time.time()))
    async with opened(tmp_path) as (_, stored):
        (found,) = stored
        assert found.about.conversation == "é::ü/x"
        assert found.data == b"data: 1\n\ndata: 2\n\n"
        assert found.completed_at == pytest.approx(done, abs=0.01)
        assert found.about.interrupted_at is None
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
from appliance.features.streams.files import About, open_stream_files

async def main():
    folder = open_stream_files(Path(sys.argv[1]), 1000, 100_000)
    async with folder as (files, stored), trio.open_nursery() as nursery:
        nursery.start_soon(files.write, stored.extend)
        key = files.begin(About(conversation="a", started_at=5.0, interrupted=b"data: interrupted\\n\\n"))
        for number in range(1000):
            files.append(key, b"data: %d\\n\\n" % number)
            if number == 20:
                print("now", flush=True)
            await trio.sleep(0.01)

trio.run(main)
"""


@contextmanager
def started(folder: Path) -> Generator[subprocess.Popen[bytes]]:
    """A program that has begun to keep a stream; it is killed at the end of the block, if not before."""
    with subprocess.Popen([sys.executable, "-c", DIES, str(folder)], stdout=subprocess.PIPE) as program:
        program.stdout.readline()
        try:
            yield program
        finally:
            program.kill()


async def test_who_had_seen_more_than_was_saved_hears_of_the_break(tmp_path: Path):
    line = b'{"conversation":"a","started_at":5,"interrupted":"ZGF0YTogZW5kCgo="}\n'
    (tmp_path / "stream-0000000007.part").write_bytes(line + b"data: 1\n\n")
    async with open_streams(StreamsConfig(path=str(tmp_path))) as streams:
        generation = streams.ids.stream_of("a")
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
        (file,) = await until(lambda: files_in(tmp_path), lambda files: files[0].suffix != ".part")
        assert file.stat().st_size < 2500
    async with opened(tmp_path) as (_, stored):
        (found,) = stored
        assert found.about.dropped + len(found.data) == end
        assert found.data == whole[found.about.dropped : end]
        assert len(found.data) >= 1000


async def test_the_oldest_go_when_there_are_too_many(tmp_path: Path):
    async with opened(tmp_path, max_total=2500) as (files, _):
        for name in "abcd":
            store(files, name, b"x" * 1000)
        await written(tmp_path, 2)
    async with opened(tmp_path, max_total=1500) as (_, stored):
        assert [found.about.conversation for found in stored] == ["d"]


async def test_what_is_discarded_or_too_old_is_deleted(tmp_path: Path):
    async with opened(tmp_path) as (files, _):
        first = files.begin(about("a"))
        files.append(first, b"x")
        store(files, "b", ended=time.time() - 2 * stream_files.FORGOTTEN_AFTER)
        await written(tmp_path, 2)
        files.discard(first)
        await written(tmp_path, 1)
    async with opened(tmp_path) as (_, stored):
        assert stored == []
    assert files_in(tmp_path) == []


@pytest.mark.parametrize("off", [-3600.0, 3600.0])
async def test_a_clock_that_was_wrong_loses_no_stream(tmp_path: Path, off: float):
    """It is kept for as long as if it had ended with the start, though it seems to be from another time."""
    async with opened(tmp_path) as (files, _):
        store(files, "a", b"data: 1\n\n", ended=time.time() + off)
    async with open_streams(StreamsConfig(path=str(tmp_path), keep=60)) as streams:
        await trio.sleep(0.1)  # whatever is over is dropped at once
        assert streams.ids.stream_of("a").end is not None


async def test_files_of_others_and_damaged_ones(tmp_path: Path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "stream-x.sse").write_text("mine")
    (tmp_path / "stream-0000000004.sse").write_bytes(b"\xff\x00")
    async with opened(tmp_path) as (files, stored):
        assert stored == []
        assert files.begin(about("a")) == 5
    assert [path.name for path in files_in(tmp_path)] == ["notes.txt", "stream-0000000005.part", "stream-x.sse"]


@posix_only
async def test_a_full_disk_is_one_warning_and_is_used_again_when_there_is_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO")
    full = trio.Event()

    def begin(name: str) -> Generation:
        generation = streams.open_generation(name)
        streams.start_work(generation, partial(work, RingSink(generation)))
        return generation

    async def work(sink: RingSink) -> None:
        sink.start(200, ((b"content-type", b"text/event-stream"),))
        await full.wait()
        for _ in range(10):
            await sink.write(b"data: 1\n\n")
            await trio.sleep(0.03)
        await sink.end()

    async def hear(generation: Generation) -> None:
        with trio.fail_after(10):
            reader, got = generation.reader(0), b""
            while data := await reader.receive():
                got += data
        assert got == b"data: 1\n\n" * 10

    async with open_streams(StreamsConfig(path=str(tmp_path)), retry=0.05) as streams:
        generations = [begin(name) for name in "ab"]
        await until(lambda: [path.stat().st_size > 0 for path in files_in(tmp_path)] == [True, True])
        with full_disk():
            full.set()
            for generation in generations:
                await hear(generation)
            (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
            assert "in memory alone" in warning
            assert REFUSED in warning
            assert files_in(tmp_path) == []
        await until(lambda: "again" in caplog.text)
        await hear(begin("c"))
    async with open_streams(StreamsConfig(path=str(tmp_path))) as streams:
        assert streams.ids.stream_of("a") is None
        assert streams.ids.stream_of("c") is not None


async def test_a_second_program_takes_nothing_and_goes_on_when_the_first_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    with started(tmp_path) as first:
        async with opened(tmp_path, retry=0.05) as (files, stored):
            assert "another llama-appliance keeps its streams there" in caplog.text
            mine = files.begin(about("mine"))
            files.append(mine, b"data: in memory alone\n\n")
            await trio.sleep(0.2)  # it tries again four times
            assert [path.suffix for path in files_in(tmp_path)] == [".part"]
            first.kill()
            (found,) = await until(lambda: stored)
            assert found.about.conversation == "a"
            assert found.data.endswith(LAST)
            assert store(files, "later", b"data: 1\n\n") > found.key
    async with opened(tmp_path) as (_, stored):
        assert [one.about.conversation for one in stored] == ["a", "later"]


KILLED = """
import os, sys, time
from pathlib import Path
from appliance.features.streams.files import About, Folder

last, path, changes = int(sys.argv[1]), sys.argv[2], 0

def watch(event, args):
    global changes
    writes = event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    if (writes or event in ("os.rename", "os.remove")) and path in str(args[0]) and "lock" not in str(args[0]):
        changes += 1
        if changes == last:
            os.kill(os.getpid(), 9)  # Windows ends it with this status

sys.addaudithook(watch)
folder = Folder(Path(path), 100, 100_000)
folder.load()
at = folder.next_key
for number, name in enumerate("bcd"):
    folder.begin(at + number, About(conversation=name, started_at=5.0, interrupted=b"data: interrupted\\n\\n"))
for step in range(40):
    folder.append(at, b"data: %d\\n\\n" % step)
    folder.append(at + 1, b"data: %d\\n\\n" % step)
    if step % 8 == 0:
        folder.flush()
folder.finish(at, time.time())
folder.discard(at + 2)
"""


def killed_before(change: int, folder: Path) -> bool:
    """Run the program; False when it came to its end before that change."""
    return subprocess.run([sys.executable, "-c", KILLED, str(change), str(folder)], check=False).returncode != 0


@pytest.mark.slow
async def test_killed_before_any_change_of_the_folder_nothing_is_lost(tmp_path: Path):
    """The program is killed right before its Nth change, for every N; an earlier run had died, too."""
    whole = b"".join(b"data: %d\n\n" % step for step in range(40))
    for last in range(1, 1000):
        folder = tmp_path / str(last)
        folder.mkdir()
        line = b'{"conversation":"a","started_at":5,"interrupted":"ZGF0YTogZW5kCgo="}\n'
        (folder / "stream-0000000001.part").write_bytes(line + b"data: 1\n\ndata: to")
        killed = killed_before(last, folder)
        async with opened(folder) as (_, stored):
            found = {one.about.conversation: one for one in stored}
            cut = found.pop("a")
            assert (cut.data, cut.about.interrupted_at) == (b"data: 1\n\ndata: end\n\n", 9)
            assert cut.completed_at == pytest.approx(time.time(), abs=30)
            for one in found.values():
                said = one.data.removesuffix(LAST)
                assert whole[one.about.dropped :].startswith(said)
                assert said == b"" or said.endswith(b"\n\n")
        assert {path.suffix for path in files_in(folder)} <= {".sse"}
        async with opened(folder) as (_, again):
            assert [(one.data, one.about.interrupted_at) for one in again] == [
                (s.data, s.about.interrupted_at) for s in stored
            ]
        if not killed:
            assert found["b"].data == whole[found["b"].about.dropped :]
            assert last > 20
            return
    raise AssertionError("it never came to its end")


async def test_a_disk_that_stands_still_is_given_up(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    async with opened(tmp_path, max_waiting=5000) as (files, _):
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
