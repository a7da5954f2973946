"""A file that arrives in pieces and survives whatever ends the program in between.

Beside the coming file lie ``<name>.part``, the bytes so far, and ``<name>.part.journal``: a line for the file, then one
for every `CHUNK` with its CRC-32. Opening it again checks every chunk, drops what follows the last good one, and
computes the hash of the rest anew: so the order in which the system wrote does not matter, a kill costs at most a
chunk, and a power cut what came since the last `SYNC`. The file gets its name when it is whole and has its hash.

Everything here waits for the disk: call it in a thread, one call at a time.
"""

from __future__ import annotations

import hashlib
import os
import sys
import zlib
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec
from msgspec import Struct

from appliance.core.lenient_json import UNREADABLE
from appliance.store.model_files import NO_WAIT, checked, open_regular, read_start, replace, sync_folder, unlink

if TYPE_CHECKING:
    from filelock import FileLock

CHUNK = 1 << 20
SYNC = 16 << 20
"""Bytes between two waits for the disk, which take a few milliseconds each on a solid-state one."""
READ_SIZE = 1 << 20
MAX_JOURNAL = 64 << 20
"""A chunk takes about 50 bytes, so this is enough for a file of more than a terabyte."""
PART = ".part"
JOURNAL = ".part.journal"


class PartialHead(Struct, frozen=True, kw_only=True, tag="file", tag_field="t"):
    """First line of a partial file's journal: the file that it will be. ``oid`` is empty if no hash is known."""

    oid: str
    size: int
    repo: str
    path: str
    version: int = 1


class PartialChunk(Struct, frozen=True, tag="chunk", tag_field="t"):
    """The file is on disk up to ``end``; the bytes since the line before have this CRC-32."""

    end: int
    crc: int


class PartialSource(Struct, frozen=True, tag="source", tag_field="t"):
    """The server that sent the file, and its ETag, which must not change between two connections to it."""

    host: str
    etag: str


PartialLine = PartialHead | PartialChunk | PartialSource


_LINE = msgspec.json.Decoder(PartialLine)


class _Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...

    def hexdigest(self) -> str: ...


class WrongContents(ValueError):
    """The whole file is here, and its hash is wrong."""


class FileTaken(OSError):
    """Another process, or another task of this one, is writing this file."""


def claim(lock: Path) -> FileLock:
    """Take a lock file, which the caller releases and the system does when the process ends. Raises Taken.

    In a hub cache it is the same file that huggingface_hub's own downloads take.
    """
    from filelock import FileLock, Timeout  # several milliseconds, and most servers download nothing

    lock.parent.mkdir(parents=True, exist_ok=True)
    found = FileLock(lock, timeout=0, thread_local=False)
    try:
        found.acquire()
    except Timeout:
        raise FileTaken(None, "another download of this file is under way", str(lock)) from None
    return found


def journaled(final: Path) -> tuple[PartialHead, int] | None:
    """Return the unfinished part of a file, and the number of its bytes; None for nothing. Does not read the bytes."""
    try:
        lines, _ = _read_journal(_beside(final, JOURNAL))
        size = _beside(final, PART).stat().st_size
    except OSError:
        return None
    if not lines or not isinstance(lines[0], PartialHead):
        return None
    ends = [line.end for line in lines if isinstance(line, PartialChunk) and line.end <= size]
    return lines[0], max(ends, default=0)


def discard(final: Path) -> None:
    """Remove the unfinished part of a file."""
    unlink(_beside(final, PART))
    unlink(_beside(final, JOURNAL))


