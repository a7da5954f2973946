"""One program, put together: the nest of everything that it owns, in the order in which it stops.

Read `open_appliance` from the outside in: each line needs only what stands above it, and ends before it. A feature
that wants to know what happens follows the owner of that, for its own length. The tests open the very same nest.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import cache, partial
from pathlib import Path

from msgspec import Struct

from appliance.catalog.catalog import Catalog
from appliance.catalog.configuration import ConfigInForce, Follower, Reloads
from appliance.catalog.supply import DownloadSettings, SupplyGround
from appliance.core.config.nodes import Problem
from appliance.core.config.types import Config
from appliance.core.offline import refuse_outside
from appliance.core.settings import refuse_open_admin, refuse_open_door
from appliance.feature import (
    Assembled,
    Feature,
    Footing,
    Ground,
    ServerParts,
    engines_of,
    estimate_of,
    examiners_of,
    open_first,
    open_parts,
    open_slots,
    open_supply,
    open_timeline,
    tools_of,
)
from appliance.fleet.chooser import Chooser, FoundEngines
from appliance.fleet.logs import Echo
from appliance.fleet.owner import Fleet, open_fleet
from appliance.http.bytes.body import Bodies
from appliance.http.control.edge_routes import EdgeRoutes
from appliance.http.control.own_routes import OwnRoutes
from appliance.http.kernel import EdgeRoute, Kernel
from appliance.http.owners import Owners
from appliance.http.server import ApplianceServer, open_listening
from appliance.http.way.ask import Ask
from appliance.http.way.edge import Edge
from appliance.http.way.fast_path import FastPath
from appliance.http.way.gateway import Gateway, Sockets
from appliance.http.way.guard import Guard
from appliance.http.way.handover import Inward
from appliance.http.way.pipeline import Hooks, Pipeline
from appliance.http.way.progress import Pings
from appliance.settings import AppSettings
from appliance.start import programs_folder
from appliance.store.activity import DEFAULT_KEEP, open_activity
from appliance.traffic.metrics import Metrics
from appliance.traffic.other_servers import NoOtherServers
from appliance.traffic.recorder import open_recorder
from appliance.traffic.traffic import Traffic
from appliance.trio_parts import Awaited
from appliance.upstream.pool import open_pool


class AppliancePaths(Struct, frozen=True, kw_only=True):
    """The folders and files of one program. Only these differ in tests."""

    catalog: Catalog
    engines: FoundEngines
    downloading: DownloadSettings
    defaults: Config = Config()
    """The settings that apply without a configuration."""
    chooser: Chooser | None = None
    """Says which engine a model is started on, instead of what is known of engines."""
    data: Path
    """The program's data folder, in which features keep what is theirs."""
    learns: bool = True
    """Facts that are not known of the engines are found out in the background."""
    samples: bool = True
    """The machine is sampled, if the configuration does not say otherwise."""
    echo: Echo | None = None
    """Called with every line that model processes print."""


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
    applies, source = config or places.defaults, engines_of(features)
    log, inward, metrics, assembled = activity_log(config), Inward(), Metrics(), Awaited[Assembled]()
    async with (
        open_listening(http) as listening,
        open_activity(*log) as activity,
        open_timeline(features, *log) as history,
        open_first(features, settings) as first,
        open_recorder(activity) as recorder,
        open_pool() as pool,
        open_supply(
            features,
            SupplyGround(
                catalog=catalog,
                settings=places.downloading,
                unload=lambda name: fleet.unload(name),
                removed=lambda name: forget_model(name),
            ),
        ) as (supply, supplied),
        places.engines.open(history.add) as engines,
        source.gpus() as gpus,
        open_slots(
            features,
            Footing(settings=settings, config=applies, data=places.data, chooser=places.chooser or engines),
        ) as (slots, held),
        open_fleet(
            settings.fleet,
            places.chooser or engines,
            supply=supply,
            echo=places.echo,
            gpus=gpus,
            tell=history.add,
            hold=slots,
            estimate=estimate_of(features),
        ) as fleet,
        open_parts(
            features,
            Ground(
                settings=settings,
                config=applies,
                data=places.data,
                engines=engines,
                learns=places.learns,
                samples=places.samples,
                look=source.look,
                gpus=gpus,
                fleet=fleet,
                catalog=catalog,
                recorder=recorder,
                metrics=metrics,
                history=history,
                inward=inward,
                supply=supply,
                tools=tools_of(first.values()),
                assembled=assembled.get,
            ),
            first,
        ) as opened,
    ):
        parts = (*supplied, *held, *opened)
        others = next((each.other_servers for each in parts if each.other_servers is not None), NoOtherServers())
        traffic = Traffic(recorder, metrics, catalog, fleet, others, supply, lambda: catalog.snapshot.config)
        edge = Edge(http, listening.bound, Guard(http, listening.bound), traffic, Bodies(http))
        pings = Pings(http.ping_after)
        ask = Ask(
            edge,
            fleet,
            pool,
            pings,
            [make() for each in parts for make in each.engine_translates],
            next((each.repairs for each in parts if each.repairs is not None), None),
            next((each.continues for each in parts if each.continues is not None), None),
        )

        async def forget_model(name: str) -> None:
            """Notify features that the files of a model are gone."""
            for each in parts:
                if each.removed is not None:
                    await each.removed(name)

        def adopt_parts(config: Config) -> Sequence[str]:
            return [why for each in parts if each.adopt is not None for why in each.adopt(config)]

        def adopt(config: Config) -> Sequence[str]:
            traffic.lifetime.requests.revoke(edge.guard.adopt((*http.api_keys, *config.api_keys)))
            return traffic.adopt(config)

        configuration = _configuration(settings, fleet, catalog, adopt_parts, adopt)
        owners = Owners(
            engines=engines,
            fleet=fleet,
            catalog=catalog,
            peers=others,
            supply=supply,
            configuration=configuration,
            tools=tools_of(first.values()),
            reloads=Reloads(
                configuration,
                catalog,
                lambda found: fleet.adopt(found.config, found.models),
                partial(_look_again, parts, configuration),
                history.add,
            ),
            history=history,
            folders=_folders(settings, places, applies, parts),
        )
        fleet.see_machine()
        run_task = next((each.run_task for each in parts if each.run_task is not None), None)
        kernel = Kernel(
            owners=owners,
            edge=edge,
            ask=ask,
            inward=inward,
            hooks=lambda: hooks,
            gets=lambda: gets,
            described=lambda: [route for each in parts if each.described is not None for route in each.described()],
            data=places.data,
            files=settings.files,
            examiners=lambda: examiners_of((*opened, *supplied, *held)),  # `opened` has the features themselves
            defaults=places.defaults,
            run_task=partial(run_task, traffic.targets) if run_task is not None else None,
            texts=next((each.texts for each in parts if each.texts is not None), None),
        )
        gets = {path: cache(partial(make, kernel)) for each in parts for path, make in each.gets.items()}
        hold = next((each.hold(kernel) for each in parts if each.hold is not None), None)
        hooks = Hooks(
            translates=[make(kernel) for each in parts for make in each.translates],
            turns=[make(kernel) for each in parts for make in each.turns],
            hold=hold,
            placings=[make(kernel) for each in parts for make in each.placings],
        )
        pipeline = Pipeline(edge, catalog, ask, hooks, inward)

        def gateway() -> Gateway:
            signed_in = [make(kernel) for each in parts for make in each.edges]
            edges = (*signed_in, EdgeRoutes(kernel))
            routes = [each.routes for each in parts if each.routes is not None]
            return Gateway(
                edge,
                pipeline,
                OwnRoutes(kernel, edges, routes, next((each.files(kernel) for each in parts if each.files), None)),
                partial(_sockets, parts, kernel, pipeline),
                partial(FastPath, edge, pipeline, ask, hold),
            )

        async def quiet() -> None:
            """Return when what features wait for has ended."""
            for each in parts:
                if each.wait_ended is not None:
                    await each.wait_ended()

        def door() -> Sequence[EdgeRoute]:
            return [make(kernel) for each in parts for make in each.door]

        assembled.give(Assembled(kernel=kernel, hold=hold, door=door))
        server = ApplianceServer(http, listening, gateway, pool.poller, pings, traffic.lifetime, quiet)
        yield OpenAppliance(server=server, owners=owners, traffic=traffic, kernel=kernel, parts=parts)


