"""Streams on disk, one file each: a line of JSON that describes it, then the bytes of its end as they came.

A stream under way is a ``.part`` file; one that is still there at the next start was interrupted. Writes are queued,
and made in a worker thread, a batch at a time: a crash of the program loses what came in the last tenth of a second.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import trio

from appliance.store.stream_folder import About as About
from appliance.store.stream_folder import Folder
from appliance.store.stream_folder import Stored as Stored

BATCH = 0.1
"""Seconds in which writes gather."""
MAX_WAITING = 64 << 20
"""Bytes not yet written; there are only more when the disk stands still."""
FLUSH = 3.0
"""Seconds that the last writes get when the program ends."""
RETRY = 10.0
"""Seconds between two looks whether a folder that could not be used can be now."""

log = logging.getLogger(__name__)


class StreamFiles:
    """Made by `open_stream_files`. A disk that fails, or a folder that another program uses, is one warning.

    Nothing is kept on disk until it can be used again; streams that were under way then stay in memory alone.
    """

    def __init__(self, folder: Folder) -> None:
        self.failed = False
        self._folder = folder
        self.next_key = folder.next_key
        self._queue: deque[Callable[[], None]] = deque()
        self._waiting = 0  # bytes
        self._wake = trio.Event()
        self._turn = trio.CapacityLimiter(1)

    def begin(self, about: About) -> int:
        """Begin a new file; return its handle for the other methods."""
        key, self.next_key = self.next_key, self.next_key + 1
        self._do(partial(self._folder.begin, key, about))
        return key

    def append(self, key: int, data: bytes) -> None:
        self._waiting += len(data)
        if self._waiting > MAX_WAITING:
            self.fail("it is too slow")
        self._do(partial(self._folder.append, key, data))

    def finish(self, key: int, completed_at: float) -> None:
        self._do(partial(self._folder.finish, key, completed_at))

    def discard(self, key: int) -> None:
        self._do(partial(self._folder.discard, key))

    async def write(self, found: Callable[[list[Stored]], None]) -> None:
        """Write as data comes, until cancelled. ``found`` gets streams of an earlier run that can be read only now."""
        while True:
            if self.failed:
                await trio.sleep(RETRY)
                await self._try_again(found)
                continue
            await self._wake.wait()
            await trio.sleep(BATCH)
            self._wake = trio.Event()
            await trio.to_thread.run_sync(self._write_queued, limiter=self._turn)

    async def _try_again(self, found: Callable[[list[Stored]], None]) -> None:
        try:
            stored = await trio.to_thread.run_sync(self._folder.load, limiter=self._turn)
        except OSError:
            return
        self.failed = False
        self.next_key = max(self.next_key, self._folder.next_key)
        log.info("streams are kept in '%s' again", self._folder.path)
        found(stored)

    async def close(self) -> None:
        """Write what is queued, for at most `FLUSH` seconds, and let another program have the folder."""
        with trio.move_on_after(FLUSH, shield=True) as scope:
            await trio.to_thread.run_sync(self._write_queued, limiter=self._turn, abandon_on_cancel=True)
        if scope.cancelled_caught:
            log.warning("the last streams could not be written to '%s' in time", self._folder.path)
        else:
            self._folder.close()

    def _do(self, step: Callable[[], None]) -> None:
        if not self.failed:
            self._queue.append(step)
            self._wake.set()

    def _write_queued(self) -> None:
        """Runs in the worker thread, one at a time; others only append to the queue meanwhile."""
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

    def fail(self, why: str) -> None:
        """Keep nothing on disk from now on."""
        if not self.failed:
            self.failed = True
            self._queue.clear()
            self._wake.set()
            log.warning("streams are kept in memory alone until '%s' can be used: %s", self._folder.path, why)


@asynccontextmanager
async def open_stream_files(
    path: Path, max_bytes: int, max_total: int
) -> AsyncGenerator[tuple[StreamFiles, list[Stored]]]:
    """Open the files in this folder, including an earlier run's, oldest first; `StreamFiles.write` writes.

    ``max_bytes`` of one stream are kept, ``max_total`` of all. A folder that cannot be used is a disk that has failed.
    """
    folder = Folder(path, max_bytes, max_total)
    files, stored = StreamFiles(folder), list[Stored]()
    try:
        stored = await trio.to_thread.run_sync(folder.load)
    except OSError as error:
        files.fail(str(error))
    files.next_key = folder.next_key
    try:
        yield files, stored
    finally:
        await files.close()
