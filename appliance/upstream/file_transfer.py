"""One file from a server to its place on the disk: fetched in ranges, retried, checked, named when it is complete."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

import trio
from msgspec import Struct

from appliance.core.models.download import RemoteFile
from appliance.core.models.transfer import LONGEST_RETRY_AFTER, StartOver, Throttle, judge, retry_delay
from appliance.errors import Conflict, ModelError
from appliance.store.partial_file import (
    FileTaken,
    PartialFile,
    PartialHead,
    PartialSource,
    WrongContents,
    claim,
    journaled,
    open_partial,
)
from appliance.upstream.hub import HubAnswer, HubFailed

log = logging.getLogger(__name__)

ATTEMPTS = 6  # attempts in a row at each server without a new byte, over about a minute
BLOCK = 1 << 20  # bytes gathered before a thread writes them
CLOSE_TIME = 10.0  # seconds that a cancelled download may take to keep its part

ANEW = "the server breaks off, and begins the file anew each time instead of continuing it"

Report = Callable[[int], None]


class UnderWay(Conflict):
    """Another process downloads one of the files."""

    reason = "download_under_way"

    def __init__(self, model: str) -> None:
        super().__init__(f"another program is downloading '{model}' now; wait until it has finished, or stop it")


class DownloadFailed(ModelError):
    """A file arrived damaged. ``why`` gives the mistake."""

    reason = "download_failed"

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path} was not downloaded: {why}")


class PlannedFile(Struct, frozen=True, kw_only=True):
    """One file. ``blob`` is its place, ``entry`` its name in the snapshot."""

    url: str
    path: str
    oid: str
    size: int
    blob: Path
    entry: Path
    lock: Path

    @staticmethod
    def in_repo(url: str, path: str, oid: str, size: int, entry: Path, folder: Path) -> PlannedFile:
        """A file of the repository in this folder of the cache."""
        lock = folder.parent / ".locks" / folder.name / f"{oid}.lock"
        return PlannedFile(url=url, path=path, oid=oid, size=size, blob=folder / "blobs" / oid, entry=entry, lock=lock)

    def here(self) -> bool:
        """True if it is in the cache, complete: nothing gets either name before."""
        return any(path.is_file() and path.stat().st_size == self.size for path in (self.blob, self.entry))

    def begun(self) -> int:
        """Bytes of it that an earlier download has kept."""
        found = journaled(self.blob)
        return found[1] if found and found[0].oid == self.oid else 0


class FileServer(Protocol):
    """Sends the files of one download: the hub, or several boxes that have the same files."""

    servers: int  # the number of servers of which each has every file; a failed attempt goes on at the next one at once

    def open_from(self, repo: str, url: str, have: int, size: int) -> AbstractAsyncContextManager[HubAnswer]:
        """Request a file of this size from byte ``have``, up to its end or a part of it: an answer of 200, 206 or 416.

        Raises HubFailed, and a refusal's error.
        """
        ...

    def doubt(self, url: str, times: int) -> bool:
        """Note that the whole file came with wrong contents so many times. False: another attempt is of no use."""
        ...


class DownloadPlan(Struct, frozen=True, kw_only=True):
    """The files of one model, with their places, known before the first byte."""

    model_id: str
    repo: str
    commit: str
    folder: Path  # the repository's folder in the cache
    files: tuple[PlannedFile, ...]
    unchanged: tuple[RemoteFile, ...] = ()  # every file of the commit: by these the rest of the repository here is kept
    ref: str | None = "main"  # the name that leads to the commit; None: this is not a repository

    @property
    def total(self) -> int:
        return sum(file.size for file in self.files)


class ModelSource(FileServer, Protocol):
    """Has all files of one model."""

    def plan(self, cache: Path, models_dir: Path | None) -> DownloadPlan:
        """Return what is fetched, and its place. Waits for the disk. Raises BadRequest and Conflict."""
        ...


class Transfer(Struct, frozen=True, kw_only=True):
    """The settings of file transfers; shared by all of them."""

    hub: FileServer
    throttle: Throttle
    delay: Callable[[int, float | None], float] = retry_delay  # seconds before an attempt; tests have less patience
    tell: Callable[[str], object] = log.info  # gets a sentence when somebody has to wait

    def pause(self, attempt: int, asked: float | None) -> float:
        """Return the seconds before the next attempt: none before each server had one."""
        rounds, rest = divmod(attempt, self.hub.servers)
        return 0.0 if rest else self.delay(rounds, asked)


class _Outdated(Exception):
    """The part on disk does not belong to the server's current file."""


async def fetch(transfer: Transfer, repo: str, model_id: str, file: PlannedFile, report: Report) -> None:
    """Bring the file into the cache. Raises UnderWay, HubFailed, a refusal's error, DownloadFailed, OSError."""
    try:
        lock = await trio.to_thread.run_sync(claim, file.lock)
    except FileTaken:
        raise UnderWay(model_id) from None
    try:
        if not await trio.to_thread.run_sync(file.here):  # another program may have finished it meanwhile
            await _fetch(transfer, repo, file, report)
        report(file.size)
    finally:
        lock.release()


