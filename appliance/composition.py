"""One program, put together: the nest of everything that it owns, in the order in which it stops.

Read `open_appliance` from the outside in: each line needs only what stands above it, and ends before it. An owner
gets its listeners when it is made; nothing is attached later. The tests open the very same nest.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from appliance.catalog.catalog import Catalog
from appliance.catalog.configuration import ConfigInForce, Follower, Reloads
from appliance.catalog.downloads import DownloadSettings, ModelSupply, open_downloads
from appliance.catalog.sources import STARTER
from appliance.core.config.nodes import Problem
from appliance.core.config.scalars import parse_duration
from appliance.core.config.types import Config
from appliance.core.engines.choice import best
from appliance.core.fit.budget import gpu_memory
from appliance.core.machine import Sample
from appliance.core.offline import refuse_outside
from appliance.core.settings import refuse_open_admin, refuse_open_door
from appliance.engines.background import keeping_up
from appliance.engines.found import Finder
from appliance.engines.owner import Chooser, Engines, open_engines
from appliance.feature import Feature, Ground, ServerParts, open_first, open_parts, tools_of
from appliance.fleet.logs import Echo
from appliance.fleet.owner import Fleet, open_fleet
from appliance.http.bytes.body import Bodies
from appliance.http.chat.chained import PluginChains
from appliance.http.control.blob_routes import BlobRoutes
from appliance.http.control.edge_routes import EdgeRoutes
from appliance.http.control.own_routes import OwnRoutes
from appliance.http.control.predict import Predict
from appliance.http.kernel import EdgeRoute, Kernel
from appliance.http.ollama.known import KnownModels
from appliance.http.ollama.reading import OllamaReader
from appliance.http.ollama.routes import OllamaRoutes
from appliance.http.owners import Owners, model_states
from appliance.http.server import ApplianceServer, open_listening
from appliance.http.way.ask import Ask
from appliance.http.way.at_peers import AskPeers
from appliance.http.way.edge import Edge
from appliance.http.way.fast_path import FastPath
from appliance.http.way.gateway import Gateway, Sockets
from appliance.http.way.guard import Guard
from appliance.http.way.handover import Inward
from appliance.http.way.pipeline import Beside, Pipeline, Placing
from appliance.http.way.progress import Pings
from appliance.http.way.resumable import Lasting
from appliance.peers.owner import Peers, open_peers
from appliance.platform.drivers import open_gpus
from appliance.platform.home import expanded
from appliance.platform.samples import open_samples
from appliance.plugins.folders import choice_of
from appliance.plugins.registry import Plugins, open_plugins
from appliance.pool.seat import open_pool_seat
from appliance.settings import AppSettings
from appliance.start import programs_folder
from appliance.store.activity import DEFAULT_KEEP, open_activity
from appliance.store.derived_models import DerivedModels
from appliance.store.engine_state import StateFile
from appliance.store.history import open_history
from appliance.store.kept_contexts import ContextPlace, KeptContexts, Tier, open_kept_contexts
from appliance.streams.owner import open_streams
from appliance.traffic.record import open_recorder
from appliance.traffic.targets import Targets
from appliance.traffic.traffic import Traffic
from appliance.upstream.pool import open_pool

if TYPE_CHECKING:
    from appliance.pool.owner import BoxPool


class AppliancePaths(Struct, frozen=True, kw_only=True):
    """The folders and files of one program. Only these differ in tests."""

    catalog: Catalog
    found: Finder
    remembered: StateFile
    """The file of everything that is remembered about engines."""
    downloading: DownloadSettings
    plugin_data: Path
    defaults: Config = Config()
    """The settings that apply without a configuration."""
    chooser: Chooser | None = None
    """Says which engine a model is started on, instead of what is known of engines."""
    data: Path
    """The program's data folder, in which features keep what is theirs."""
    contexts: Mapping[Tier, ContextPlace] = {}
    """The places of kept contexts; empty: none are kept, and those of another program stay."""
    derived_models: Path | None = None
    """The file of models that clients of Ollama's API derive from others; None keeps them in memory."""
    pool: Path | None = None
    """The file of the pool that this box is in; None: it cannot be in one."""
    learns: bool = True
    """Facts that are not known of the engines are found out in the background."""
    samples: bool = True
    """The machine is sampled, if the configuration does not say otherwise."""
    echo: Echo | None = None
    """Called with every line that model processes print."""

    def in_force(self) -> Config:
        """The configuration in force, or the defaults."""
        return self.catalog.snapshot.config or self.defaults


