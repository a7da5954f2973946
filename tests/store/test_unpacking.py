"""Archives of builds reach nothing beyond the folder that they are unpacked into."""

from __future__ import annotations

import gzip
import io
import os
import shutil
import stat
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hostile_files import CLAIMS, TARS, hostile
from hypothesis import given
from hypothesis import strategies as st
from memory import peak

from appliance.core.archives import BadArchive
from appliance.store import unpacking
from appliance.store.unpacking import read_member, unpack

Tar = tarfile.TarFile


def file_in(tar: Tar, name: str, content: bytes = b"content", mode: int = 0o644) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), mode
    tar.addfile(info, io.BytesIO(content))


def link_in(tar: Tar, name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> None:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    tar.addfile(info)


def tar_of(path: Path, fill: Callable[[Tar], None]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        fill(tar)
    return path


def everything(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())


def device(tar: Tar) -> None:
    info = tarfile.TarInfo("null")
    info.type, info.devmajor, info.devminor = tarfile.CHRTYPE, 1, 3
    tar.addfile(info)


def after(first: Callable[[Tar], None], *then: Callable[[Tar], None]) -> Callable[[Tar], None]:
    return lambda tar: [fill(tar) for fill in (first, *then)] and None


def up(tar: Tar) -> None:
    link_in(tar, "a", "..")


HOSTILE: dict[str, Callable[[Tar], None]] = {
    "absolute": lambda tar: file_in(tar, "/tmp/outside"),
    "upwards": lambda tar: file_in(tar, "a/../../outside"),
    "backslash": lambda tar: file_in(tar, "..\\outside"),
    "drive": lambda tar: file_in(tar, "C:outside"),
    "link out": lambda tar: link_in(tar, "a", "../outside"),
    "absolute link": lambda tar: link_in(tar, "a", "/etc/passwd"),
    "link to nothing": lambda tar: link_in(tar, "a", "b"),
    "through a link": after(up, lambda tar: file_in(tar, "a/b")),
    "a link through a link": after(up, lambda tar: file_in(tar, "x"), lambda tar: link_in(tar, "a/b", "x")),
    "a deeper one": after(up, lambda tar: file_in(tar, "x"), lambda tar: link_in(tar, "a/b/c", "x")),
    "hard link out": lambda tar: link_in(tar, "a", "../outside", tarfile.LNKTYPE),
    "hard link to nothing": lambda tar: link_in(tar, "a", "b", tarfile.LNKTYPE),
    "device": device,
    "fifo": lambda tar: link_in(tar, "a", "", tarfile.FIFOTYPE),
    "twice": after(lambda tar: file_in(tar, "a"), lambda tar: file_in(tar, "./a")),
    "line in a name": lambda tar: file_in(tar, "a\nb"),
    "colours in a name": lambda tar: file_in(tar, "a\x1b[2J"),
    "no text": lambda tar: file_in(tar, "a\udcff"),
}


@pytest.mark.parametrize("hostile", HOSTILE)
def test_an_archive_that_reaches_out_is_refused(tmp_path: Path, hostile: str) -> None:
    (tmp_path / "outside").write_text("mine")
    archive = tar_of(tmp_path / "evil.tar.gz", HOSTILE[hostile])
    with pytest.raises(BadArchive):
        unpack(archive, tmp_path / "into")
    assert (tmp_path / "outside").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["evil.tar.gz", "into", "outside"]


BACKSLASH = pytest.param(
    "a\\evil", marks=pytest.mark.skipif(sys.platform == "win32", reason="Python reads it as a/evil on Windows")
)


@pytest.mark.parametrize("name", ["../evil", "/tmp/evil", "a/../../evil", "C:evil", BACKSLASH, "a\nevil"])
def test_names_in_a_zip_are_held_to_the_same(tmp_path: Path, name: str) -> None:
    archive = tmp_path / "a.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("llama-server", b"x")
        file.writestr(name, b"gotcha")
    with pytest.raises(BadArchive, match="a file with the path"):
        unpack(archive, tmp_path / "into")
    assert not list(tmp_path.rglob("*evil*"))


@pytest.mark.skipif(sys.platform == "win32", reason="no symbolic links without a privilege")
def test_modes_and_links_are_kept_as_upstream_has_them(tmp_path: Path) -> None:
    def fill(tar: Tar) -> None:
        link_in(tar, "llama/libggml.so", "libggml.so.0")
        link_in(tar, "llama/libggml.so.0", "libggml.so.0.1")
        file_in(tar, "llama/libggml.so.0.1", b"library", 0o755)
        file_in(tar, "llama/LICENSE", b"MIT", 0o6644)
        link_in(tar, "llama/again", "llama/LICENSE", tarfile.LNKTYPE)

    unpack(tar_of(tmp_path / "a.tar.gz", fill), tmp_path / "into")
    build = tmp_path / "into" / "llama"
    assert str((build / "libggml.so").readlink()) == "libggml.so.0"
    assert (build / "libggml.so").read_bytes() == b"library"
    assert stat.S_IMODE((build / "libggml.so.0.1").stat().st_mode) == 0o755
    assert stat.S_IMODE((build / "LICENSE").stat().st_mode) == 0o644
    assert (build / "again").read_bytes() == b"MIT"


@pytest.mark.skipif(sys.platform == "win32", reason="no symbolic links without a privilege")
def test_links_in_a_zip_are_held_to_the_same(tmp_path: Path) -> None:
    for target, good in (("real", True), ("../outside", False), ("/etc/passwd", False)):
        archive = tmp_path / f"{len(target)}.zip"
        with zipfile.ZipFile(archive, "w") as file:
            file.writestr("real", b"content")
            link = zipfile.ZipInfo("link")
            link.external_attr = (stat.S_IFLNK | 0o777) << 16
            file.writestr(link, target)
        into = tmp_path / f"into-{len(target)}"
        if good:
            unpack(archive, into)
            assert (into / "link").read_bytes() == b"content"
        else:
            with pytest.raises(BadArchive, match="out of the folder"):
                unpack(archive, into)


@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.DIRTYPE])
def test_archives_of_many_files_or_folders_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: bytes
) -> None:
    monkeypatch.setattr(unpacking, "MAX_FILES", 10)
    many = tar_of(tmp_path / "many.tar.gz", lambda tar: [link_in(tar, f"{i}", "", kind) for i in range(11)] and None)
    with pytest.raises(BadArchive, match="more than 10 files"):
        unpack(many, tmp_path / "many")


