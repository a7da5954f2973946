"""Archives of builds, unpacked so that nothing in them can reach beyond the folder that they are unpacked into.

Everything here waits for the disk: call it in a thread.
"""

from __future__ import annotations

import gzip
import lzma
import os
import stat
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

from msgspec import Struct

MAX_FILES = 5000
"""llama.cpp's archives have about fifty; CUDA's libraries add ten."""
MAX_BYTES = 16 << 30
"""Unpacked. The largest that is known, ROCm with its kernels, takes 4 GB."""
BLOCK = 1 << 20
DAMAGED = (
    zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError, NotImplementedError,
)  # fmt: skip
SUFFIXES = (".zip", ".tar.gz", ".tgz", ".tar.xz")


class BadArchive(Exception):
    """An archive that is damaged, or has something in it that no build has; the message says what."""


class _Member(Struct, frozen=True, kw_only=True):
    """A file, or with ``target`` a symbolic link, or with ``copy_of`` another name of a file before it."""

    path: str
    executable: bool = False
    target: str | None = None
    copy_of: str | None = None
    open: Callable[[], IO[bytes]] | None = None


def is_archive(path: Path) -> bool:
    return path.name.lower().endswith(SUFFIXES)


def unpack(archive: Path, into: Path, check: Callable[[], None] = lambda: None) -> None:
    """Unpack into ``into``, a new folder, all of it brought to the disk. ``check`` is called often and may raise.

    Raises BadArchive, and OSError. Modes are reduced to executable or not; symbolic links stay what they are where
    they lead to a file in the folder, and are refused otherwise.
    """
    into.mkdir(parents=True)
    with _members(archive) as members:
        _write(members, into, check)


def read_member(archive: Path, name: str, limit: int) -> bytes | None:
    """The file of this name in whatever folder of the archive, None without it. Raises BadArchive, OSError."""
    with _members(archive) as members:
        for member in members:
            if PurePosixPath(member.path).name == name and member.open is not None:
                with member.open() as contents:
                    return contents.read(limit)
    return None


@contextmanager
def _members(archive: Path) -> Generator[Iterator[_Member]]:
    """What is in it, in order; all that is wrong with the archive itself is a BadArchive."""
    try:
        if archive.name.lower().endswith(".zip"):
            with zipfile.ZipFile(archive) as file:
                yield _zipped(file)
        else:
            with tarfile.open(archive, "r:*") as file:
                yield _tarred(file)
    except DAMAGED as cause:
        raise BadArchive(f"{archive.name} is damaged, or no archive: {cause}") from None


def _zipped(file: zipfile.ZipFile) -> Iterator[_Member]:
    for info in file.infolist():
        mode = info.external_attr >> 16
        if info.is_dir():
            continue
        if stat.S_ISLNK(mode):
            if info.file_size > 4096:
                raise BadArchive(f"{info.filename}: a link with a target of {info.file_size} bytes")
            yield _Member(path=info.filename, target=file.read(info).decode("utf-8", "replace"))
        elif stat.S_IFMT(mode) not in (0, stat.S_IFREG):
            raise BadArchive(f"{info.filename} is neither a file nor a folder")
        else:
            executable = bool(mode & 0o100)
            yield _Member(path=info.filename, executable=executable, open=lambda info=info: file.open(info))


def _tarred(file: tarfile.TarFile) -> Iterator[_Member]:
    for info in file:
        if info.isdir():
            continue
        if info.issym():
            yield _Member(path=info.name, target=info.linkname)
        elif info.islnk():
            yield _Member(path=info.name, executable=bool(info.mode & 0o100), copy_of=info.linkname)
        elif info.isreg():
            executable = bool(info.mode & 0o100)
            yield _Member(path=info.name, executable=executable, open=lambda info=info: _opened(file, info))
        else:
            raise BadArchive(f"{info.name} is neither a file nor a folder nor a link")


def _opened(file: tarfile.TarFile, info: tarfile.TarInfo) -> IO[bytes]:
    found = file.extractfile(info)
    if found is None:
        raise BadArchive(f"{info.name} has no contents")
    return found


def _write(members: Iterator[_Member], into: Path, check: Callable[[], None]) -> None:
    """Files first: a link that is not there yet can lead no file astray."""
    links: list[tuple[str, str]] = []
    left = MAX_BYTES
    for count, member in enumerate(members, 1):
        check()
        if count > MAX_FILES:
            raise BadArchive(f"it has more than {MAX_FILES} files")
        name = _inside(member.path)
        path = into / name
        if member.target is not None:
            links.append((name, member.target))
            continue
        _make_room(path)
        if member.copy_of is not None:
            other = into / _inside(member.copy_of)
            if not other.is_file():
                raise BadArchive(f"{name} is another name of {member.copy_of}, which does not come before it")
            with other.open("rb") as contents:
                left -= _copy(contents, path, left, member.executable, check)
        elif member.open is not None:
            with member.open() as contents:
                left -= _copy(contents, path, left, member.executable, check)
    for name, target in links:
        _link(into, name, target, {name for name, _ in links})


def _copy(contents: IO[bytes], path: Path, left: int, executable: bool, check: Callable[[], None]) -> int:
    """Write a file that must not be there yet, and wait until the disk has it; how many bytes it has."""
    size = 0
    try:
        with path.open("xb") as file:
            while block := contents.read(BLOCK):
                check()
                size += len(block)
                if size > left:
                    raise BadArchive(f"it is larger than {MAX_BYTES >> 30} GB when it is unpacked")
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
    except (FileExistsError, IsADirectoryError):
        raise BadArchive(f"{path.name} is in it twice") from None
    path.chmod(0o755 if executable else 0o644)
    return size


def _link(into: Path, name: str, target: str, links: set[str]) -> None:
    """A link to a file beside it or below, or to another such link."""
    aim = PurePosixPath(name).parent / target
    parts: list[str] = []
    for part in aim.parts:
        if part == "..":
            if not parts:
                raise BadArchive(f"{name} is a link that leads out of the folder, to {target}")
            parts.pop()
        elif part != ".":
            parts.append(part)
    if PurePosixPath(target).is_absolute() or "\\" in target or "\0" in target or not parts:
        raise BadArchive(f"{name} is a link that leads out of the folder, to {target}")
    if "/".join(parts) not in links and not (into / "/".join(parts)).is_file():
        raise BadArchive(f"{name} is a link to {target}, which is not in it")
    path = into / name
    _make_room(path)
    if path.exists() or path.is_symlink():
        raise BadArchive(f"{name} is in it twice")
    path.symlink_to(target)


def _make_room(path: Path) -> None:
    """The folder for a file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise BadArchive(f"{path.parent.name} is both a file and a folder in it") from None


def _inside(name: str) -> str:
    """A member's path, if it is a plain one below the folder. Raises BadArchive."""
    path = PurePosixPath(name)
    bad = "\\" in name or "\0" in name or path.is_absolute() or ".." in path.parts or not path.parts
    if bad or any(":" in part or (sys.platform == "win32" and part.endswith((".", " "))) for part in path.parts):
        raise BadArchive(f"it has a file with the path {name[:200]!r}, which no build has")
    return str(path)