class OpenAppliance(Struct, frozen=True, kw_only=True):
    """A program that is open."""

    server: ApplianceServer
    owners: Owners
    traffic: Traffic
    kernel: Kernel
    """The program as features see it."""
    parts: Sequence[ServerParts]
    """The parts of the features."""


@asynccontextmanager
async def open_appliance(
    settings: AppSettings, places: AppliancePaths, features: Sequence[Feature]
) -> AsyncGenerator[OpenAppliance]:
    """Own everything for the length of the block. It listens from the start, and serves with `ApplianceServer.serve`.

    Raises UsageError for what cannot be listened on, for an invalid root of tools, and for a file that cannot be
    the activity log; these come first, where no task of another owner is there to be cancelled.
    """
    config, catalog, http = settings.config, places.catalog, settings.http
    catalog.engine_args = settings.fleet.engine_args
    applies = config or places.defaults
    log, inward = activity_log(config), Inward()
    async with (
        open_listening(http) as listening,
        open_activity(*log) as activity,
        open_history(*log) as history,
        open_first(features, settings) as first,
        open_recorder(activity) as recorder,
        open_pool() as pool,
        open_kept_contexts(settings.fleet.keep_context or applies.keep_context, places.contexts) as contexts,
        open_downloads(places.downloading, partial(catalog.refresh, 0.0)) as downloads,
        open_engines(
            places.found.find, places.remembered, starter=STARTER, only=places.found.only, tell=history.add
        ) as engines,
        open_gpus() as gpus,
        open_fleet(
            settings.fleet,
            places.chooser or engines,
            supply=ModelSupply(catalog, downloads),
            observer=recorder.metrics,
            echo=places.echo,
            gpus=gpus,
            tell=history.add,
            contexts=contexts,
        ) as fleet,
        keeping_up(engines, lambda: fleet.busy, fleet.see_machine) if places.learns else nullcontext(),
        open_samples(gpus, _sampling(applies) if places.samples else None, partial(_see_gpus, fleet)) as samples,
        open_peers(config, local_state=partial(model_states, fleet), wait_changed=fleet.wait_changed) as peers,
        open_parts(
            features,
            Ground(
                settings=settings,
                config=applies,
                data=places.data,
                fleet=fleet,
                catalog=catalog,
                recorder=recorder,
                history=history,
                inward=inward,
                tools=tools_of(first),
            ),
        ) as opened,
        open_streams(applies.streams, [each.audience for each in opened if each.audience is not None]) as streams,
        open_plugins(choice_of(config, settings.plugins), places.plugin_data, watch=settings.watch_config) as plugins,
    ):
        parts = [*first, *opened]
        traffic = Traffic(recorder, catalog, fleet, peers, lambda: catalog.snapshot.config)
        edge = Edge(http, listening.bound, Guard(http, listening.bound), traffic, Bodies(http))
        pings = Pings(http.ping_after)
        ask = Ask(edge, fleet, pool, pings)
        lasting = Lasting(streams, traffic, edge.bodies, fleet)

        def make_box_pool(path: Path) -> AbstractAsyncContextManager[BoxPool]:
            from appliance.http.door.serving import DoorParts, claim_door  # few programs are in a pool
            from appliance.pool.hands import BoxParts
            from appliance.pool.owner import open_box_pool

            def parts() -> DoorParts:
                return DoorParts(edge=edge, owners=owners, pool=pool, pings=pings, lasting=lasting)

            own = BoxParts(
                fleet=fleet,
                catalog=catalog,
                downloads=downloads,
                peers=peers,
                drained=traffic.lifetime.drain,
                speed=partial(_speed, engines),
                listen=edge.url,
                keyless=lambda: not edge.guard.asks_for_key,
                offline=settings.offline,
            )
            return open_box_pool(path, partial(claim_door, parts), own)

        async with open_pool_seat(places.pool, make_box_pool) as seat:

            def adopt(config: Config) -> Sequence[str]:
                streams.adopt(config.streams)
                traffic.lifetime.requests.revoke(edge.guard.adopt((*http.api_keys, *config.api_keys)))
                untaken = [why for each in parts if each.adopt is not None for why in each.adopt(config)]
                return (*traffic.adopt(config), *untaken)

            configuration = _configuration(settings, fleet, catalog, peers, adopt)
            owners = Owners(
                engines=engines,
                fleet=fleet,
                catalog=catalog,
                peers=peers,
                samples=samples,
                streams=streams,
                plugins=plugins,
                downloads=downloads if settings.sources.lookup is not None else None,
                configuration=configuration,
                tools=tools_of(first),
                reloads=Reloads(
                    configuration,
                    catalog,
                    lambda found: fleet.adopt(found.config, found.models),
                    partial(_look_for_plugins, plugins, settings, configuration),
                    history.add,
                ),
                history=history,
                folders=_folders(settings, places, applies, contexts, parts),
                contexts=contexts,
                pool=seat,
                derived_models=places.derived_models,
            )
            traffic.targets.derived = DerivedModels(places.derived_models).read()
            fleet.see_machine()
            run_task = next((each.run_task for each in parts if each.run_task is not None), None)
            kernel = Kernel(
                owners=owners,
                edge=edge,
                ask=ask,
                inward=inward,
                data=places.data,
                files=settings.files,
                defaults=places.defaults,
                run_task=partial(run_task, traffic.targets) if run_task is not None else None,
            )
            known = KnownModels(catalog, fleet, traffic.targets)
            pipeline = Pipeline(
                edge,
                catalog,
                ask,
                lasting,
                Beside(
                    peers=AskPeers(traffic.targets, peers, pool),
                    turns=(
                        PluginChains(plugins, inward, traffic.targets.names, pings),
                        *(make(kernel) for each in parts for make in each.turns),
                    ),
                    ollama=OllamaReader(fleet, known, inward),
                    inward=inward,
                    pool=partial(_placing, ask, peers, traffic.targets),
                ),
            )

            def gateway() -> Gateway:
                own: Sequence[EdgeRoute] = (
                    Predict(http.predict, inward),
                    BlobRoutes(seat),
                    *([OllamaRoutes(owners, traffic.targets, known, inward)] if http.single is None else []),
                    EdgeRoutes(edge, owners),
                )
                edges = (*(make(kernel) for each in parts for make in each.edges), *own)
                routes = [each.routes for each in parts if each.routes is not None]
                return Gateway(
                    edge,
                    pipeline,
                    OwnRoutes(kernel, edges, routes),
                    partial(_sockets, parts, kernel, pipeline),
                    partial(FastPath, edge, pipeline, ask, lasting),
                )

            async def quiet() -> None:
                """Runs, kept streams (whose clients may be away) and requests of other boxes have finished."""
                for each in parts:
                    if each.wait_ended is not None:
                        await each.wait_ended()
                await streams.wait_ended()
                await seat.wait_quiet()

            server = ApplianceServer(http, listening, gateway, pool.poller, pings, traffic.lifetime, quiet)
            yield OpenAppliance(server=server, owners=owners, traffic=traffic, kernel=kernel, parts=parts)