@pytest.mark.parametrize("bound", ["MAX_BYTES", "SMALL"])
def test_an_archive_that_grows_beyond_all_measure_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    """Beyond what any build has, or beyond what an archive of this size may become."""
    monkeypatch.setattr(unpacking, bound, 1 << 20)
    bomb = tmp_path / "bomb.zip"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("zeros", bytes(8 << 20))
    allowed = 1 << 20 if bound == "MAX_BYTES" else bomb.stat().st_size * unpacking.MAX_RATIO
    assert allowed < 8 << 20
    with pytest.raises(BadArchive, match="larger than"):
        unpack(bomb, tmp_path / "bomb")
    assert sum(path.stat().st_size for path in (tmp_path / "bomb").rglob("*")) <= allowed


@pytest.mark.slow
@pytest.mark.parametrize("claim", [*CLAIMS, *TARS])
def test_an_archive_takes_no_memory_for_what_it_claims(tmp_path: Path, claim: str) -> None:
    """Neither is a member read at once, nor are the words that tell of members. A few refusals would take seconds."""
    archive = tmp_path / ("a.zip" if claim in CLAIMS else "a.tar.gz")
    archive.write_bytes(hostile(claim))
    before = peak(anew=True)
    for read in (lambda: read_member(archive, "a.jsonl", 1 << 20), lambda: unpack(archive, tmp_path / "into")):
        with suppress(BadArchive):
            read()
    took = peak() - before
    print(f"{claim}, {archive.stat().st_size} bytes: {took >> 20} MiB")
    assert took < 110 << 20


