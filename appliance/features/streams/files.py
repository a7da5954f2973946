"""Streams on disk, one file each: a line of JSON that describes it, then the bytes of its end as they came.

A stream under way is a ``.part`` file; one that is still there at the next start was interrupted. Writes are queued,
and made in a worker thread, a batch at a time: a crash of the program loses what came in the last tenth of a second in
which it could run.

The folder is synchronous: everything in it is called in a worker thread. ``stream-N`` has a suffix for its state:

``.part``  a stream under way: a line of JSON (`About`), then its bytes, appended.
``.sse``   a stream that has ended. Renaming its ``.part`` is what ends it.
``.new``   a file that is going to take the place of the other two, and is whole when it is renamed.

A program that dies leaves any of these, after any of the writes. The next one reads the folder in this order: a
``.new`` is deleted, since what it replaces is still there. A ``.part`` beside a ``.sse`` of the same number is deleted,
since the other was made of it. A ``.part`` alone is an interrupted stream: it is cut behind its last whole record, gets
the record that its `About` has for this, is written as ``.new`` and renamed to ``.sse``, and only then deleted.

The folder belongs to the program that holds ``lock`` in it. A second one would take the first one's ``.part`` files
for interrupted streams.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import trio
from msgspec import Struct

from appliance.core.bodies.sse import end_of_records
from appliance.core.lenient_json import decoded
from appliance.store.model_files import NO_WAIT, NotRegular, open_regular
from appliance.trio_parts import WriteBehind

if TYPE_CHECKING:
    from filelock import BaseFileLock


PART = ".part"
WHOLE = ".sse"
NEW = ".new"
LOCK = "lock"
PROBE = "probe"
MAX_ABOUT = 1 << 20
PROBE_SIZE = 1 << 16  # bytes that must fit on the disk before streams are kept there: a few hundred records
FORGOTTEN_AFTER = 24 * 3600.0
"""Seconds after which an earlier run's stream is not taken over. Far more than streams are kept, for wrong clocks."""
MAX_WAITING = 64 << 20  # bytes not yet written; there are only more when the disk stands still
RETRY = 10.0  # seconds between two looks whether a folder that could not be used can be now
log = logging.getLogger(__name__)


class FolderTaken(OSError):
    """Another program keeps its streams there."""


class About(Struct, frozen=True, kw_only=True):
    """The first line of a file. ``interrupted`` is the record that ends the stream if nothing else ends it."""

    conversation: str
    started_at: float
    interrupted: bytes = b""
    dropped: int = 0
    interrupted_at: int | None = None

    @property
    def lines(self) -> bool:
        """Its records are lines of JSON."""
        return self.interrupted.startswith(b"{")


class StoredStream(Struct, frozen=True):
    """A stream of an earlier run; ``about.dropped`` bytes came before ``data``."""

    key: int
    about: About
    completed_at: float
    data: bytes


class _StreamFile(Struct):
    about: About
    path: Path
    size: int = 0  # size of the file's part of the stream in bytes, including the bytes that wait
    waiting: list[bytes] = []