def activity_log(config: Config | None) -> tuple[Path | None, int]:
    """The place of the activity log, and its number of rows if that is memory."""
    if config is None:
        return None, DEFAULT_KEEP
    return Path(config.store.path) if config.store is not None else None, config.metrics_max_in_memory


def _sockets(parts: Iterable[ServerParts], kernel: Kernel, pipeline: Pipeline) -> Sockets:
    from appliance.http.sockets.sockets import WebSockets

    return WebSockets(kernel.edge, [make(kernel, pipeline) for each in parts for make in each.sockets])


def _folders(
    settings: AppSettings,
    places: AppliancePaths,
    config: Config,
    parts: Iterable[ServerParts],
) -> dict[str, Path]:
    """Return the folders and files that the program keeps, by their kind."""
    found = {
        "models": settings.sources.models_dir,
        "cache": places.downloading.cache,
        "programs": programs_folder(),
        "activity": activity_log(settings.config)[0],
        "log": Path(settings.log_file) if settings.log_file else None,
        **{kind: path for each in parts for kind, path in each.folders.items()},
    }
    return {kind: path.absolute() for kind, path in found.items() if path is not None}


def _configuration(
    settings: AppSettings, fleet: Fleet, catalog: Catalog, adopt_parts: Follower, adopt: Follower
) -> ConfigInForce | None:
    """The owner of the configuration in force, which all the others follow from now on; None where there is none."""
    if settings.files is None or settings.config is None:
        return None
    fleet.adopt(settings.config, catalog.snapshot.models)
    adopt_parts(settings.config)
    adopt(settings.config)

    def check_door(config: Config) -> Sequence[str]:
        """Refuses a configuration without the keys that keep other machines out, or that leads out of --offline."""
        if not settings.allow_unauthenticated:
            refuse_open_door(settings.http, config.api_keys)
        refuse_open_admin(settings.http, config.api_keys)
        if settings.offline:
            refuse_outside(config, settings.tools)
        return ()

    def adopt_models(config: Config) -> Sequence[str]:
        catalog.adopt(config)
        return fleet.adopt(config, catalog.snapshot.models)

    followers = (check_door, adopt_parts, adopt_models, adopt)
    return ConfigInForce(settings.files, settings.config, settings.ports, followers, fleet.tell)


async def _look_again(parts: Iterable[ServerParts], configuration: ConfigInForce | None) -> Sequence[Problem]:
    """With every reload, by what the configuration says by then."""
    current = configuration.current if configuration is not None else None
    return [odd for each in parts if each.reload is not None for odd in await each.reload(current)]