def activity_log(config: Config | None) -> tuple[Path | None, int]:
    """The place of the activity log, and its number of rows if that is memory."""
    if config is None:
        return None, DEFAULT_KEEP
    return Path(config.store.path) if config.store is not None else None, config.metrics_max_in_memory


def _placing(ask: Ask, peers: Peers, targets: Targets) -> Placing:
    from appliance.http.way.at_members import AskMembers  # only a program in a pool needs it

    return AskMembers(ask, peers, targets)


def _sockets(parts: Iterable[ServerParts], kernel: Kernel, pipeline: Pipeline) -> Sockets:
    from appliance.http.sockets.link import PeerLink  # few need them, and they bring a lot
    from appliance.http.sockets.sockets import WebSockets
    from appliance.http.sockets.streams import StreamSocket

    owners, edge = kernel.owners, kernel.edge
    own = (PeerLink(owners, edge.traffic.lifetime), StreamSocket(owners.streams, edge))
    return WebSockets(edge, (*own, *(make(kernel, pipeline) for each in parts for make in each.sockets)))


def _folders(
    settings: AppSettings,
    places: AppliancePaths,
    config: Config,
    contexts: KeptContexts | None,
    parts: Iterable[ServerParts],
) -> dict[str, Path]:
    """Return the folders and files that the program keeps, by their kind."""
    found = {
        "models": settings.sources.models_dir,
        "cache": places.downloading.cache,
        "engines": places.remembered.path.parent,
        "programs": programs_folder(),
        "activity": activity_log(settings.config)[0],
        "streams": expanded(config.streams.path) if config.streams.path else None,
        "contexts": contexts.folder if contexts is not None else None,
        "plugins": places.plugin_data,
        "log": Path(settings.log_file) if settings.log_file else None,
        **{kind: path for each in parts for kind, path in each.folders.items()},
    }
    return {kind: path.absolute() for kind, path in found.items() if path is not None}


