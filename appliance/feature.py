"""A feature: the one shape that all of them fill in.

The kernel serves models: it owns processes, connections and the way of a request. Everything else is a feature, a
folder below `appliance.features` with its tests in ``tests/features``. A feature imports the kernel and itself, and the
kernel imports no feature: it is given the list of them (`appliance.features.FEATURES`), and takes each part at the seam
where it is used. A feature can be deleted: without its folder and its lines in the list the program does all the rest.

Each room of the kernel says at its seam what may sign in there: `Verb` on the command line, `Routes` on Quart or an
`EdgeRoute` among the program's own routes, a `SocketRoute` among websockets. This shape only collects the parts, and
each part is a function that imports what it makes, so that a long list costs the start nothing: listing them imports
their ``feature.py`` alone.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from appliance.cli.verb import Verb, VerbGround
from appliance.cli.verbs import KERNEL_VERBS
from appliance.core.tools.box import NoTools, Toolbox

if TYPE_CHECKING:
    from pathlib import Path

    from appliance.catalog.catalog import Catalog
    from appliance.catalog.supply import Supply, SupplyGround
    from appliance.core.answers.going_on import Continues
    from appliance.core.config.additions import FeatureKeys
    from appliance.core.config.nodes import Problem
    from appliance.core.config.types import Config
    from appliance.core.engine import EngineInside
    from appliance.core.examination import Examiner
    from appliance.core.machine_look import MachineLook
    from appliance.core.records.history import KeptTimeline
    from appliance.core.runs.inward import Asker
    from appliance.core.turns.documents import ReadText
    from appliance.core.turns.tasks import TaskEnd, Tell
    from appliance.fleet.chooser import Chooser, EngineChoice, EngineSource
    from appliance.fleet.estimate import Estimate
    from appliance.fleet.hold import SlotHold
    from appliance.fleet.owner import Fleet
    from appliance.http.control.routes import Routes
    from appliance.http.kernel import EdgeRoute, FilesInPlace, Get, Kernel
    from appliance.http.route_facts import DescribedRoute
    from appliance.http.sockets.sockets import SocketRoute
    from appliance.http.way.fast_path import FastHold
    from appliance.http.way.hooks import EngineTranslate, Placing, Repair, Translate, Turn
    from appliance.http.way.pipeline import Pipeline
    from appliance.platform.gpus import Gpus
    from appliance.replay.generation import Audience
    from appliance.settings import AppSettings
    from appliance.traffic.metrics import Metrics
    from appliance.traffic.other_servers import OtherServers
    from appliance.traffic.recorder import Recorder
    from appliance.traffic.targets import Targets


class ServerParts(Struct, frozen=True, kw_only=True):
    """The parts of a feature that a server uses.

    ``routes`` makes the blueprint of its own routes, once for a server, when the first route on Quart is asked for.
    ``edges`` make routes that are answered without Quart, at the start: they import what is large when they are asked.
    ``gets`` make the same by their path, for GET and HEAD alone, with the first request for it; a slash behind the path
    changes nothing. ``described`` are the routes of ``edges``, for documents and OpenAPI.
    ``files`` stand in the place of the page; UsageError for a folder that cannot be served. ``sockets`` make routes of
    websockets, when the first websocket comes. ``folders`` are what it keeps on the disk, by kind. ``audience`` is
    notified of every generation that outlives its request.

    ``translates``, ``turns``, ``placings`` and ``engine_translates`` are hooks of the way of a request
    (`appliance.http.way.hooks`), which are asked in the order of the list of features. ``hold`` is the one for requests
    that outlive their clients; the first feature with one has it. ``door`` makes routes that other boxes of a pool may
    ask, with the pool's key. ``other_servers`` have models too.

    ``adopt`` follows each new configuration, and returns what it could not follow; or raises UsageError, and changes
    nothing. ``wait_ended`` returns when the work that clients have begun and left alone is over: the end of the server
    waits for that, within its grace time. ``reload`` looks again at what is beside the configuration, with every
    reload, and returns what is odd there. ``examiners`` make its part of the doctor's examination: those of the feature
    itself for a command and for a server, where an owner's examiner of the same `part` takes the place of another.
    ``removed`` is called with each model whose files were removed.

    ``tools`` are those that models may use, from `Feature.open_first`. ``run_task`` runs an agent's task for a part of
    the program that waits for it (`appliance.core.turns.tasks`). ``texts`` reads PDF and Word documents. ``repairs``
    changes bodies that engines refuse, ``continues`` reads streams that another engine may have to go on with; the
    first feature with one has it.
    """

    routes: Callable[[Kernel], Routes] | None = None
    edges: tuple[Callable[[Kernel], EdgeRoute], ...] = ()
    gets: Mapping[str, Callable[[Kernel], Get]] = {}
    described: Callable[[], Sequence[DescribedRoute]] | None = None
    files: Callable[[Kernel], FilesInPlace | None] | None = None
    sockets: tuple[Callable[[Kernel, Pipeline], SocketRoute], ...] = ()
    folders: Mapping[str, Path] = {}
    audience: Audience | None = None
    translates: tuple[Callable[[Kernel], Translate], ...] = ()
    turns: tuple[Callable[[Kernel], Turn], ...] = ()
    placings: tuple[Callable[[Kernel], Placing], ...] = ()
    engine_translates: tuple[Callable[[], EngineTranslate], ...] = ()
    hold: Callable[[Kernel], FastHold] | None = None
    repairs: Repair | None = None
    continues: Continues | None = None
    door: tuple[Callable[[Kernel], EdgeRoute], ...] = ()
    adopt: Callable[[Config], Sequence[str]] | None = None
    wait_ended: Callable[[], Awaitable[None]] | None = None
    reload: Callable[[Config | None], Awaitable[Sequence[Problem]]] | None = None
    other_servers: OtherServers | None = None
    examiners: tuple[Callable[[], Examiner], ...] = ()
    removed: Callable[[str], Awaitable[None]] | None = None
    tools: Toolbox | None = None
    run_task: Callable[[Targets, bytes, Tell | None], Awaitable[TaskEnd]] | None = None
    texts: ReadText | None = None


class Feature(ServerParts, frozen=True, kw_only=True):
    """The parts of one feature; it has those that are given.

    ``name`` is that of its folder. ``verbs`` are its commands, ``keys`` imports those of the configuration that are
    its own: `Config.keys_of` returns their values. ``open`` opens what it owns, for the length of a server:
    behind the fleet, in the order of the list. It yields the parts that need an owner; those of the feature itself need
    none. Nothing outside its folder knows the type of its owner. ``open_last`` is for an owner that needs parts of
    others: it comes behind every ``open``, with all parts that are there then. ``slots`` opens before the fleet what
    gives requests their slots, and yields it with the parts that need it; one feature at most has that. ``check`` looks
    at the configuration before a server opens anything, and raises UsageError. ``beside`` runs beside a server that
    serves, and ends with it. ``open_first`` opens what others use, before the fleet: a setting that is wrong ends the
    start there, with UsageError. ``timeline`` opens what keeps the timeline, in a file or the newest
    entries; ``supply`` opens what brings models that are not here; one feature at most has each.
    ``engines`` imports the engines of this machine, ``engine`` is the one inside the program, ``estimate`` knows what
    models take of memory; the first feature with one has it.
    """

    name: str
    verbs: tuple[Verb, ...] = ()
    keys: Callable[[], type[FeatureKeys]] | None = None
    open_first: Callable[[AppSettings], AbstractAsyncContextManager[ServerParts]] | None = None
    timeline: Callable[[Path | None, int], AbstractAsyncContextManager[KeptTimeline]] | None = None
    supply: Callable[[SupplyGround], AbstractAsyncContextManager[tuple[Supply, ServerParts]]] | None = None
    open: Callable[[Ground], AbstractAsyncContextManager[ServerParts]] | None = None
    open_last: Callable[[Ground, Sequence[ServerParts]], AbstractAsyncContextManager[ServerParts]] | None = None
    check: Callable[[Config], None] | None = None
    engine: EngineInside | None = None
    slots: Callable[[Footing], AbstractAsyncContextManager[tuple[SlotHold, ServerParts]]] | None = None
    beside: Callable[[AppSettings], Awaitable[None]] | None = None
    engines: Callable[[], EngineSource] | None = None
    estimate: Callable[[], Estimate] | None = None


class Footing(Struct, frozen=True, kw_only=True):
    """The facts that there are before the fleet. ``chooser`` says which engine a model is started on."""

    settings: AppSettings
    config: Config
    data: Path
    chooser: Chooser


class Ground(Struct, frozen=True, kw_only=True):
    """The facts and the owners of the kernel with which a feature opens its own.

    ``config`` is that of the start, or the defaults without a file; `adopt` has later ones. ``data`` is the folder in
    which features keep files, ``inward`` the program as its own client, from the moment it serves. ``learns``: what is
    not known of engines is found out meanwhile; ``samples``: the machine is sampled, if the configuration does not say
    otherwise. ``gpus`` are asked by their drivers, ``look`` looks at the machine once. A feature follows what happens:
    requests that have ended (``recorder``), decisions (``history``), waits for models (``fleet``). ``metrics`` has
    counters for what it counts, ``tools`` are those that models may use. ``assembled`` returns as soon as the program
    is put together.
    """

    settings: AppSettings
    config: Config
    data: Path
    engines: EngineChoice
    learns: bool
    samples: bool
    gpus: Gpus
    look: Callable[[], Awaitable[MachineLook]]
    fleet: Fleet
    catalog: Catalog
    recorder: Recorder
    metrics: Metrics
    history: KeptTimeline
    inward: Asker
    supply: Supply
    tools: Toolbox
    assembled: Callable[[], Awaitable[Assembled]]


class Assembled(Struct, frozen=True, kw_only=True):
    """The program, put together, with the hold of requests and the routes that other boxes may ask."""

    kernel: Kernel
    hold: FastHold | None
    door: Callable[[], Sequence[EdgeRoute]]


def estimate_of(features: Iterable[Feature]) -> Estimate:
    """Return what knows the memory that models take. Without a feature for it, the size of a file says it all."""
    found = next((each.estimate for each in features if each.estimate is not None), None)
    if found is None:
        from appliance.fleet.estimate import PlainEstimate

        return PlainEstimate()
    return found()


@asynccontextmanager
async def open_supply(
    features: Iterable[Feature], ground: SupplyGround
) -> AsyncGenerator[tuple[Supply, Sequence[ServerParts]]]:
    """Open what brings models that are not here. Without a feature that does, nothing is downloaded or removed."""
    held = next((each.supply for each in features if each.supply is not None), None)
    if held is None:
        from appliance.catalog.supply import NoSupply

        yield NoSupply(), ()
        return
    async with held(ground) as (supply, parts):
        yield supply, (parts,)


@asynccontextmanager
async def open_timeline(features: Iterable[Feature], path: Path | None, keep: int) -> AsyncGenerator[KeptTimeline]:
    """Open what keeps the timeline in this file, or without one ``keep`` entries; or nothing, without a feature for it.

    Raises UsageError for a file that cannot be used.
    """
    held = next((each.timeline for each in features if each.timeline is not None), None)
    if held is None:
        from appliance.core.records.history import NoTimeline

        yield NoTimeline()
        return
    async with held(path, keep) as timeline:
        yield timeline


@asynccontextmanager
async def open_slots(
    features: Iterable[Feature], footing: Footing
) -> AsyncGenerator[tuple[SlotHold, Sequence[ServerParts]]]:
    """Open what gives requests their slots. Without a feature that has it, processes choose by themselves."""
    held = next((each.slots for each in features if each.slots is not None), None)
    if held is None:
        from appliance.fleet.hold import SlotHold

        yield SlotHold(), ()
        return
    async with held(footing) as (hold, parts):
        yield hold, (parts,)


@asynccontextmanager
async def open_first(features: Iterable[Feature], settings: AppSettings) -> AsyncGenerator[dict[str, ServerParts]]:
    """Open what others use for the length of the block. Yield it by the feature's name. Raises UsageError."""
    async with AsyncExitStack() as stack:
        opening = {each.name: each.open_first(settings) for each in features if each.open_first is not None}
        yield {name: await stack.enter_async_context(each) for name, each in opening.items()}


