"""The memory on disk: no change is lost between programs, and nothing damaged stops one."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from filelock import FileLock, Timeout
from full_disk import REFUSED, full_disk

from appliance.core.versions import StepDone, UpdateBegun
from appliance.errors import Conflict
from appliance.features.engines.core.standing import Proof, ProofKey
from appliance.features.engines.core.state import EngineChosen, EngineState
from appliance.features.engines.shelf import StateFile
from appliance.store import version_file
from appliance.store.version_file import FILE, MAX_SIZE

WRITER = """
import sys
from pathlib import Path
from appliance.features.engines.core.standing import Proof, ProofKey
from appliance.features.engines.shelf import StateFile
file = StateFile(Path(sys.argv[1]))
for number in range(int(sys.argv[3])):
    key = ProofKey(digest=sys.argv[2], device=str(number), driver="", system="s")
    file.apply([Proof(key=key, build="b", device="d", fault=None)])
    print(number, flush=True)
"""
HOLDER = """
import sys, time
from filelock import FileLock
with FileLock(sys.argv[1], timeout=5):
    print("held", flush=True)
    time.sleep(60)
"""
FILES = [FILE] if sys.platform == "win32" else [f".{FILE}.lock", FILE]
"""All that is there between changes: Windows removes a lock when it is released."""
posix_only = pytest.mark.skipif(sys.platform == "win32", reason="signals, and permissions of folders")


def proof(number: int = 0) -> Proof:
    key = ProofKey(digest="d", device=str(number), driver="", system="s")
    return Proof(key=key, build="b", device="d", fault=None, prompt_speed=10.5, at=1e9)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "engines"


def start(code: str, *words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", code, *words], stdout=subprocess.PIPE)


def test_a_change_is_there_for_the_next_program(folder: Path) -> None:
    assert StateFile(folder).read() == EngineState()
    assert not folder.exists(), "who only reads writes nothing"
    after = StateFile(folder).apply([proof()])
    assert after.proofs == (proof(),)
    assert StateFile(folder).read() == after
    assert sorted(each.name for each in folder.iterdir()) == FILES


def test_an_event_that_is_refused_changes_nothing(folder: Path) -> None:
    begun = UpdateBegun(build="l-x-cpu/b2", old="l-x-cpu/b1", at=1.0)
    after = StateFile(folder).apply([begun, *[StepDone(1.0)] * 3])
    with pytest.raises(Conflict):
        StateFile(folder).apply([EngineChosen(word="cpu"), begun])
    assert StateFile(folder).read() == after


def test_a_change_that_changes_nothing_writes_nothing(folder: Path) -> None:
    StateFile(folder).apply([proof()])
    path = folder / FILE
    before = path.stat().st_mtime_ns, path.stat().st_ino
    StateFile(folder).apply([proof()])
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == before


def test_programs_that_write_at_the_same_time_lose_nothing(folder: Path) -> None:
    count = 25
    writers = [start(WRITER, str(folder), name, str(count)) for name in ("one", "two", "three")]
    for writer in writers:
        writer.communicate(timeout=60)
        assert writer.returncode == 0
    digests = [one.key.digest for one in StateFile(folder).read().proofs]
    assert {name: digests.count(name) for name in digests} == dict.fromkeys(("one", "two", "three"), count)


@posix_only
@pytest.mark.parametrize("after", [0.0, 0.001, 0.003, 0.01, 0.03])
def test_a_program_that_is_killed_while_it_writes_leaves_a_whole_file(folder: Path, after: float) -> None:
    writer = start(WRITER, str(folder), "killed", "5000")
    writer.stdout.readline()
    time.sleep(after)
    writer.send_signal(signal.SIGKILL)
    told = len(writer.stdout.read().split()) + 1
    writer.stdout.close()
    writer.wait()
    proofs = StateFile(folder).read().proofs
    assert told <= len(proofs) <= told + 1 or len(proofs) == 200
    assert StateFile(folder).apply([proof()]).proofs[-1] == proof(), "the lock has gone with it"
    assert not list(folder.glob("*.unreadable"))


@pytest.mark.parametrize(
    "contents",
    [
        b"",
        b"{",
        b"\xff\xfe\x00",
        b"[]",
        b'{"version": 1}',
        b'{"version": 1, "state": {"proofs": [7]}}',
        b'{"version": 2, "state": {}}',
        b'{"state": {}}',
        b'{"version": 1, "state": {}, "more": ' + b"[" * 200_000,
        b'{"version": 1, "state": {"pinned": "' + b"x" * MAX_SIZE + b'"}}',
    ],
    ids=lambda value: repr(value[:24]),
)
def test_what_cannot_be_read_is_moved_aside_and_told(
    contents: bytes, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder.mkdir()
    (folder / FILE).write_bytes(contents)
    file = StateFile(folder)
    assert file.read() == EngineState()
    assert (folder / f"{FILE}.unreadable").read_bytes() == contents
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "could not be read" in record.message
    assert file.apply([proof()]) == StateFile(folder).read()
    assert len(caplog.records) == 1


def test_keys_of_a_newer_program_do_not_matter(folder: Path) -> None:
    StateFile(folder).apply([proof()])
    plain = msgspec.json.decode((folder / FILE).read_bytes())
    plain["later"] = plain["state"]["later"] = [1]
    (folder / FILE).write_bytes(msgspec.json.encode(plain))
    assert StateFile(folder).read().proofs == (proof(),)


@posix_only
def test_on_a_full_disk_the_old_file_stays_whole(folder: Path) -> None:
    StateFile(folder).apply([proof(1)])
    with full_disk():
        with pytest.raises(OSError, match=REFUSED):
            StateFile(folder).apply([proof(2)])
        assert len(StateFile(folder).read().proofs) == 1
        assert not list(folder.glob("*.new"))
        assert not list(folder.glob(".*.new"))
    assert len(StateFile(folder).apply([proof(3)]).proofs) == 2


def test_a_file_where_the_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "engines").write_bytes(b"")
    file = StateFile(tmp_path / "engines")
    if sys.platform != "win32":  # Windows says of a file in a file that it is not there
        with pytest.raises(OSError, match="engines"):
            file.read()
    with pytest.raises(OSError, match="engines"):
        file.apply([proof()])


def test_a_lock_that_is_kept_is_an_error_after_a_while_and_goes_with_its_holder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(version_file, "WAIT", 0.2)
    folder.mkdir()
    lock = folder / f".{FILE}.lock"
    holder = start(HOLDER, str(lock))
    try:
        assert holder.stdout.readline().strip() == b"held"
        with pytest.raises(Timeout):
            StateFile(folder).apply([proof()])
    finally:
        holder.kill()
        holder.communicate()
    assert StateFile(folder).apply([proof()]).proofs == (proof(),)
    with FileLock(lock, timeout=0):
        assert StateFile(folder).read().proofs == (proof(),), "who only reads needs no lock"