class Folder:
    """Knows its files by number; newer streams have higher ones.

    `load` comes first. After an OSError of any method `load` may be called again, as often as it takes.
    """

    def __init__(self, path: Path, max_bytes: int, max_total: int) -> None:
        self.path = path
        self.next_key = 1
        self._max_bytes = max_bytes
        self._max_total = max_total
        self._files: dict[int, _StreamFile] = {}
        self._total = 0
        self._lock: BaseFileLock | None = None  # taken in a worker thread, given back in any

    def load(self) -> list[StoredStream]:
        """Read the streams that are not known yet, by age; an interrupted one gets its last record.

        Raises OSError for a folder that cannot be used, FolderTaken for one that another program uses.
        """
        from filelock import FileLock, Timeout  # several milliseconds, and most servers keep no streams on disk

        check_folder(self.path)
        if self._lock is None:
            lock = FileLock(self.path / LOCK, timeout=0, thread_local=False)
            try:
                lock.acquire()
            except Timeout:
                raise FolderTaken("another llama-appliance keeps its streams there") from None
            self._lock = lock
        for path in self.path.glob(f"stream-*{NEW}"):
            path.unlink(missing_ok=True)
        stored: list[StoredStream] = []
        try:
            for path in sorted(self.path.iterdir(), reverse=True):  # of two files of one number ``.sse`` comes first
                key = _key(path)
                if key is None:
                    continue
                self.next_key = max(self.next_key, key + 1)
                if key not in self._files and (found := self._load_one(path, key)) is not None:
                    stored.append(found)
                elif key not in self._files or self._files[key].path != path:
                    path.unlink(missing_ok=True)
        except OSError:
            for found in stored:  # they are read again the next time
                self._total -= self._files.pop(found.key).size
            raise
        self._make_room()
        return [found for found in reversed(stored) if found.key in self._files]

    def close(self) -> None:
        """Let another program have the folder."""
        if self._lock is not None:
            self._lock.release()

    def begin(self, key: int, about: About) -> None:
        self._files[key] = _StreamFile(about, self._path(key, PART))
        self._write(self._files[key].path, _line(about), new=True)

    def append(self, key: int, data: bytes) -> None:
        """Written by `flush`."""
        file = self._files.get(key)
        if file is not None:
            file.waiting.append(data)
            file.size += len(data)
            self._total += len(data)

    def finish(self, key: int, completed_at: float) -> None:
        file = self._files.get(key)
        if file is not None:
            self._flush_one(file)
            os.utime(file.path, (completed_at, completed_at))
            file.path = file.path.replace(self._path(key, WHOLE))

    def discard(self, key: int) -> None:
        file = self._files.pop(key, None)
        if file is not None:
            self._total -= file.size
            file.path.unlink(missing_ok=True)

    def flush(self) -> None:
        """Write the appended bytes, and enforce the limits."""
        for file in self._files.values():
            self._flush_one(file)
        self._make_room()

    def abandon(self) -> None:
        """Delete incomplete files: the next start would take them for interrupted ones."""
        for key, file in list(self._files.items()):
            if file.path.suffix == PART:
                self._total -= file.size
                del self._files[key]
                with suppress(OSError):
                    file.path.unlink(missing_ok=True)

    def _flush_one(self, file: _StreamFile) -> None:
        if not file.waiting:
            return
        data, file.waiting = b"".join(file.waiting), []
        self._write(file.path, data)
        if file.size > 2 * self._max_bytes:
            self._shorten(file)

    def _shorten(self, file: _StreamFile) -> None:
        """Begin the file anew with the part of its end that the limit allows."""
        excess = file.size - self._max_bytes
        about = msgspec.structs.replace(file.about, dropped=file.about.dropped + excess)
        with open_regular(str(file.path)) as old:
            old.seek(-self._max_bytes, os.SEEK_END)
            rest = old.read()
        new = file.path.with_suffix(NEW)
        self._write(new, _line(about) + rest, new=True)
        new.replace(file.path)
        file.about = about
        file.size -= excess
        self._total -= excess

    def _make_room(self) -> None:
        for key in sorted(self._files):
            if self._total <= self._max_total:
                return
            self.discard(key)

    def _write(self, path: Path, data: bytes, *, new: bool = False) -> None:
        if new:
            path.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_APPEND | getattr(os, "O_BINARY", 0) | NO_WAIT
        flags |= os.O_CREAT | os.O_EXCL if new else 0
        descriptor = os.open(path, flags, 0o600)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        finally:
            os.close(descriptor)

    def _load_one(self, path: Path, key: int) -> StoredStream | None:
        """Return None for a file that is too old, or not a stream of ours."""
        completed_at = path.stat().st_mtime
        now = time.time()
        if completed_at + FORGOTTEN_AFTER < now:
            return None
        try:
            opened = open_regular(str(path))
        except NotRegular:
            return None
        with BufferedReader(opened) as file:
            if (about := decoded(About, file.readline(MAX_ABOUT))) is None:
                return None
            data = file.read()
        if path.suffix == PART:
            data = data[: data.rfind(b"\n") + 1 if about.lines else end_of_records(data)]
            about = msgspec.structs.replace(about, interrupted_at=about.dropped + len(data))
            data += about.interrupted
            completed_at = now
            part, new = path, path.with_suffix(NEW)
            self._write(new, _line(about) + data, new=True)
            path = new.replace(self._path(key, WHOLE))
            part.unlink()
        self._files[key] = _StreamFile(about, path, len(data))
        self._total += len(data)
        return StoredStream(key, about, completed_at, data)

    def _path(self, key: int, suffix: str) -> Path:
        return self.path / f"stream-{key:010d}{suffix}"


