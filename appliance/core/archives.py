"""Archives of strangers: what is in them, read in pieces, and never with more memory than the bounds below.

Every archive that this program opens comes through `open_members`. Nothing that an archive says of itself is believed:
a ZIP of three kilobytes may claim a hundred bytes and become four gigabytes. So only files that are stored or deflated
are opened, because Python's zipfile inflates nothing else in pieces; the reader of a member counts what has come; and
the words in which an archive tells of its members are counted here. With them zipfile and tarfile would fill the
memory before the first member is seen.
"""

from __future__ import annotations

import gzip
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import IO, Literal, cast

from msgspec import Struct

from appliance.core.parameters import shown

MAX_HEADS = 4 << 20
"""Bytes in which an archive may tell of all its members. Python makes up to 25 times as many of them."""
MAX_SHARED = 100
"""Attributes that a tar file gives to all its members; each gets a copy of them."""
MAX_TARGET = 4096
"""Bytes of a link's target."""
UNBOUNDED = 1 << 62
PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
OTHERS = {9: "deflate64", 12: "bzip2", 14: "lzma", 93: "zstd"}
DAMAGED = (
    zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, NotImplementedError, RecursionError,
    ValueError, OverflowError,
)  # fmt: skip


class BadArchive(Exception):
    """An archive that is damaged, or has something in it that is refused; the message says what."""


class ArchiveMember(Struct, frozen=True, kw_only=True):
    """A file, or with ``target`` a symbolic link, or with ``copy_of`` another name of a file before it."""

    path: str
    mode: int = 0
    target: str | None = None
    copy_of: str | None = None
    open: Callable[[], IO[bytes]] | None = None
    """Read it in pieces before the next member is taken, and count them: it may be of any size."""


@contextmanager
def open_members(archive: IO[bytes], kind: Literal["zip", "tar.gz"], most: int) -> Generator[Iterator[ArchiveMember]]:
    """Yield what is in it, in order. Raises BadArchive, also for more than ``most`` members, folders included."""
    heads = _Heads(archive if kind == "zip" else cast("IO[bytes]", gzip.GzipFile(fileobj=archive)))
    try:
        if kind == "zip":
            with zipfile.ZipFile(cast("IO[bytes]", heads)) as file:
                yield _zipped(file, heads, most)
        else:
            with tarfile.open(fileobj=cast("IO[bytes]", heads), mode="r:") as file:
                yield _tarred(file, heads, most)
    except DAMAGED as cause:
        raise BadArchive(f"it is damaged, or no archive: {cause}") from None


class _Heads:
    """The archive as zipfile and tarfile read it: what they read counts, but for the content of members."""

    def __init__(self, contents: IO[bytes]) -> None:
        self.left = MAX_HEADS
        self.seekable = contents.seekable
        self.seek = contents.seek
        self.tell = contents.tell
        self._contents = contents

    def read(self, size: int = -1) -> bytes:
        data = self._contents.read(min(size, self.left + 1) if size >= 0 else self.left + 1)
        self.left -= len(data)
        if self.left < 0:
            raise BadArchive(f"it takes more than {MAX_HEADS >> 20} MiB to say what is in it; pack fewer files at once")
        return data


def _zipped(file: zipfile.ZipFile, heads: _Heads, most: int) -> Iterator[ArchiveMember]:
    heads.left = UNBOUNDED  # its directory has been read
    for count, info in enumerate(file.infolist(), 1):
        _check_count(count, most)
        name, mode = info.filename, info.external_attr >> 16
        if not name or info.header_offset < 0:
            raise BadArchive(f"{shown(name)} has no name, or lies before the beginning of the file")
        if info.flag_bits & 1:
            raise BadArchive(f"{shown(name)} is encrypted; pack it without a password")
        if info.is_dir():
            continue
        if info.compress_type not in PACKINGS:
            how = OTHERS.get(info.compress_type, f"method {info.compress_type}")
            raise BadArchive(f"{shown(name)} is packed with {how}; pack it again with deflate, as every program can")
        if stat.S_ISLNK(mode):
            with file.open(info) as contents:
                target = contents.read(MAX_TARGET + 1)
            if len(target) > MAX_TARGET:
                raise BadArchive(f"{shown(name)} is a link with a target of more than {MAX_TARGET} bytes")
            yield ArchiveMember(path=name, target=target.decode("utf-8", "replace"))
        elif stat.S_IFMT(mode) in (0, stat.S_IFREG):
            yield ArchiveMember(path=name, mode=mode, open=lambda info=info: file.open(info))
        else:
            raise BadArchive(f"{shown(name)} is neither a file nor a folder")


def _tarred(file: tarfile.TarFile, heads: _Heads, most: int) -> Iterator[ArchiveMember]:
    for count, info in enumerate(file, 1):
        _check_count(count, most)
        if len(file.pax_headers) > MAX_SHARED:
            raise BadArchive(f"it says more than {MAX_SHARED} things of all its files at once")
        if info.isdir():
            continue
        if info.issym():
            yield ArchiveMember(path=info.name, target=info.linkname)
        elif info.islnk():
            yield ArchiveMember(path=info.name, mode=info.mode, copy_of=info.linkname)
        elif info.isreg() and (contents := file.extractfile(info)) is not None:
            left, heads.left = heads.left, UNBOUNDED
            yield ArchiveMember(path=info.name, mode=info.mode, open=lambda contents=contents: contents)
            heads.left = left
        else:
            raise BadArchive(f"{shown(info.name)} is neither a file nor a folder nor a link")


def _check_count(count: int, most: int) -> None:
    if count > most:
        raise BadArchive(f"it has more than {most} files")
