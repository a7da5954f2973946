"""What a running server does beside serving: follows its configuration's files and tells its log to the console."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
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
from appliance.http.program_log import LogFeeds, ProgramLog, ToProgramLog
from appliance.peers.owner import Peers

ROOT = "appliance"
"""The logger above all of the program's own."""


def configuration_of(settings: AppSettings, fleet: Fleet, catalog: Catalog, peers: Peers) -> Configuration | None:
    """The owner of the configuration in force, which fleet, catalog and peers follow; None where there is none."""
    if settings.files is None or settings.config is None:
        return None
    configuration = Configuration(settings.files, settings.config)
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


async def tell_console(owners: Owners) -> None:
    """Write to standard output what ``logToStdout`` says, until cancelled; nothing without a configuration."""
    if owners.configuration is None:
        return
    configuration = owners.configuration
    feeds = LogFeeds(owners.program_log, owners.fleet.logs, lambda: configuration.current.log_to_stdout)
    reader = feeds.combined()
    while True:
        if lines := reader.take():
            text = "\n".join(lines)
            await trio.to_thread.run_sync(_print, text, abandon_on_cancel=True)  # nobody may be reading
        await reader.wait()


def _print(text: str) -> None:
    print(text, flush=True)


async def echo_engine_log(fleet: Fleet) -> None:
    """What the model process prints goes to standard error, where users of llama-server look for it."""
    async for line in fleet.logs.follow(None):
        text = line.partition("] ")[2]
        await trio.to_thread.run_sync(say, text, abandon_on_cancel=True)  # nobody may be reading
