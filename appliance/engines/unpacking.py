"""Archives of builds, unpacked so that nothing in them can reach beyond the folder that they are unpacked into.

This is the only place that unpacks what was fetched. Names are checked before anything is written, with every file a
new one; links come last, and each has to lead to a file in the folder, as the system itself resolves it. Python's own
`tarfile.data_filter` is not used: the Python of Debian 12 does not have it, and it knows no bounds. Everything here
waits for the disk: call it in a thread.
"""

from __future__ import annotations

import gzip
import lzma
import os
import re
import shutil
import stat
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, cast

from msgspec import Struct

MAX_FILES = 5000
"""llama.cpp's archives have about fifty; CUDA's libraries add ten."""
MAX_BYTES = 16 << 30
"""Unpacked. The largest that is known, ROCm with its kernels, takes 4 GB."""
MAX_RATIO = 200
"""Bytes that a byte of an archive may become; those of builds become five."""
SMALL = 64 << 20
"""Bytes that any archive may become, however small it is."""
BLOCK = 1 << 20
MAX_HEAD = 1 << 20
"""Bytes that a tar file may spend on saying what comes next; tarfile would keep any number of them in memory."""
MAX_TARGET = 4096
"""Bytes of a link's target."""
SPARE = 256 << 20
"""Bytes of the disk that stay free, whatever an archive turns out to be."""
DAMAGED = (
    zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError, NotImplementedError,
    RecursionError, ValueError, OverflowError,
)  # fmt: skip
RESERVED = re.compile(r"(?:con|prn|aux|nul|conin\$|conout\$|com\d|lpt\d)(?: *\..*)?", re.IGNORECASE)
"""Names that are devices on Windows."""
SUFFIXES = (".zip", ".tar.gz", ".tgz", ".tar.xz")


class BadArchive(Exception):
    """An archive that is damaged, or has something in it that no build has; the message says what."""


class _Member(Struct, frozen=True, kw_only=True):
    """A file, or with ``target`` a symbolic link, or with ``copy_of`` another name of a file before it."""

    path: str
    mode: int = 0
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
    most = min(MAX_BYTES, max(SMALL, archive.stat().st_size * MAX_RATIO), shutil.disk_usage(into).free - SPARE)
    with _members(archive) as members:
        _write(members, into, max(0, most), check)


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
            with lzma.open(archive) if archive.name.lower().endswith(".xz") else gzip.open(archive) as contents:
                heads = _Heads(contents)
                with tarfile.open(fileobj=cast("IO[bytes]", heads), mode="r:") as file:
                    yield _tarred(file, heads)
    except DAMAGED as cause:
        raise BadArchive(f"{archive.name} is damaged, or no archive: {cause}") from None
    except OSError as cause:
        if cause.errno is not None:
            raise
        raise BadArchive(f"{archive.name} is damaged: {cause}") from None  # as bz2 has it, not the system


class _Heads:
    """What tarfile reads from. Raises BadArchive for more than `MAX_HEAD` bytes since ``left`` was last set."""

    def __init__(self, contents: lzma.LZMAFile | gzip.GzipFile) -> None:
        self.left = MAX_HEAD
        self.seek = contents.seek
        self.tell = contents.tell
        self.close = contents.close
        self._contents = contents

    def read(self, size: int = -1) -> bytes:
        self.left -= size if size >= 0 else MAX_BYTES
        if self.left < 0:
            raise BadArchive("it has a name or a list of attributes of more than a megabyte")
        return self._contents.read(size)


def _zipped(file: zipfile.ZipFile) -> Iterator[_Member]:
    for count, info in enumerate(file.infolist(), 1):
        _check_count(count)
        name, mode = info.filename, info.external_attr >> 16
        if not name or info.header_offset < 0:
            raise BadArchive(f"{_shown(name)} has no name, or lies before the beginning of the file")
        if info.flag_bits & 1:
            raise BadArchive(f"{_shown(name)} is encrypted")
        if info.is_dir():
            continue
        if stat.S_ISLNK(mode):
            if info.file_size > MAX_TARGET:
                raise BadArchive(f"{_shown(name)}: a link with a target of {info.file_size} bytes")
            yield _Member(path=name, target=file.read(info).decode("utf-8", "replace"))
        elif stat.S_IFMT(mode) in (0, stat.S_IFREG):
            yield _Member(path=name, mode=mode, open=lambda info=info: file.open(info))
        else:
            raise BadArchive(f"{_shown(name)} is neither a file nor a folder")