class PartialFile:
    """Made by ``open_partial``; the holder has also claimed the file."""

    def __init__(self, final: Path, head: PartialHead, data: FileIO, journal: FileIO) -> None:
        self.final = final
        self.head = head
        self.source: PartialSource | None = None
        self._data = data
        self._journal = journal
        self._hash = _hash_of(head.oid, head.size)
        self._length = 0
        self._noted = 0  # up to where the journal vouches for it
        self._synced = 0
        self._crc = 0

    @property
    def length(self) -> int:
        """Bytes received."""
        return self._length

    def write(self, data: bytes) -> None:
        """Add the next bytes. Raises OSError, and WrongContents for more than the file has; then nothing is left."""
        at = 0
        while at < len(data):
            piece = data[at : at + self._noted + CHUNK - self._length]
            if self._length + len(piece) > self.head.size:
                raise self._rejected(f"it is longer than its {self.head.size} bytes")
            _write_all(self._data, piece)
            self._take(piece)  # after writing: bytes that a full disk did not take must not be in the journal
            at += len(piece)
            if self._length - self._noted >= CHUNK:
                self._note_chunk()
            if self._length - self._synced >= SYNC:
                self._sync()

    def came_from(self, source: PartialSource) -> None:
        """Remember the server that sends the file."""
        if source != self.source:
            self.source = source
            self._note(source)

    def start_over(self) -> None:
        """Forget every byte."""
        self._data.seek(0)
        self._data.truncate()
        self._journal.seek(0)
        self._journal.truncate()
        self._hash = _hash_of(self.head.oid, self.head.size)
        self._length = self._noted = self._synced = self._crc = 0
        self.source = None
        self._note(self.head)

    def finish(self) -> None:
        """Give the complete file its name. Raises WrongContents, and then nothing of it is left.

        Without a hash to compare (``oid`` is empty) its size has to be right.
        """
        found = self._hash.hexdigest()
        if self._length != self.head.size or (self.head.oid and found != self.head.oid):
            raise self._rejected(f"it has the hash {found}, not {self.head.oid}")
        os.fsync(self._data.fileno())
        self.close()
        part = _beside(self.final, PART)
        replace(part, self.final)
        sync_folder(self.final.parent)
        unlink(_beside(self.final, JOURNAL))

    def _rejected(self, why: str) -> WrongContents:
        self._data.close()
        self._journal.close()
        discard(self.final)
        return WrongContents(why)

    def close(self) -> None:
        """Keep the part. Closing twice is fine."""
        if self._data.closed:
            return
        try:
            if self._length < self.head.size:
                self._note_chunk()
                self._sync()
        finally:
            self._data.close()
            self._journal.close()

    # ---- opening -----------------------------------------------------------------------------------------------------

    def recover(self, lines: list[PartialLine], ends: list[int], check: Callable[[], None]) -> None:
        """Check an earlier run's part and continue behind its last good chunk. ``ends``: where each line ends."""
        good = ends[0]
        for line, end in zip(lines[1:], ends[1:], strict=True):
            match line:
                case PartialHead():
                    break
                case PartialSource():
                    self.source = line
                case PartialChunk():
                    check()
                    if not self._recover_chunk(line):
                        break
            good = end
        self._journal.truncate(good)
        self._journal.seek(good)
        self._data.truncate(self._noted)
        self._data.seek(self._noted)
        self._synced = self._noted

    def _recover_chunk(self, chunk: PartialChunk) -> bool:
        count = chunk.end - self._noted
        if not 0 < count <= CHUNK or chunk.end > self.head.size:
            return False
        self._data.seek(self._noted)
        data = bytearray()
        while len(data) < count and (piece := self._data.read(min(READ_SIZE, count - len(data)))):
            data += piece
        if len(data) < count or zlib.crc32(data) != chunk.crc:
            return False
        self._take(bytes(data))
        self._noted, self._crc = chunk.end, 0
        return True

    def _take(self, data: bytes) -> None:
        self._hash.update(data)
        self._crc = zlib.crc32(data, self._crc)
        self._length += len(data)

    def _note_chunk(self) -> None:
        if self._length > self._noted:
            self._note(PartialChunk(self._length, self._crc))
            self._noted, self._crc = self._length, 0

    def _note(self, line: PartialLine) -> None:
        _write_all(self._journal, msgspec.json.encode(line) + b"\n")

    def _sync(self) -> None:
        os.fsync(self._data.fileno())
        os.fsync(self._journal.fileno())
        self._synced = self._length


def open_partial(final: Path, head: PartialHead, check: Callable[[], None]) -> PartialFile:
    """Continue an earlier run's part of this very file, or begin it. Raises OSError.

    Reads the whole part, which takes its time: ``check`` is called between chunks and may raise.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    data = _open(_beside(final, PART))
    journal = data
    try:
        journal = _open(_beside(final, JOURNAL))
        partial = PartialFile(final, head, data, journal)
        lines, ends = _read_journal(_beside(final, JOURNAL))
        if lines and lines[0] == head:
            partial.recover(lines, ends, check)
        else:
            partial.start_over()
    except BaseException:
        data.close()
        journal.close()
        raise
    return partial


def holds(path: Path, oid: str, size: int | None, check: Callable[[], None]) -> bool:
    """Return whether a file has this hash. Raises OSError.

    Reads all of it unless the size is another one: ``check`` is called between pieces and may raise.
    """
    with open_regular(str(path)) as file:
        length = os.fstat(file.fileno()).st_size
        if size not in (None, length):
            return False
        found = _hash_of(oid, length)
        while piece := file.read(READ_SIZE):
            check()
            found.update(piece)
    return found.hexdigest() == oid


def _open(path: Path) -> FileIO:
    flags = os.O_RDWR | os.O_CREAT | NO_WAIT | (os.O_BINARY if sys.platform == "win32" else os.O_CLOEXEC)
    return checked(FileIO(os.open(path, flags, 0o644), "r+", closefd=True))


def _beside(final: Path, suffix: str) -> Path:
    return final.with_name(final.name + suffix)


def _read_journal(path: Path) -> tuple[list[PartialLine], list[int]]:
    """Return the whole lines up to the first torn one, and where each ends. Raises OSError."""
    text = read_start(path, MAX_JOURNAL)
    lines: list[PartialLine] = []
    ends: list[int] = []
    at = 0
    while (end := text.find(b"\n", at) + 1) > 0:
        try:
            lines.append(_LINE.decode(text[at:end]))
        except UNREADABLE:
            break
        ends.append(end)
        at = end
    return lines, ends


def _hash_of(oid: str, size: int) -> _Hash:
    if len(oid) == 64:
        return hashlib.sha256()
    return hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)


def _write_all(file: FileIO, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]
