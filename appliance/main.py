"""One run of the server: the nested ``async with`` is the order in which everything starts and stops."""

from __future__ import annotations

import gc
import logging
import os
import sys
import traceback
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial

import trio
from msgspec import structs

from appliance import __version__, start
from appliance.catalog.catalog import AT_ONCE, STARTER_ID, Catalog, find_model
from appliance.catalog.found import cache_directory
from appliance.catalog.headers import Headers, headers_file
from appliance.catalog.sources import ModelFolders
from appliance.catalog.supply import DownloadSettings
from appliance.composition import AppliancePaths, OpenAppliance, open_appliance
from appliance.core.config.types import Config
from appliance.core.engine import Engine
from appliance.core.installed import MODELS, NAME
from appliance.core.server_choice import LET_IN
from appliance.core.settings import DEFAULT_PORT, DEFAULT_URL, KEY_VARIABLE, URL_VARIABLE, Listen, UnixSocket, at_port
from appliance.engines.manuals import manual_of
from appliance.errors import ApplianceError, UpstreamFailed, UsageError
from appliance.feature import Feature, engines_of
from appliance.fleet.chooser import EngineSource, FoundEngines
from appliance.http.bytes.listening import reachable, url_of
from appliance.http.owners import Owners
from appliance.parent import check_parent, open_parent, open_service_manager
from appliance.platform.console import EXIT_BUG, EXIT_OURS, PROGRAM, keep_log, say, say_only_errors
from appliance.platform.home import users_data, users_home
from appliance.platform.machine import files_for, raise_open_files, share_heap
from appliance.platform.stopping import StopSignals, stop_signals
from appliance.settings import AppSettings
from appliance.trio_parts import Changed, beside, lacking, persist
from appliance.upkeep import (
    echoing_engine_log,
    following_files,
    keep_small,
    log_on_console,
    logging_into,
)
from appliance.upstream.hub import hub_access

NEST = 100
"""Groups of exceptions within each other that are shown; Python leaves out what is deeper than ten, the bug itself."""
LOOK_HEAD_START = 1.0
"""Seconds that the first look for models, which takes milliseconds, may delay listening: a disk may be slow."""
PIECE, PAUSE = 0.03, 0.03
"""Seconds for which headers of models are read, and for which others have the processor then."""
PUBLISH_AFTER = 1.0
KEEP_AFTER = 5.0
"""Seconds after which what has been read is written to the disk, although more is being read."""
SHOWN_MODELS = 8
LIVED = 5.0
"""Seconds after which the one model that has died is loaded again: one that dies earlier would do so for ever."""


async def run_server(settings: AppSettings, features: Sequence[Feature]) -> int:
    """Serve until told to stop; the result is the exit status. Raises ApplianceError for what the user can mend."""
    share_heap()
    if settings.config is None:
        logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
        for handler in logging.getLogger().handlers:
            handler.setLevel(logging.CRITICAL if settings.quiet else logging.INFO)
    if settings.quiet:
        say_only_errors()
    elif settings.log_file is not None:
        keep_log(settings.log_file)
    check_parent(settings.embedding)
    source = engines_of(features)
    # A configuration may bring its own.
    found = source.found(settings.engine, optional=settings.config is not None and bool(settings.config.models))
    catalog = Catalog(settings.sources, settings.config, Headers(headers_file()))
    if settings.config is not None:
        for feature in features:
            if feature.check is not None:
                feature.check(settings.config)
    settings = structs.replace(settings, http=structs.replace(settings.http, clients=_places(settings.http.clients)))
    try:
        with stop_signals(lambda: settings.http.grace + _stop_time(catalog.snapshot.config)) as stop, stop.at_once:
            await _run(settings, features, source, found, catalog, stop)
            return 0
    except ExceptionGroup as group:
        if why := lacking(group):  # of the start, or of what nobody can do without
            say(f"{PROGRAM} cannot go on: {why}; let it have more (ulimit -n, ulimit -u, --pids-limit)")
            return EXIT_OURS
        told = "".join(traceback.TracebackException.from_exception(group, max_group_depth=NEST).format())
        logging.getLogger(__name__).critical("this is a bug in llama-appliance\n%s", told.rstrip())
        return EXIT_BUG
    return EXIT_OURS  # the second signal cut everything short


def _places(wanted: int) -> int:
    """Return the number of clients at once that the limit of open files allows, and say so if more are wanted."""
    found = raise_open_files(wanted)
    if found < wanted:
        files = files_for(wanted)
        say(f"--max-connections {wanted} needs {files} open files (ulimit -n, LimitNOFILE); {found} have a place now")
    return found


