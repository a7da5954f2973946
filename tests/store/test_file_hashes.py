"""Hashes are remembered for the very file that was read, across programs; a damaged store costs only time."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from full_disk import full_disk, posix_only
from links import needs_links

from appliance.store.file_hashes import PIECE, FileHashes


def write(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def test_a_hash_is_remembered_until_its_file_changes(tmp_path: Path) -> None:
    path, store, read = tmp_path / "model.gguf", tmp_path / "hashes.json", list[int]()
    sha256 = write(path, os.urandom(PIECE + 5))
    hashes = FileHashes(store)
    assert hashes.known(path) is None
    assert hashes.compute(path, read.append) == sha256
    assert read == [PIECE, PIECE + 5]
    assert hashes.known(path) == FileHashes(store).known(path) == sha256
    before = path.stat()
    write(path, os.urandom(PIECE + 5))
    assert FileHashes(store).known(path) is None, "the same size"
    other = tmp_path / "other"
    write(other, path.read_bytes())
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(path)
    assert FileHashes(store).known(path) is None, "another file with the name, size and time"


def test_hashes_of_files_that_are_gone_go_with_the_next(tmp_path: Path) -> None:
    store, hashes = tmp_path / "hashes.json", FileHashes(tmp_path / "hashes.json")
    for name in ("a", "b"):
        write(tmp_path / name, name.encode())
        hashes.compute(tmp_path / name, lambda _: None)
        (tmp_path / name).unlink()
    assert b'/a"' not in store.read_bytes()
    assert b'/b"' in store.read_bytes()


def test_a_file_that_changes_while_it_is_read_has_no_hash(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write(path, b"x" * 100)
    hashes = FileHashes(tmp_path / "hashes.json")
    with pytest.raises(OSError, match="changed"):
        hashes.compute(path, lambda _: path.write_bytes(b"y"))
    assert hashes.known(path) is None


@needs_links
def test_the_hubs_cache_names_its_files_by_their_hash(tmp_path: Path) -> None:
    link = tmp_path / "model.gguf"
    (tmp_path / ("a" * 64)).touch()
    link.symlink_to("a" * 64)
    assert FileHashes(tmp_path / "none").known(link) == "a" * 64
    (tmp_path / "plain").touch()
    link.unlink()
    link.symlink_to("plain")
    assert FileHashes(tmp_path / "none").known(link) is None


@posix_only
@pytest.mark.parametrize("content", [b"", b"{", b'{"version":9,"hashes":[]}', b"[" * 100_000, b"\xff\0"])
def test_a_store_that_is_no_use_costs_only_time(tmp_path: Path, content: bytes) -> None:
    path, store = tmp_path / "model.gguf", tmp_path / "hashes.json"
    sha256 = write(path, b"abc")
    store.write_bytes(content)
    hashes = FileHashes(store)
    assert hashes.known(path) is None
    with full_disk():
        assert hashes.compute(path, lambda _: None) == sha256
    assert hashes.known(path) == sha256
    assert FileHashes(store).known(path) is None
    assert hashes.compute(path, lambda _: None) == sha256
    assert FileHashes(store).known(path) == sha256
