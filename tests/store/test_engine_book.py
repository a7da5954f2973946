"""The book on disk: no change is lost between programs, and nothing on the disk stops one."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from full_disk import full_disk
from msgspec import structs

from appliance.core.engines.book import Book
from appliance.core.engines.proofs import Proof, ProofKey
from appliance.store import engine_book, file_lock
from appliance.store.engine_book import MAX_SIZE, BookFile

WRITER = """
import sys
from msgspec import structs
from pathlib import Path
from appliance.core.engines.proofs import Proof, ProofKey
from appliance.store.engine_book import BookFile
book = BookFile(Path(sys.argv[1]))
for number in range(int(sys.argv[3])):
    key = ProofKey(digest=sys.argv[2], device=str(number), driver="", system="s")
    book.change(lambda old: old.with_proof(Proof(key=key, build="b", device="d", fault=None)))
    print(number, flush=True)
"""
HOLDER = """
import sys, time
from pathlib import Path
from appliance.store.file_lock import file_lock
with file_lock(Path(sys.argv[1]), 5) as held:
    print(held, flush=True)
    time.sleep(60)
"""
posix_only = pytest.mark.skipif(sys.platform == "win32", reason="signals, and permissions of folders")


def proof(number: int = 0) -> Proof:
    key = ProofKey(digest="d", device=str(number), driver="", system="s")
    return Proof(key=key, build="b", device="d", fault=None, prompt_speed=10.5, at=1e9)


def proven(number: int = 0) -> Callable[[Book], Book]:
    return lambda book: book.with_proof(proof(number))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "engines" / "book.json"


def start(code: str, *words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", code, *words], stdout=subprocess.PIPE)


def test_a_change_is_there_for_the_next_program(path: Path) -> None:
    assert BookFile(path).read() == Book()
    after = BookFile(path).change(proven())
    assert after.proofs == (proof(),)
    assert BookFile(path).read() == after
    assert sorted(each.name for each in path.parent.iterdir()) == ["book.json", "book.json.lock"]


def test_a_change_that_changes_nothing_writes_nothing(path: Path) -> None:
    BookFile(path).change(proven())
    before = path.stat().st_mtime_ns, path.stat().st_ino
    BookFile(path).change(lambda book: book)
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == before


def test_programs_that_write_at_the_same_time_lose_nothing(path: Path) -> None:
    count = 25
    writers = [start(WRITER, str(path), name, str(count)) for name in ("one", "two", "three")]
    for writer in writers:
        writer.communicate(timeout=60)
        assert writer.returncode == 0
    digests = [one.key.digest for one in BookFile(path).read().proofs]
    assert {name: digests.count(name) for name in ("one", "two", "three")} == {
        "one": count,
        "two": count,
        "three": count,
    }


@posix_only
@pytest.mark.parametrize("after", [0.0, 0.001, 0.003, 0.01, 0.03])
def test_a_program_that_is_killed_while_it_writes_leaves_a_whole_book(path: Path, after: float) -> None:
    writer = start(WRITER, str(path), "killed", "5000")
    assert writer.stdout is not None
    writer.stdout.readline()
    time.sleep(after)
    writer.send_signal(signal.SIGKILL)
    told = len(writer.stdout.read().split()) + 1
    writer.stdout.close()
    writer.wait()
    proofs = BookFile(path).read().proofs
    assert told <= len(proofs) <= told + 1 or len(proofs) == 200
    assert BookFile(path).change(proven()).proofs[-1] == proof(), "the lock has gone with it"
    assert not list(path.parent.glob("*.unreadable"))


@pytest.mark.parametrize(
    "contents",
    [
        b"",
        b"{",
        b"\xff\xfe\x00",
        b"[]",
        b'{"version": 1}',
        b'{"version": 1, "book": {"proofs": [7]}}',
        b'{"version": 2, "book": {}}',
        b'{"book": {}}',
        b'{"version": 1, "book": {}, "more": ' + b"[" * 200_000,
        b'{"version": 1, "book": {"pinned": "' + b"x" * MAX_SIZE + b'"}}',
    ],
    ids=lambda value: repr(value[:24]),
)
def test_what_cannot_be_read_is_moved_aside_and_told(
    contents: bytes, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.parent.mkdir()
    path.write_bytes(contents)
    book = BookFile(path)
    assert book.read() == Book()
    aside = path.with_name("book.json.unreadable")
    assert aside.read_bytes() == contents
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "could not be read" in record.message
    assert book.change(proven()) == BookFile(path).read()
    assert len(caplog.records) == 1


def test_keys_of_a_newer_program_do_not_matter(path: Path) -> None:
    BookFile(path).change(proven())
    plain = msgspec.json.decode(path.read_bytes())
    plain["later"] = plain["book"]["later"] = [1]
    path.write_bytes(msgspec.json.encode(plain))
    assert BookFile(path).read().proofs == (proof(),)


@posix_only
def test_on_a_full_disk_it_goes_on_in_memory_and_says_so_once(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    book = BookFile(path)
    book.change(proven(1))
    with full_disk():
        book.change(proven(2))
        assert [one.key.device for one in book.change(proven(3)).proofs] == ["1", "2", "3"]
        assert len(book.read().proofs) == 3
        assert len(BookFile(path).read().proofs) == 1, "the old book is whole"
        assert not list(path.parent.glob("*.new"))
        assert [record.message.count("cannot be written") for record in caplog.records] == [1]
    book.change(lambda old: old)
    assert len(BookFile(path).read().proofs) == 3, "as soon as there is room it is written"


def test_a_file_where_the_folder_should_be(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "engines").write_bytes(b"")
    book = BookFile(tmp_path / "engines" / "book.json")
    assert book.read() == Book()
    assert book.change(proven()).proofs == (proof(),)
    assert book.read().proofs == (proof(),)
    assert len(caplog.records) == 1


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="nothing is forbidden to the superuser")
def test_a_folder_that_nobody_may_write_into(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    BookFile(path).change(proven(1))
    path.with_name("book.json.lock").unlink()
    path.parent.chmod(0o500)
    try:
        book = BookFile(path)
        assert len(book.read().proofs) == 1
        assert len(book.change(proven(2)).proofs) == 2
        assert len(book.read().proofs) == 2
        assert len(caplog.records) == 1
    finally:
        path.parent.chmod(0o700)


def test_somebody_who_keeps_the_lock_stops_nobody_for_long(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.parent.mkdir()
    monkeypatch.setattr(engine_book, "LOCK_TIME", 0.2)
    holder = start(HOLDER, str(path.with_name("book.json.lock")))
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline().strip() == b"True"
        began = time.monotonic()
        assert BookFile(path).change(proven()).proofs == (proof(),)
        assert time.monotonic() - began < 3
        assert BookFile(path).read().proofs == (proof(),)
    finally:
        holder.kill()
        holder.communicate()
    with file_lock.file_lock(path.with_name("book.json.lock"), 0.0) as held:
        assert held, "a lock goes with the process that held it"


def test_what_the_user_chose_is_kept_with_the_rest(path: Path) -> None:
    chosen = structs.replace(Book(), use="vulkan", pinned=True, models={"m": "cpu"})
    BookFile(path).change(lambda _: chosen)
    assert BookFile(path).read() == chosen