async def _run(
    settings: AppSettings,
    features: Sequence[Feature],
    source: EngineSource,
    found: FoundEngines,
    catalog: Catalog,
    stop: StopSignals,
) -> None:
    """Serve, and do what is done beside serving. An expected failure leaves every nursery as a value."""
    failure: ApplianceError | None = None
    await _finish_update(source)
    await trio.to_thread.run_sync(_make_models_folder, settings.sources)
    if settings.port_of_engine:
        settings = await _at_engines_port(settings, found)
    data = users_data()
    async with echoing_engine_log(settings) as echo, _scanning(catalog) as scanned:
        places = AppliancePaths(
            catalog=catalog,
            engines=found,
            downloading=_downloading(settings),
            data=data,
            learns=not settings.echo,
            echo=echo,
        )
        try:
            async with open_appliance(settings, places, features) as appliance:
                failure = await _serve(settings, features, appliance, scanned, stop)
        except UsageError as error:  # of what is listened on, of the store, or of the tools
            failure = error
    if failure is not None:
        raise failure


async def _at_engines_port(settings: AppSettings, found: FoundEngines) -> AppSettings:
    """llama.cpp's builds from October 2026 on listen on 9931 by default, earlier ones on 8080, as this program does."""
    port = await usual_port(found) or DEFAULT_PORT
    listen = at_port(settings.http.listen, port)
    if any(not isinstance(place, UnixSocket) for place in listen):
        say(f"port {port} is the default of this llama.cpp (8080 before October 2026, 9931 since); --port sets another")
    return structs.replace(settings, http=structs.replace(settings.http, listen=listen))


async def usual_port(found: FoundEngines) -> int | None:
    """Return the port that the engine in use listens on unless told otherwise; None if it does not say."""
    async with found.open() as engines:
        engine = engines.choose()
    return (await manual_of(engine)).port if engine is not None else None


async def _serve(
    settings: AppSettings,
    features: Sequence[Feature],
    appliance: OpenAppliance,
    scanned: trio.Event,
    stop: StopSignals,
) -> ApplianceError | None:
    """Until told to stop; the error that ended it before."""
    failure: ApplianceError | None = None
    owners, traffic = appliance.owners, appliance.traffic
    companions = [feature.beside for feature in features if feature.beside is not None]
    with logging_into(traffic.program_log):
        async with (
            open_service_manager(stop.asked, owners.engines.doubt) as manager,
            open_parent(settings.embedding) as report_ready,
            log_on_console(traffic.logs if owners.configuration is not None else None),
            following_files(owners.reloads, watch=settings.watch_config),
            beside(partial(persist, "giving memory back", keep_small)),
            beside(start.forget_after_trial, *(partial(run, settings) for run in companions)),
            trio.open_nursery() as serving,
        ):
            try:
                bound = await serving.start(appliance.server.serve, stop.asked)
            except ApplianceError as error:
                failure = error
            else:
                gc.freeze()  # `__main__` switched it off for the start; nor is that looked through while requests wait
                gc.enable()
                urls = [url_of(each, tls=settings.http.tls is not None) for each in bound]
                where = " and ".join(urls)
                say(f"{PROGRAM} {__version__} listening on {where}")
                manager.ready(where)
                async with _until(stop.asked):
                    failure = await report_ready(urls, __version__)
                    if failure is None:
                        await scanned.wait()
                        found_at_home = appliance.server.found_at_home
                        failure = await _beside_serving(settings, owners, () if found_at_home else bound)
                if failure is not None:
                    stop.asked.set()
    return failure


async def _beside_serving(settings: AppSettings, owners: Owners, bound: Sequence[Listen]) -> ApplianceError | None:
    """Finish the start once the program listens and knows its models; an error ends it.

    ``bound``: where commands have to look for the server, if they do not find it by themselves.
    """
    if settings.http.single is not None:
        return await _serve_single(settings.http.single, owners)
    _introduce(settings, owners.fleet.launches.engine, owners.catalog, bound)
    configured = settings.config.hooks.on_startup.preload if settings.config is not None else ()
    presets = [model.id for model in owners.catalog.snapshot.models if model.load_on_startup]
    for name in dict.fromkeys(() if settings.trial else (*configured, *presets, *settings.preload)):
        if error := await _load(owners, name):
            say(f"cannot preload: {error}")
    return await trio.sleep_forever()


async def _serve_single(model: str, owners: Owners) -> ApplianceError | None:
    """Keep the one model loaded. llama-server would end with it; this program does if loading it again is useless."""
    fleet = owners.fleet
    while True:
        if error := await _load(owners, model):
            return error
        say("main: model loaded")
        loaded_at = trio.current_time()
        await fleet.wait_gone(model)
        status = fleet.known(model)
        why = status.error if status is not None and status.error else "it ended"
        if trio.current_time() < loaded_at + LIVED:
            return UpstreamFailed(model, f"{why}, right after it was loaded")
        say(f"main: {why}; loading the model again")


async def _load(owners: Owners, name: str) -> ApplianceError | None:
    try:
        await owners.fleet.load(await find_model(owners.catalog, name))
    except ApplianceError as error:
        return error
    return None


