"""A partial file holds exactly what was received, whatever ended the program."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.store import partial_file
from appliance.store.partial_file import (
    JOURNAL,
    FileTaken,
    PartialHead,
    PartialSource,
    WrongContents,
    claim,
    discard,
    holds,
    journaled,
    open_partial,
)

CHUNK = 64
DATA = bytes(range(256)) * 3 + b"end"


def head(data: bytes = DATA) -> PartialHead:
    return PartialHead(oid=hashlib.sha256(data).hexdigest(), size=len(data), repo="o/r", path="m.gguf")


def nothing() -> None:
    """Never asks to stop."""


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partial_file, "CHUNK", CHUNK)


GIT = PartialHead(oid=hashlib.sha1(b"blob %d\0" % len(DATA) + DATA).hexdigest(), size=len(DATA), repo="o/r", path="x")


@pytest.mark.parametrize("whole", [head(), GIT], ids=["sha256", "git"])
def test_a_file_in_pieces_gets_its_name_and_leaves_nothing_else(tmp_path: Path, whole: PartialHead) -> None:
    final = tmp_path / "blob"
    partial = open_partial(final, head(b"other"), nothing)
    partial.write(b"oth")
    partial.close()
    partial = open_partial(final, whole, nothing)
    assert partial.length == 0, "the part of other contents is no part of it"
    partial.write(b"x" * 200)
    partial.start_over()
    for at in range(0, 100, 50):
        partial.write(DATA[at : at + 50])
    partial.came_from(PartialSource("host", '"1"'))
    partial.close()
    assert journaled(final) == (whole, 100)
    again = open_partial(final, whole, nothing)
    assert (again.length, again.source) == (100, PartialSource("host", '"1"'))
    again.write(DATA[100:])
    assert not final.exists()
    again.finish()
    assert final.read_bytes() == DATA
    assert [path.name for path in tmp_path.iterdir()] == ["blob"]
    begun = open_partial(tmp_path / "discarded", whole, nothing)
    begun.write(DATA[:100])
    begun.close()
    discard(tmp_path / "discarded")
    assert [path.name for path in tmp_path.iterdir()] == ["blob"]
    assert journaled(tmp_path / "discarded") is None


@pytest.mark.parametrize("written", [DATA[:-1] + b"x", DATA[:-1], DATA + b"x"])
def test_wrong_contents_never_get_the_name(tmp_path: Path, written: bytes) -> None:
    partial = open_partial(tmp_path / "blob", head(), nothing)

    def complete() -> None:
        partial.write(written)
        partial.finish()

    with pytest.raises(WrongContents):
        complete()
    partial.close()
    assert list(tmp_path.iterdir()) == []


def test_a_listing_of_unfinished_files_does_not_hinder_the_last_byte(tmp_path: Path) -> None:
    """A listing reads the journal, and Windows removes no file that is open."""
    partial = open_partial(tmp_path / "blob", head(), nothing)
    partial.write(DATA)
    with (tmp_path / f"blob{JOURNAL}").open("rb") as reader:
        soon = threading.Timer(0.05, reader.close)
        soon.start()
        partial.finish()
        soon.join()
    assert [path.name for path in tmp_path.iterdir()] == ["blob"]


def test_what_a_file_holds(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(DATA)
    for oid in (head().oid, GIT.oid):
        assert holds(path, oid, len(DATA), nothing)
        assert holds(path, oid, None, nothing)
        assert not holds(path, oid, len(DATA) + 1, nothing)
        path.write_bytes(DATA[:-1] + b"x")
        assert not holds(path, oid, len(DATA), nothing)
        path.write_bytes(DATA)

    def stop() -> None:
        raise InterruptedError

    assert not holds(path, GIT.oid, 1, stop), "a file of another size is not read"
    with pytest.raises(InterruptedError):
        holds(path, GIT.oid, len(DATA), stop)


@given(data=st.data(), received=st.integers(0, len(DATA) - 1))
def test_whatever_a_power_cut_leaves_the_file_ends_up_whole(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, received: int
) -> None:
    """Bytes in the middle changed, ends lost or zeroed, the journal torn: what is good is kept, the rest is not."""
    folder = tmp_path_factory.mktemp("cut")
    final = folder / "blob"
    partial = open_partial(final, head(), nothing)
    partial.write(DATA[:received])
    partial.close()
    part, journal = folder / "blob.part", folder / "blob.part.journal"
    damage: dict[str, Callable[[Path], None]] = {
        "cut": lambda path: os.truncate(path, data.draw(st.integers(0, path.stat().st_size))),
        "longer": lambda path: path.write_bytes(path.read_bytes() + bytes(data.draw(st.integers(1, 100)))),
        "changed": lambda path: _change(path, data.draw(st.integers(0, max(0, path.stat().st_size - 1)))),
        "gone": lambda path: path.unlink(),
        "nothing": lambda path: None,
    }
    for path in (part, journal):
        damage[data.draw(st.sampled_from(sorted(damage)))](path)
    again = open_partial(final, head(), nothing)
    assert again.length <= received
    assert part.read_bytes() == DATA[: again.length]
    again.write(DATA[again.length :])
    again.finish()
    assert final.read_bytes() == DATA


def _change(path: Path, at: int) -> None:
    text = bytearray(path.read_bytes())
    if text:
        text[at] ^= 1
        path.write_bytes(text)


WRITER = """
import sys, hashlib
from pathlib import Path
from appliance.store import partial_file
from appliance.store.partial_file import PartialHead
partial_file.CHUNK = 65536
block = bytes(range(256)) * 64
size = 64 << 20
head = PartialHead(oid="0" * 64, size=size, repo="o/r", path="m.gguf")
partial = partial_file.open_partial(Path(sys.argv[1]), head, lambda: None)
print(partial.length, flush=True)
while partial.length < size:
    partial.write(block)
"""


def test_a_killed_process_loses_less_than_a_chunk(tmp_path: Path) -> None:
    final = tmp_path / "blob"
    begun = 0
    for _ in range(3):
        with subprocess.Popen([sys.executable, "-c", WRITER, str(final)], stdout=subprocess.PIPE) as writer:
            assert int(writer.stdout.readline()) == begun
            wanted = begun + (1 << 20)
            while (final.with_name("blob.part")).stat().st_size < wanted:
                assert writer.poll() is None
            writer.kill()
        written = final.with_name("blob.part").stat().st_size
        found = journaled(final)
        begun = found[1]
        assert written - 65536 <= begun <= written


def test_one_process_at_a_time(tmp_path: Path) -> None:
    lock = claim(tmp_path / ".locks" / "a.lock")
    with pytest.raises(FileTaken):
        claim(tmp_path / ".locks" / "a.lock")
    script = (
        "import sys; from pathlib import Path; from appliance.store.partial_file import claim, FileTaken\n"
        "try: claim(Path(sys.argv[1]))\nexcept FileTaken: print('taken')"
    )
    command = [sys.executable, "-c", script, str(tmp_path / ".locks" / "a.lock")]
    assert subprocess.run(command, capture_output=True, text=True, timeout=30).stdout == "taken\n"
    lock.release()
    assert subprocess.run(command, capture_output=True, text=True, timeout=30).stdout == ""
    claim(tmp_path / ".locks" / "a.lock").release()