@pytest.mark.parametrize(
    ("claim", "said"),
    [
        ("bzip2", "packed with bzip2; pack it again with deflate"), ("lzma", "packed with lzma"),
        ("encrypted", "without a password"), ("many names", "more than 4 MiB to say what is in it"),
        ("attributes of all", "more than 4 MiB to say"), ("many attributes", "more than 100 things"),
    ],
)  # fmt: skip
def test_what_is_refused_is_named(tmp_path: Path, claim: str, said: str) -> None:
    archive = tmp_path / ("a.zip" if claim in CLAIMS else "a.tar.gz")
    archive.write_bytes(hostile(claim))
    with pytest.raises(BadArchive, match=f"^{archive.name}: .*{said}"):
        unpack(archive, tmp_path / "into")


def test_a_chain_of_attributes_without_a_file_is_a_damaged_archive(tmp_path: Path) -> None:
    head = tarfile.TarInfo("x")
    head.type, head.size = tarfile.GNUTYPE_LONGNAME, 1
    record = head.tobuf(tarfile.GNU_FORMAT) + b"x".ljust(512, b"\0")
    archive = tmp_path / "a.tar.gz"
    with gzip.open(archive, "wb") as file:
        file.write(record * 900)
    with pytest.raises(BadArchive):
        unpack(archive, tmp_path / "into")


def test_an_archive_does_not_take_the_last_of_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "SPARE", shutil.disk_usage(tmp_path).total)
    archive = tar_of(tmp_path / "a.tar.gz", lambda tar: file_in(tar, "a", bytes(64 << 20)))
    with pytest.raises(BadArchive, match="the room that is left"):
        unpack(archive, tmp_path / "into")


@pytest.mark.parametrize("name", ["CON", "nul", "aux.dll", "com1", "LPT9.txt", "conin$"])
def test_names_that_windows_takes_for_devices(name: str) -> None:
    assert unpacking.RESERVED.fullmatch(name)
    assert not unpacking.RESERVED.fullmatch(f"{name}x".replace(".", "_"))


@pytest.mark.parametrize("name", ["cut.tar.gz", "cut.zip", "noise.tar.gz", "noise.zip", "empty.tar.gz"])
def test_a_damaged_archive_is_an_error_that_names_it(tmp_path: Path, name: str) -> None:
    source = tar_of(tmp_path / "whole.tar.gz", lambda tar: file_in(tar, "a", os.urandom(100_000)))
    content = {"cut": source.read_bytes()[:50_000], "noise": os.urandom(4000), "empty": b""}[name.partition(".")[0]]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadArchive, match="is damaged, or no archive"):
        unpack(tmp_path / name, tmp_path / "into")


NAMES = st.text(st.sampled_from("ab./\\:\0"), min_size=1, max_size=8)


@given(members=st.lists(st.tuples(NAMES, st.one_of(st.none(), NAMES), st.booleans()), max_size=6))
def test_whatever_is_in_it_nothing_leaves_the_folder(members: list[tuple[str, str | None, bool]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        base = Path(name) / "1" / "2" / "3" / "4"
        base.mkdir(parents=True)
        archive = base / "a.tar.gz"

        def fill(tar: Tar) -> None:
            for path, target, hard in members:
                if target is None:
                    file_in(tar, path)
                else:
                    link_in(tar, path, target, tarfile.LNKTYPE if hard else tarfile.SYMTYPE)

        tar_of(archive, fill)
        with suppress(BadArchive):
            unpack(archive, base / "into")
        outside = [path for path in everything(Path(name)) if not path.startswith("1/2/3/4/into/")]
        assert outside == ["1/2/3/4/a.tar.gz"]
        root = (base / "into").resolve()
        for path in (base / "into").rglob("*"):
            assert not path.exists() or path.resolve().is_relative_to(root)


def test_one_file_is_read_without_unpacking_the_rest(tmp_path: Path) -> None:
    archive = tar_of(tmp_path / "a.tar.gz", lambda tar: file_in(tar, "llama-b1/engine.json", b"{}"))
    assert read_member(archive, "engine.json", 100) == b"{}"
    assert read_member(archive, "other.json", 100) is None