async def _finish_update(source: EngineSource) -> None:
    """An update of an engine may have been cut short: what it left is put in place, or away."""
    try:
        await trio.to_thread.run_sync(source.recover)
    except OSError as cause:
        logging.getLogger(__name__).warning("what an update of engines left cannot be cleared up: %s", cause)


def _make_models_folder(sources: ModelFolders) -> None:
    """Have the folder that ``ls`` and the log name for files of users."""
    if sources.models_dir is not None:
        with suppress(OSError):
            sources.models_dir.mkdir(parents=True, exist_ok=True)


def _downloading(settings: AppSettings) -> DownloadSettings:
    """Return source and target of downloads. Raises UsageError for an endpoint that is not an address."""
    hub = hub_access(os.environ, token=settings.hub_token)
    cache = settings.sources.cache or cache_directory(os.environ, users_home()).absolute()
    return DownloadSettings(cache=cache, models_dir=settings.sources.models_dir, hub=hub)


def _stop_time(config: Config | None) -> float:
    """Seconds that configured servers may take to stop when the program ends, beyond the usual."""
    return max((model.unload_timeout for model in config.models.values()), default=0) if config is not None else 0


def _introduce(settings: AppSettings, engine: Engine | None, catalog: Catalog, bound: Sequence[Listen]) -> None:
    """Report what somebody who has just started the program wants to know."""
    usable = [model.id for model in catalog.snapshot.models if not model.error]
    more = f" and {len(usable) - SHOWN_MODELS} more" if len(usable) > SHOWN_MODELS else ""
    if engine is not None:
        say(f"  engine: {engine.in_words()}")
    say(f"  models: {', '.join(usable[:SHOWN_MODELS])}{more}" if usable else "  models: none yet")
    if catalog.sources.models_dir is not None:
        say(f"  more models: put .gguf files into {catalog.sources.models_dir}")
        if str(catalog.sources.models_dir) == MODELS:
            say(f"  members of the group {NAME} may; {LET_IN}")
    if usable:
        _say_what_to_try(settings, STARTER_ID if STARTER_ID in usable else usable[0], bound)
    for model in catalog.snapshot.models:
        if model.error:
            say(f"  {model.id} cannot be used: {model.error}")


def _say_what_to_try(settings: AppSettings, model: str, bound: Sequence[Listen]) -> None:
    """A line for a shell of this machine, if ``run`` can reach the server: it does not know HTTPS."""
    where, key = (), ""
    if bound:
        place = next((each for each in bound if not isinstance(each, UnixSocket)), None)
        if place is None or settings.http.tls is not None:
            return
        host, port = place
        url = url_of((reachable(host), port), tls=False) + settings.http.api_prefix
        where = () if url == os.environ.get(URL_VARIABLE, DEFAULT_URL) else ("--url", url)
        keyed = settings.http.api_keys or (settings.config is not None and any(settings.config.api_keys))
        key = f", with a key in {KEY_VARIABLE}" if keyed else ""
    say(f'  try{key}: {start.called()} {start.in_shell(("run", *where, model))} "Hello"')


@asynccontextmanager
async def _scanning(catalog: Catalog) -> AsyncGenerator[trio.Event]:
    """Look for models in the background, and read their headers; the event tells that all are known by name."""
    looked, scanned, changed = trio.Event(), trio.Event(), Changed()
    catalog.on_looked = partial(trio.lowlevel.current_trio_token().run_sync_soon, changed.wake, idempotent=True)

    async def scan() -> None:
        await trio.to_thread.run_sync(catalog.look, abandon_on_cancel=True)
        looked.set()
        await trio.to_thread.run_sync(catalog.read_on, AT_ONCE, abandon_on_cancel=True)
        scanned.set()
        read_piece = partial(catalog.read_on, PIECE, publish_after=PUBLISH_AFTER)
        keep_at = trio.current_time() + KEEP_AFTER
        while True:
            left = await trio.to_thread.run_sync(read_piece, abandon_on_cancel=True)
            if not left or trio.current_time() > keep_at:
                await trio.to_thread.run_sync(catalog.keep, abandon_on_cancel=True)
                keep_at = trio.current_time() + KEEP_AFTER
            if catalog.is_read:
                await changed.wait()
            else:
                await trio.sleep(PAUSE)

    async with beside(partial(persist, "looking for models", scan)):
        with trio.move_on_after(LOOK_HEAD_START):
            await looked.wait()
        yield scanned


@asynccontextmanager
async def _until(event: trio.Event) -> AsyncGenerator[None]:
    """Cut the block short when the event is set."""

    async def cut(scope: trio.CancelScope) -> None:
        await event.wait()
        scope.cancel()

    async with beside() as nursery:
        nursery.start_soon(cut, nursery.cancel_scope)
        yield
