"""A download on the terminal: bars on a terminal and lines elsewhere; signals end it cleanly."""

from __future__ import annotations

import signal
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

import trio

from appliance.catalog.supply import DownloadSettings
from appliance.cli.show import human_size
from appliance.core.models.download import Remote
from appliance.core.models.download_status import DownloadStatus
from appliance.core.models.hub_address import HubAccess
from appliance.errors import ApplianceError
from appliance.features.downloads.download import ModelDownload
from appliance.features.downloads.owner import Downloads, open_downloads
from appliance.platform.console import EXIT_INTERRUPTED, say, say_error
from appliance.trio_parts import beside, every

STOPS = (signal.SIGINT, signal.SIGTERM)
DRAW_EVERY = 0.1  # seconds between two updates of the bar
LINE_EVERY = 2.0
STEP = 10  # percent between two lines when the output is not a terminal


class Stopped(Exception):
    """The user ended it before anything was downloaded."""


class OpenDownload(Protocol):
    """A download under way, here or at a server. Waiting for it raises what it cannot be followed for."""

    @property
    def status(self) -> DownloadStatus: ...

    async def wait(self) -> DownloadStatus: ...

    def cancel(self) -> None: ...


Begin = Callable[[], Awaitable[OpenDownload]]


async def followed(begin: Begin) -> DownloadStatus:
    """Begin a download and show its progress; Ctrl-C and SIGTERM end it cleanly, so that no byte is lost.

    Raises Stopped, and whatever ``begin`` raises.
    """
    async with stopping(begin) as download:
        print_plan(download.status)
        async with beside(partial(draw_progress if sys.stderr.isatty() else _print_tenths, download)):
            await download.wait()
    return download.status


@asynccontextmanager
async def stopping(begin: Begin) -> AsyncGenerator[OpenDownload]:
    """Run the download for the length of the block; signals cancel it. Raises Stopped, and as ``begin``."""
    download: OpenDownload | None = None
    asking = trio.CancelScope()

    async def watch_signals() -> None:
        async for _ in signals:
            if download is None:
                asking.cancel()
            else:
                download.cancel()

    with trio.open_signal_receiver(*STOPS) as signals:
        async with beside(watch_signals):
            with asking:
                download = await begin()
            if download is None:
                raise Stopped
            yield download


async def draw_progress(download: OpenDownload) -> None:
    """Show bars on standard error, until cancelled."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    bars = Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), auto_refresh=False, transient=True)
    with bars:
        tasks = {
            url: bars.add_task(url.rpartition("/")[2], total=file.total, completed=file.done)
            for url, file in download.status.files.items()
        }

        def draw() -> None:
            for url, file in download.status.files.items():
                bars.update(tasks[url], completed=file.done)
            bars.refresh()

        await every(DRAW_EVERY, draw, first=0)


async def _print_tenths(download: OpenDownload) -> None:
    """Print a line for every further tenth, until cancelled."""
    told = 100 * download.status.done // max(download.status.total, 1)

    def apply() -> None:
        nonlocal told
        status = download.status
        percent = 100 * status.done // max(status.total, 1)
        if percent >= told + STEP:
            told = percent
            say(f"downloading {status.model}: {percent} % of {human_size(status.total)}")

    await every(LINE_EVERY, apply)


def print_plan(status: DownloadStatus) -> None:
    if status.done < status.total:
        here = f", {human_size(status.done)} already here" if status.done else ""
        files = "1 file" if len(status.files) == 1 else f"{len(status.files)} files"
        say(f"downloading {status.model}: {human_size(status.total)} in {files}{here}")


async def bring(wanted: Remote, cache: Path, hub: HubAccess) -> int | None:
    """Fetch a model into the cache. Returns the exit status if the user has stopped it.

    Raises the source's refusal, or DownloadFailed.
    """
    async with open_downloads(DownloadSettings(cache=cache, hub=hub)) as downloads:
        outcome = await _bring(downloads, wanted)
    if isinstance(outcome, ApplianceError):
        raise outcome
    return outcome


async def _bring(downloads: Downloads, wanted: Remote) -> int | ApplianceError | None:
    """Return None on success. A failure is a value, because it happens within the nursery of the downloads."""
    begun: list[ModelDownload] = []

    async def begin() -> ModelDownload:
        begun.append(await downloads.fetch(wanted))
        return begun[0]

    try:
        status = await followed(begin)
    except ApplianceError as error:
        return error
    except Stopped:
        return say_error("stopped before anything was downloaded", EXIT_INTERRUPTED)
    if status.state == "cancelled":
        kept = f"{human_size(status.done)} of {human_size(status.total)} are kept"
        return say_error(f"stopped: {kept}; the same command resumes from there", EXIT_INTERRUPTED)
    return begun[0].error