def _speed(engines: Engines) -> float:
    """Nominal requests a second of the engine that an unknown model gets; 0 where that was not measured."""
    used = best(engines.ranked())
    return 1 / used.seconds if used is not None and used.seconds else 0.0


def _sampling(config: Config) -> float | None:
    """Seconds between samples of the machine, None for none at all."""
    performance = config.performance
    return None if performance.disabled else parse_duration(performance.every)


def _see_gpus(fleet: Fleet, sample: Sample) -> None:
    fleet.see_gpus(gpu_memory(sample.gpus))


def _configuration(
    settings: AppSettings, fleet: Fleet, catalog: Catalog, peers: Peers, adopt: Follower
) -> ConfigInForce | None:
    """The owner of the configuration in force, which all the others follow from now on; None where there is none."""
    if settings.files is None or settings.config is None:
        return None
    fleet.adopt(settings.config, catalog.snapshot.models)
    adopt(settings.config)

    def check_door(config: Config) -> Sequence[str]:
        """Refuses a configuration without the keys that keep other machines out, or that leads out of --offline."""
        if not settings.allow_unauthenticated:
            refuse_open_door(settings.http, config.api_keys)
        refuse_open_admin(settings.http, config.api_keys)
        if settings.offline:
            refuse_outside(config, settings.tools)
        return ()

    def adopt_peers(config: Config) -> Sequence[str]:
        peers.adopt(config)
        return ()

    def adopt_models(config: Config) -> Sequence[str]:
        catalog.adopt(config)
        return fleet.adopt(config, catalog.snapshot.models)

    followers = (check_door, adopt_peers, adopt_models, adopt)
    return ConfigInForce(settings.files, settings.config, settings.ports, followers, fleet.tell)


async def _look_for_plugins(
    plugins: Plugins, settings: AppSettings, configuration: ConfigInForce | None
) -> Sequence[Problem]:
    """With every reload, by what the configuration says by then."""
    plugins.choice = choice_of(configuration.current if configuration is not None else None, settings.plugins)
    await plugins.look()
    return plugins.unknown