def check_folder(path: Path) -> None:
    """Create it, and check that files can be written there. Raises OSError."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    probe = path / PROBE
    try:
        probe.write_bytes(bytes(PROBE_SIZE))
    finally:
        probe.unlink(missing_ok=True)


def _line(about: About) -> bytes:
    return msgspec.json.encode(about) + b"\n"


def _key(path: Path) -> int | None:
    """Return the number of one of our files; other files are left alone."""
    ours = re.fullmatch(r"stream-(\d+)\.(?:part|sse)", path.name)
    return int(ours[1]) if ours is not None else None


class StreamFiles:
    """Made by `open_stream_files`. A disk that fails, or a folder that another program uses, is one warning.

    Nothing is kept on disk until it can be used again; streams that were under way then stay in memory alone.
    """

    def __init__(self, folder: Folder, retry: float = RETRY, max_waiting: int = MAX_WAITING) -> None:
        self.failed = False
        self._max_waiting = max_waiting
        self._folder = folder
        self.next_key = folder.next_key
        self._queue: deque[Callable[[], None]] = deque()
        self._waiting = 0  # bytes
        self._behind = WriteBehind(retry=retry)

    def begin(self, about: About) -> int:
        """Begin a new file; return its handle for the other methods."""
        key, self.next_key = self.next_key, self.next_key + 1
        self._do(partial(self._folder.begin, key, about))
        return key

    def append(self, key: int, data: bytes) -> None:
        self._waiting += len(data)
        if self._waiting > self._max_waiting:
            self.fail("it is too slow")
        self._do(partial(self._folder.append, key, data))

    def finish(self, key: int, completed_at: float) -> None:
        self._do(partial(self._folder.finish, key, completed_at))

    def discard(self, key: int) -> None:
        self._do(partial(self._folder.discard, key))

    async def write(self, found: Callable[[list[StoredStream]], None]) -> None:
        """Write as data comes, until cancelled. ``found`` gets streams of an earlier run that can be read only now."""

        async def write() -> bool:
            if not self.failed:
                return await self._behind.in_turn(self._write_queued)
            try:
                stored = await self._behind.in_turn(self._folder.load)
            except OSError:
                return False
            self.failed = False
            self.next_key = max(self.next_key, self._folder.next_key)
            log.info("streams are kept in '%s' again", self._folder.path)
            found(stored)
            return True

        await self._behind.run(write)

    async def close(self) -> None:
        """Write what is queued, and let another program have the folder."""
        if await self._behind.finish(self._write_queued) is None:
            log.warning("the last streams could not be written to '%s' in time", self._folder.path)
        else:
            self._folder.close()

    def _do(self, step: Callable[[], None]) -> None:
        if not self.failed:
            self._queue.append(step)
            self._behind.wake()

    def _write_queued(self) -> bool:
        """Runs in the worker thread, one at a time; others only append to the queue meanwhile. False if it failed."""
        self._waiting = 0
        try:
            for _ in range(len(self._queue)):
                self._queue.popleft()()
            self._folder.flush()
        except OSError as error:
            self.fail(str(error))
        except IndexError:
            pass  # the queue was given up meanwhile
        if self.failed:
            self._folder.abandon()
        return not self.failed

    def fail(self, why: str) -> None:
        """Keep nothing on disk from now on."""
        if not self.failed:
            self.failed = True
            self._queue.clear()
            self._behind.wake()
            log.warning("streams are kept in memory alone until '%s' can be used: %s", self._folder.path, why)


@asynccontextmanager
async def open_stream_files(
    path: Path, max_bytes: int, max_total: int, *, retry: float = RETRY, max_waiting: int = MAX_WAITING
) -> AsyncGenerator[tuple[StreamFiles, list[StoredStream]]]:
    """Open the files in this folder, including an earlier run's, oldest first; `StreamFiles.write` writes.

    ``max_bytes`` of one stream are kept, ``max_total`` of all. A folder that cannot be used is a disk that has failed.
    """
    folder = Folder(path, max_bytes, max_total)
    files, stored = StreamFiles(folder, retry, max_waiting), list[StoredStream]()
    try:
        stored = await trio.to_thread.run_sync(folder.load)
    except OSError as error:
        files.fail(str(error))
    files.next_key = folder.next_key
    try:
        yield files, stored
    finally:
        await files.close()
