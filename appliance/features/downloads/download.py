"""One download: its files, one after the other or together, until all are there or it has ended."""

from __future__ import annotations

import errno
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from weakref import WeakValueDictionary

import trio

from appliance.core.models.download_status import DownloadStatus, FileProgress, State
from appliance.errors import ApplianceError, CallerError
from appliance.features.downloads.plan import MAKE_ROOM
from appliance.features.downloads.rules import DownloadPace
from appliance.upstream.file_transfer import DownloadFailed, DownloadPlan, PlannedFile, Transfer, fetch

log = logging.getLogger(__name__)

FULL = (errno.ENOSPC, errno.EDQUOT)


class Turns:
    """The queue for fetching: so many files at once, in the order of arrival, and none twice at the same time."""

    def __init__(self, parallel: int) -> None:
        self._slots = trio.CapacityLimiter(parallel)
        self._files: WeakValueDictionary[Path, trio.Lock] = WeakValueDictionary()
        self.naming = trio.CapacityLimiter(1)
        """Models that have come get their names one after the other: two of them may share a projector."""

    @asynccontextmanager
    async def take(self, blob: Path) -> AsyncGenerator[None]:
        """Wait for a place, and until nobody else fetches this file: two models may share a projector."""
        turn = self._files.setdefault(blob, trio.Lock())
        async with turn, self._slots:
            yield


class ModelDownload:
    """One model under way. Made by `Downloads.fetch`."""

    def __init__(
        self, plan: DownloadPlan, have: Mapping[str, int], changed: Callable[[bool], None], number: int
    ) -> None:
        self.plan = plan
        self.number = number
        self.model = plan.model_id
        self.error: ApplianceError | None = None  # the reason of its failure
        self.state: State = "queued"
        self._files = {file.url: FileProgress(have[file.url], file.size) for file in plan.files}
        self._changed = changed
        self.queued_at = trio.current_time()
        self._done = sum(have.values())
        self._pace = DownloadPace()
        self._whole = trio.CancelScope()
        self._transfer = trio.CancelScope()
        self._go = trio.Event()
        self._go.set()
        self._ended = trio.Event()

    @property
    def status(self) -> DownloadStatus:
        speed = self._pace.rate(self._done, trio.current_time()) if self.state == "downloading" else None
        return DownloadStatus(
            model=self.model,
            repo=self.plan.repo,
            state=self.state,
            files=dict(self._files),
            error=str(self.error) if self.error else None,
            reason=self.error.reason if self.error else None,
            callers_fault=isinstance(self.error, CallerError),
            number=self.number,
            speed=speed,
            left=(sum(file.total for file in self._files.values()) - self._done) / speed if speed else None,
        )

    @property
    def hashes(self) -> Mapping[str, str]:
        return {file.url: file.oid for file in self.plan.files}

    @property
    def missing(self) -> int:
        """Bytes still to come; 0 once it has ended."""
        status = self.status
        return 0 if status.ended else status.total - status.done

    @property
    def part(self) -> float | None:
        """How much of it is here, from 0 to 1."""
        status = self.status
        return status.done / status.total if status.total else None

    async def wait(self) -> DownloadStatus:
        """Wait until it has ended, in any way."""
        await self._ended.wait()
        return self.status

    def cancel(self) -> None:
        """End it. The part that has come stays on disk for another `fetch`."""
        self._whole.cancel()

    def pause(self) -> None:
        """Close its connections until `resume`. Does nothing for one that has ended."""
        if self.state in ("queued", "downloading"):
            self._go = trio.Event()
            self._pace = DownloadPace()
            self._set("paused")
            self._transfer.cancel()

    def resume(self) -> None:
        """Continue where it stopped; does nothing for one that is not paused."""
        if self.state == "paused":
            self._set("queued")
            self.queued_at = trio.current_time()
            self._go.set()

    async def run(self, transfer: Transfer, turns: Turns, settle: Callable[[], None]) -> None:
        """The task of this download. Raises nothing but Cancelled; ``state`` says how it ended."""
        try:
            with self._whole:
                await self._run(transfer, turns)
                if self.error is None:
                    await trio.to_thread.run_sync(settle, limiter=turns.naming)
        except ApplianceError as error:
            self.error = error
        except OSError as error:
            self.error = disk_failed(self.model, error)
        except Exception:
            # This error is unforeseen, and no running model may end because of a download.
            log.exception("a bug ended the download of %s", self.model)
            self.error = DownloadFailed(self.model, "this is a bug; the log says more")
        if self.error:
            self._end("failed")
        else:
            self._end("cancelled" if self._whole.cancelled_caught else "finished")

    async def _run(self, transfer: Transfer, turns: Turns) -> None:
        while True:
            await self._go.wait()
            with trio.CancelScope() as self._transfer:
                async with trio.open_nursery() as nursery:
                    for file in self.plan.files:
                        nursery.start_soon(self._fetch, transfer, turns, file, nursery.cancel_scope)
                return

    async def _fetch(self, transfer: Transfer, turns: Turns, file: PlannedFile, siblings: trio.CancelScope) -> None:
        """Fetch one file. Its failure is noted and ends the others, because the model is of no use without it."""
        try:
            async with turns.take(file.blob):
                self._set("downloading")
                await fetch(transfer, self.plan.repo, self.model, file, lambda done: self._report(file, done))
        except ApplianceError as error:
            self.error = self.error or error
            siblings.cancel()
        except OSError as error:
            self.error = self.error or disk_failed(file.path, error)
            siblings.cancel()

    def _report(self, file: PlannedFile, done: int) -> None:
        self._done += done - self._files[file.url].done
        self._files[file.url] = FileProgress(done, file.size)
        self._pace.see(self._done, trio.current_time())
        self._changed(False)

    def _set(self, state: State) -> None:
        if self.state != state and not (self.state == "paused" and state == "downloading"):
            self.state = state
            self._changed(True)

    def _end(self, state: State) -> None:
        self.state = state
        self._ended.set()
        self._changed(True)


def disk_failed(what: str, error: OSError) -> DownloadFailed:
    """Return the error of a download whose disk refuses. If it is full, the advice says what to do."""
    where = f" ({error.filename})" if error.filename else ""
    then = f"; {MAKE_ROOM}, and download it again" if error.errno in FULL else ""
    return DownloadFailed(what, f"{error.strerror or error}{where}; the part so far is kept{then}")
