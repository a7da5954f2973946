"""What a running server does beside serving: follows its configuration's files and tells its log to the console."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager

import trio

from appliance.catalog.catalog import Catalog
from appliance.catalog.configuration import Configuration
from appliance.cli.plan import AppSettings
from appliance.cli.status import say
from appliance.cli.values import refuse_open_door
from appliance.core.config.types import Config
from appliance.fleet.owner import Fleet
from appliance.http.front import Owners
from appliance.http.program_log import LogFeeds, LogReader, ProgramLog, ToProgramLog
from appliance.peers.owner import Peers

ROOT = "appliance"
"""The logger above all of the program's own."""
LAST_LINES = 0.5
"""Seconds that the last lines of the log get to be written; for ever, if nobody reads them."""
FULL_PAUSE = 0.05


def configuration_of(settings: AppSettings, fleet: Fleet, catalog: Catalog, peers: Peers) -> Configuration | None:
    """The owner of the configuration in force, which fleet, catalog and peers follow; None where there is none."""
    if settings.files is None or settings.config is None:
        return None
    configuration = Configuration(settings.files, settings.config, settings.ports)
    configuration.followers += [_door(settings), _peers(peers), _models(fleet, catalog)]
    fleet.adopt(settings.config, catalog.snapshot.models)
    return configuration


def _door(settings: AppSettings) -> Callable[[Config], Sequence[str]]:
    """Refuses a configuration whose keys were what kept other machines out, and that has none any more."""

    def check(config: Config) -> Sequence[str]:
        if not settings.allow_unauthenticated:
            refuse_open_door(settings.http, config.api_keys)
        return ()

    return check


def _peers(peers: Peers) -> Callable[[Config], Sequence[str]]:
    def adopt(config: Config) -> Sequence[str]:
        peers.adopt(config)
        return ()

    return adopt


def _models(fleet: Fleet, catalog: Catalog) -> Callable[[Config], Sequence[str]]:
    def adopt(config: Config) -> Sequence[str]:
        catalog.adopt(config)
        return fleet.adopt(config, catalog.snapshot.models)

    return adopt


@asynccontextmanager
async def following_files(configuration: Configuration | None, *, watch: bool) -> AsyncGenerator[None]:
    """For the length of the block: reload on SIGHUP, and with ``watch`` when a file changes."""
    if configuration is None:
        yield
        return
    async with trio.open_nursery() as nursery:
        if watch:
            nursery.start_soon(configuration.watch)
        if sys.platform != "win32":
            nursery.start_soon(_reload_on_hangup, configuration)
        yield
        nursery.cancel_scope.cancel()


async def _reload_on_hangup(configuration: Configuration) -> None:
    with trio.open_signal_receiver(signal.SIGHUP) as signals:
        async for _ in signals:
            await configuration.reload_quietly()


@contextmanager
def logging_into(program_log: ProgramLog) -> Generator[None]:
    """The program's log records go into its log for the length of the block."""
    logger = logging.getLogger(ROOT)
    handler = ToProgramLog(program_log)
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


@asynccontextmanager
async def telling_console(owners: Owners) -> AsyncGenerator[None]:
    """For the length of the block: standard output gets what ``logToStdout`` says; nothing without a configuration."""
    if owners.configuration is None:
        yield
        return
    configuration = owners.configuration
    feeds = LogFeeds(owners.program_log, owners.fleet.logs, lambda: configuration.current.log_to_stdout)
    ended = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_write_lines, feeds.combined(), ended)
        yield
        ended.set()
        nursery.cancel_scope.deadline = trio.current_time() + LAST_LINES


async def _write_lines(reader: LogReader, ended: trio.Event) -> None:
    """Until the end, or until nobody can read any more. One who reads slowly, or not at all, holds nothing up."""
    while True:
        last = ended.is_set()
        if not await _write_out(reader.take()) or last:
            return
        async with trio.open_nursery() as nursery:
            for wait in (reader.wait, ended.wait):
                nursery.start_soon(_cancel_after, wait, nursery.cancel_scope)


async def _cancel_after(wait: Callable[[], Awaitable[None]], scope: trio.CancelScope) -> None:
    await wait()
    scope.cancel()


async def _write_out(lines: Sequence[str]) -> bool:
    """False when standard output is closed."""
    text = "".join(f"{line}\n" for line in lines)
    return not text or await trio.to_thread.run_sync(_print, text, abandon_on_cancel=True)


def _print(text: str) -> bool:
    """Past Python's own buffer, whose lock a thread that hangs in it would still hold when the program ends."""
    try:
        if sys.platform == "win32":
            print(text, end="", flush=True)  # knows what a console takes
            return True
        data = text.encode(sys.stdout.encoding, "replace")
        while data:
            try:
                data = data[os.write(sys.stdout.fileno(), data) :]
            except BlockingIOError:
                time.sleep(FULL_PAUSE)  # a pipe that is full, and that somebody has told not to wait
    except (AttributeError, OSError, ValueError):
        return False  # closed, before the program began or since, or no file at all
    return True


async def echo_engine_log(fleet: Fleet) -> None:
    """What the model process prints goes to standard error, where users of llama-server look for it."""
    async for line in fleet.logs.follow(None):
        text = line.partition("] ")[2]
        await trio.to_thread.run_sync(say, text, abandon_on_cancel=True)  # nobody may be reading