def _tarred(file: tarfile.TarFile, heads: _Heads) -> Iterator[_Member]:
    for count, info in enumerate(file, 1):
        _check_count(count)
        heads.left = MAX_HEAD
        if info.isdir():
            continue
        if info.issym():
            yield _Member(path=info.name, target=info.linkname)
        elif info.islnk():
            yield _Member(path=info.name, mode=info.mode, copy_of=info.linkname)
        elif info.isreg() and (contents := file.extractfile(info)) is not None:
            heads.left = 2 * MAX_BYTES
            yield _Member(path=info.name, mode=info.mode, open=lambda contents=contents: contents)
            heads.left = MAX_HEAD
        else:
            raise BadArchive(f"{_shown(info.name)} is neither a file nor a folder nor a link")


def _check_count(count: int) -> None:
    """Folders count, too. Raises BadArchive."""
    if count > MAX_FILES:
        raise BadArchive(f"it has more than {MAX_FILES} files")


def _shown(name: str) -> str:
    return repr(name[:200])


def _write(members: Iterator[_Member], into: Path, left: int, check: Callable[[], None]) -> None:
    """Files first: a link that is not there yet can lead no file astray."""
    links: list[tuple[Path, str]] = []
    for member in members:
        check()
        path = into / _inside(member.path)
        if member.target is not None:
            links.append((path, member.target))
            continue
        _make_room(path)
        if member.copy_of is not None:
            other = into / _inside(member.copy_of)
            if not other.is_file():
                raise BadArchive(f"{path.name} is another name of {_shown(member.copy_of)}, which is not before it")
            contents: IO[bytes] = other.open("rb")
        elif member.open is not None:
            contents = member.open()
        else:
            continue
        with contents:
            left -= _copy(contents, path, left, check)
        path.chmod(0o755 if member.mode & 0o100 else 0o644)
    _link(links, Path(os.path.realpath(into)))


def _copy(contents: IO[bytes], path: Path, left: int, check: Callable[[], None]) -> int:
    """Write a file that must not be there yet, and wait until the disk has it; how many bytes it has."""
    size = 0
    try:
        with path.open("xb") as file:
            while block := contents.read(BLOCK):
                check()
                size += len(block)
                if size > left:
                    raise BadArchive("unpacked it is larger than any build, or than the room that is left on the disk")
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
    except (FileExistsError, IsADirectoryError):
        raise BadArchive(f"{path.name} is in it twice") from None
    return size


def _link(links: list[tuple[Path, str]], home: Path) -> None:
    """Make the links, each in a folder that is really in ``home``; in the end each leads to a file there."""
    for path, target in links:
        within = Path(os.path.realpath(path.parent)).is_relative_to(home)  # its folder may be a link of before
        if (
            not within
            or not target
            or "\\" in target
            or not target.isprintable()
            or PurePosixPath(target).is_absolute()
        ):
            raise BadArchive(f"{path.name} is a link that leads out of the folder, to {_shown(target)}")
        if sys.platform == "win32":
            raise BadArchive(f"{path.name} is a link, and no build for Windows has one")
        _make_room(path)
        if os.path.lexists(path):
            raise BadArchive(f"{path.name} is in it twice")
        path.symlink_to(target)
    for path, target in links:
        if not Path(os.path.realpath(path)).is_relative_to(home):
            raise BadArchive(f"{path.name} is a link that leads out of the folder, to {_shown(target)}")
        if not path.is_file():
            raise BadArchive(f"{path.name} is a link to {_shown(target)}, which is not a file in it")


def check_links(folder: Path) -> None:
    """Raises BadArchive for a link that leads out of ``folder``, as one may when only that folder is kept."""
    home = os.path.realpath(folder)
    for path in list(folder.rglob("*")):
        if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(home):
            raise BadArchive(f"{path.name} in it is a link that leads out of the server's folder")


def _make_room(path: Path) -> None:
    """The folder for a file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise BadArchive(f"{path.parent.name} is both a file and a folder in it") from None


def _inside(name: str) -> str:
    """A member's path, if it is a plain one below the folder. Raises BadArchive."""
    path = PurePosixPath(name)
    bad = "\\" in name or not name.isprintable() or path.is_absolute() or ".." in path.parts or not path.parts
    if bad or any(":" in part or (sys.platform == "win32" and _is_odd(part)) for part in path.parts):
        raise BadArchive(f"it has a file with the path {name[:200]!r}, which no build has")
    return str(path)


def _is_odd(part: str) -> bool:
    """Windows would write something else than a file of this name."""
    return part.endswith((".", " ")) or RESERVED.fullmatch(part) is not None
