"""Progress of downloads: bars on a terminal, lines elsewhere, and signals that end downloads cleanly."""

from __future__ import annotations

import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio

from appliance.catalog.download_status import DownloadStatus
from appliance.catalog.downloads import Download
from appliance.cli.show import human_size
from appliance.platform.console import say
from appliance.trio_parts import plain_nursery

STOPS = (signal.SIGINT, signal.SIGTERM)
DRAW_EVERY = 0.1
"""Seconds between two updates of the bar."""
LINE_EVERY = 2.0
STEP = 10
"""Percent between two lines when the output is not a terminal."""


class Stopped(Exception):
    """The user ended it before anything was downloaded."""


async def followed(begin: Callable[[], Awaitable[Download]]) -> DownloadStatus:
    """Begin a download and show its progress; Ctrl-C and SIGTERM end it cleanly, so that no byte is lost.

    Raises Stopped, and whatever ``begin`` raises.
    """
    async with stopping(begin) as download:
        say_plan(download.status)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(draw_progress if sys.stderr.isatty() else _say_progress, download)
            status = await download.wait()
            nursery.cancel_scope.cancel()
    return status


@asynccontextmanager
async def stopping(begin: Callable[[], Awaitable[Download]]) -> AsyncGenerator[Download]:
    """Run the download for the length of the block; signals cancel it. Raises Stopped, and as ``begin``."""
    begun: list[Download] = []
    with trio.open_signal_receiver(*STOPS) as signals:
        async with _watched(signals, begun) as asking:
            with asking:
                begun.append(await begin())
            if asking.cancelled_caught:
                raise Stopped
            yield begun[0]


@asynccontextmanager
async def _watched(signals: AsyncIterator[int], begun: list[Download]) -> AsyncGenerator[trio.CancelScope]:
    """Let a failure leave the block unchanged, and not inside a group."""
    asking = trio.CancelScope()
    async with plain_nursery() as nursery:
        nursery.start_soon(_watch_signals, signals, begun, asking)
        yield asking
        nursery.cancel_scope.cancel()


async def _watch_signals(signals: AsyncIterator[int], begun: list[Download], asking: trio.CancelScope) -> None:
    async for _ in signals:
        for download in begun:
            download.cancel()
        if not begun:
            asking.cancel()


async def draw_progress(download: Download) -> None:
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
        while True:
            for url, file in download.status.files.items():
                bars.update(tasks[url], completed=file.done)
            bars.refresh()
            await trio.sleep(DRAW_EVERY)


async def _say_progress(download: Download) -> None:
    """Print a line for every further tenth, until cancelled."""
    told = 100 * download.status.done // max(download.status.total, 1)
    while True:
        await trio.sleep(LINE_EVERY)
        status = download.status
        percent = 100 * status.done // max(status.total, 1)
        if percent >= told + STEP:
            told = percent
            say(f"downloading {status.model}: {percent} % of {human_size(status.total)}")


def say_plan(status: DownloadStatus) -> None:
    if status.done < status.total:
        here = f", {human_size(status.done)} already here" if status.done else ""
        say(f"downloading {status.model}: {human_size(status.total)} in {_files(len(status.files))}{here}")


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count} files"