def engines_of(features: Iterable[Feature]) -> EngineSource:
    """Return the engines of this machine. Without a feature that knows them there is the one that somebody named."""
    from appliance.fleet.chooser import NamedEngine

    return next((each.engines for each in features if each.engines is not None), NamedEngine)()


def tools_of(parts: Iterable[ServerParts]) -> Toolbox:
    """Return the tools that models may use."""
    return next((each.tools for each in parts if each.tools is not None), NoTools())


@asynccontextmanager
async def open_parts(
    features: Iterable[Feature], ground: Ground, first: Mapping[str, ServerParts]
) -> AsyncGenerator[list[ServerParts]]:
    """Open the owners of these features for the length of the block. ``first`` are the parts that are open already.

    Yield the parts of all features in the order of the list, so that this is the order in which hooks are asked; behind
    them come those that need parts of others.
    """
    async with AsyncExitStack() as stack:
        parts: list[ServerParts] = []
        for each in features:
            parts += [each, *([first[each.name]] if each.name in first else [])]
            if each.open is not None:
                parts.append(await stack.enter_async_context(each.open(ground)))
        last = [each.open_last for each in features if each.open_last is not None]
        yield [*parts, *[await stack.enter_async_context(open_last(ground, parts)) for open_last in last]]


def verb_ground(features: Sequence[Feature]) -> VerbGround:
    """Return the verbs of the kernel and of these features, and what they ask for."""
    return VerbGround(
        verbs=(*KERNEL_VERBS, *(verb for feature in features for verb in feature.verbs)),
        engines=partial(engines_of, features),
        estimate=partial(estimate_of, features),
        examiners=partial(examiners_of, features),
        config_type=partial(config_type, features),
    )


def config_type(features: Iterable[Feature]) -> type[Config]:
    """Return the type of a configuration that has the keys of these features."""
    from appliance.core.config.types import config_with

    return config_with(tuple(each.keys() for each in features if each.keys is not None))


def examiners_of(parts: Iterable[ServerParts]) -> Sequence[Examiner]:
    """Return the examiners of these parts: of a server's, or of the features alone for a command.

    Of two for the same `part` the later one counts, so the parts of an owner come behind its feature.
    """
    made = [make() for each in parts for make in each.examiners]
    return list({each.part: each for each in made}.values())
