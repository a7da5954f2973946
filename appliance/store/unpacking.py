"""Archives of builds and of the program, unpacked so that nothing in them reaches beyond the folder that they go into.

This is the only place that unpacks what was fetched; `core.archives` bounds what reading it takes. Names are checked
before anything is written, with every file a new one; links come last, and each has to lead to a file in the folder, as
the system itself resolves it. Python's own `tarfile.data_filter` is not used: the Python of Debian 12 does not have it,
and it knows no bounds. Everything here waits for the disk: call it in a thread.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

from appliance.core.archives import ArchiveMember, BadArchive, open_members
from appliance.core.parameters import shown

MAX_FILES = 5000
"""llama.cpp's archives have about fifty; CUDA's libraries add ten."""
MAX_BYTES = 16 << 30
"""Unpacked. The largest that is known, ROCm with its kernels, takes 4 GB."""
MAX_RATIO = 200
"""Bytes that a byte of an archive may become; those of builds become five."""
SMALL = 64 << 20
"""Bytes that any archive may become, however small it is."""
BLOCK = 1 << 20
SPARE = 256 << 20
"""Bytes of the disk that stay free, whatever an archive turns out to be."""
RESERVED = re.compile(r"(?:con|prn|aux|nul|conin\$|conout\$|com\d|lpt\d)(?: *\..*)?", re.IGNORECASE)
"""Names that are devices on Windows."""
SUFFIXES = (".zip", ".tar.gz", ".tgz")


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
def _members(archive: Path) -> Generator[Iterator[ArchiveMember]]:
    with archive.open("rb") as file:
        kind = "zip" if archive.name.lower().endswith(".zip") else "tar.gz"
        try:
            with open_members(file, kind, MAX_FILES) as members:
                yield members
        except BadArchive as cause:
            raise BadArchive(f"{archive.name}: {cause}") from None


def _write(members: Iterator[ArchiveMember], into: Path, left: int, check: Callable[[], None]) -> None:
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
                raise BadArchive(f"{path.name} is another name of {shown(member.copy_of)}, which is not before it")
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
            raise BadArchive(f"{path.name} is a link that leads out of the folder, to {shown(target)}")
        if sys.platform == "win32":
            raise BadArchive(f"{path.name} is a link, and no build for Windows has one")
        _make_room(path)
        if os.path.lexists(path):
            raise BadArchive(f"{path.name} is in it twice")
        path.symlink_to(target)
    for path, target in links:
        if not Path(os.path.realpath(path)).is_relative_to(home):
            raise BadArchive(f"{path.name} is a link that leads out of the folder, to {shown(target)}")
        if not path.is_file():
            raise BadArchive(f"{path.name} is a link to {shown(target)}, which is not a file in it")


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