async def _fetch(transfer: Transfer, repo: str, file: PlannedFile, report: Report) -> None:
    times = 0
    while True:
        partial = await _open(repo, file)
        try:
            report(partial.length)
            await _complete(transfer, repo, file, partial, report)
            await trio.to_thread.run_sync(partial.finish)
            return
        except WrongContents as error:
            times += 1
            log.warning("%s of %s was received with wrong contents: %s", file.path, repo, error)
            if not transfer.hub.doubt(file.url, times):
                often = " twice" if times == 2 else f" {times} times" if times > 2 else ""
                why = f"it came with wrong contents{often} ({error}); the server's copy is damaged"
                raise DownloadFailed(file.path, why) from None
        finally:
            with trio.move_on_after(CLOSE_TIME, shield=True):
                await trio.to_thread.run_sync(partial.close)


async def _open(repo: str, file: PlannedFile) -> PartialFile:
    head = PartialHead(oid=file.oid, size=file.size, repo=repo, path=file.path)
    return await trio.to_thread.run_sync(open_partial, file.blob, head, trio.from_thread.check_cancelled)


async def _complete(transfer: Transfer, repo: str, file: PlannedFile, partial: PartialFile, report: Report) -> None:
    """Fetch all bytes, over as many connections as it takes. Only bytes that are new are progress."""
    attempt, most, again = 0, partial.length, False
    while partial.length < file.size:
        before = partial.length
        try:
            await _receive(transfer, repo, file, partial, report)
            continue
        except HubFailed as failure:
            attempt = 1 if partial.length > most else attempt + 1
            most = max(most, partial.length)
            if not failure.passing or (failure.retry_after or 0) > LONGEST_RETRY_AFTER:
                raise
            if attempt >= ATTEMPTS * transfer.hub.servers:
                if again:
                    raise DownloadFailed(file.path, f"{failure}; {ANEW}") from None
                raise
            delay = transfer.pause(attempt, failure.retry_after)
            tell = transfer.tell if failure.busy else log.info
            tell(f"{file.path}: {failure}; continuing in {delay:.0f} s")
        except _Outdated as cause:
            attempt += 1
            if attempt >= ATTEMPTS or before == 0:
                why = ANEW if again else "it has changed since it was listed: try again"
                raise DownloadFailed(file.path, f"{cause}; {why}") from None
            log.info("%s: %s; starting it again", file.path, cause)
            await trio.to_thread.run_sync(partial.start_over)
            delay, again = 0.0, True
        await trio.sleep(delay)


async def _receive(transfer: Transfer, repo: str, file: PlannedFile, partial: PartialFile, report: Report) -> None:
    """Fetch the bytes of one connection. Raises HubFailed, a refusal's error and _Outdated."""
    have = partial.length
    async with transfer.hub.open_from(repo, file.url, have, file.size) as answer:
        verdict = judge(answer.status, answer.headers, have, file.size)
        if isinstance(verdict, StartOver):
            raise _Outdated(verdict.why)
        await _note_source(answer, partial)
        await _pump(transfer, answer, partial, verdict.skip, report)
        if partial.length < verdict.stop:
            raise HubFailed(answer.host, "it closed the connection before the end of the file")


async def _note_source(answer: HubAnswer, partial: PartialFile) -> None:
    """One server's ETag of one file does not change; two servers may have two."""
    etag = answer.headers.get(b"etag", b"").decode("latin-1")
    source = PartialSource(answer.host, etag)
    known = partial.source
    if partial.length and known and known.etag and etag and known.host == source.host and known.etag != etag:
        raise _Outdated("the server has another version of it than the unfinished one")
    await trio.to_thread.run_sync(partial.came_from, source)


async def _pump(transfer: Transfer, answer: HubAnswer, partial: PartialFile, skip: int, report: Report) -> None:
    block = bytearray()
    try:
        while data := await answer.receive():
            delay = transfer.throttle.take(len(data), trio.current_time())
            if skip:
                data, skip = data[skip:], max(0, skip - len(data))
            block += data
            report(partial.length + len(block))
            if len(block) >= BLOCK:
                await _write(partial, block)
            if delay:
                await trio.sleep(delay)
    finally:
        with trio.move_on_after(CLOSE_TIME, shield=True):  # received bytes are not fetched again
            await _write(partial, block)


async def _write(partial: PartialFile, block: bytearray) -> None:
    """Write and empty ``block``. One that is cancelled before a thread has it stays as it is."""
    if block:
        data = bytes(block)
        block.clear()
        try:
            await trio.to_thread.run_sync(partial.write, data)
        except trio.Cancelled:
            block += data  # Trio waits for a thread that has begun, so this one has not
            raise
