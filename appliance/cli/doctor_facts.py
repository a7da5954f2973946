"""The facts that the doctor examines: machine, engines, models, configuration, and what a running server answers."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import msgspec
import psutil
import trio
from msgspec import Struct, structs

from appliance import __version__
from appliance.catalog.catalog import Catalog
from appliance.catalog.configuration import Files, config_paths
from appliance.catalog.sources import STARTER, ModelFolders, default_models_dir
from appliance.cli.engines.sources import own_shelf
from appliance.cli.options import ModelOptions
from appliance.cli.remote import (
    ModelList,
    NotRunning,
    RequestRefused,
    RunningServer,
    ServerFailed,
    ServerModel,
    ask,
    ask_raw,
)
from appliance.core.config.types import Config
from appliance.core.doctor.facts import Checkup, ConfigFact, DoctorFacts, Installed, ModelFact, ServedModel, ServerFact
from appliance.core.engines.builds import BuildNeeds
from appliance.core.engines.machine import MachineLook
from appliance.core.fit.estimate import OFFLOADED, RAM
from appliance.core.fit.plan import FitPlan
from appliance.core.lenient_json import UNREADABLE
from appliance.core.models.model import Model
from appliance.core.settings import FleetSettings, is_loopback
from appliance.engines.found import ENGINE_VARIABLE, Engine, EngineFolders, find_engine, list_engines, read_build
from appliance.engines.installing import offers_here
from appliance.engines.owner import open_engines
from appliance.engines.table import Table
from appliance.errors import ApplianceError
from appliance.fleet.budgets import plan_of
from appliance.platform.hardware import checkup, port_owner

PATIENCE = 10.0
"""Seconds for each answer; short, because a person waits for the page."""
ASKED_MODELS = 16
"""Number of loaded models whose log is read."""
T = TypeVar("T")


class VersionAnswer(Struct, frozen=True):
    """``GET /api/version``, where ``version`` is Ollama's; answers of other programs lack this member."""

    llama_appliance: str


async def ask_server(server: RunningServer) -> ServerFact:
    """The server at the address, and the state of its models."""
    try:
        raw = await ask_raw(server, "GET", "/api/version", patience=PATIENCE)
        version = msgspec.json.decode(raw, type=VersionAnswer).llama_appliance
        entries = (await ask(server, "GET", "/models", ModelList)).data
    except NotRunning as cause:
        slow = "did not answer" in cause.why
        return ServerFact(url=server.url, answer="failed" if slow else "absent", why=cause.why)
    except RequestRefused as cause:
        wants_key = "answered 401" in str(cause)
        return ServerFact(url=server.url, answer="refused" if wants_key else "other", why=str(cause))
    except ServerFailed as cause:
        return ServerFact(url=server.url, answer="failed", why=str(cause))
    except UNREADABLE:
        return ServerFact(url=server.url, answer="other", why="another program listens there")
    table = await _table(server)
    seats = dict(table.running) if table is not None else {}
    loaded = [entry for entry in entries if entry.status.value in ("loaded", "sleeping")]
    printed = {entry.id: OFFLOADED.findall(await log_of(server, entry.id)) for entry in loaded[:ASKED_MODELS]}
    layers = {model: (int(found[-1][0]), int(found[-1][1])) for model, found in printed.items() if found}
    return ServerFact(
        url=server.url,
        answer="answers",
        version=version,
        engine=(table.used or "") if table is not None else "",
        running=tuple(_running(entry, seats, layers) for entry in entries),
    )


def _running(entry: ServerModel, seats: dict[str, str], layers: dict[str, tuple[int, int]]) -> ServedModel:
    status = entry.status
    return ServedModel(
        id=entry.id,
        state=status.value,
        error=(status.error or "it gave no reason") if status.failed else "",
        command=status.args,
        seat=seats.get(entry.id, ""),
        layers=layers.get(entry.id),
    )


async def _table(server: RunningServer) -> Table | None:
    """Return None if somebody named the server's engine."""
    try:
        return await ask(server, "GET", "/api/engines", Table)
    except ApplianceError:
        return None


async def log_of(server: RunningServer, source: str) -> str:
    """Return the stored lines of a log: a model's by its id, the program's own as ``proxy``; empty if unavailable."""
    path = f"/logs/stream/{quote(source, safe='')}?no-follow"
    try:
        return (await ask_raw(server, "GET", path, patience=PATIENCE)).decode("utf-8", "replace")
    except ApplianceError:
        return ""


class DoctorOptions(Struct, frozen=True, kw_only=True):
    """The options of the command line."""

    server: RunningServer
    config: Path | None = None
    models_dir: str | None = None
    model: str = ""
    """The model to rank engines for; empty: a model about which nothing is known."""


def _named_fault() -> str:
    """Why the engine that the environment names cannot be used; empty if it can, or if none is named."""
    if not os.environ.get(ENGINE_VARIABLE):
        return ""
    try:
        find_engine(None, EngineFolders.of_this_machine())
    except (ApplianceError, OSError) as cause:
        return str(cause)
    return ""


async def examine(wish: DoctorOptions) -> DoctorFacts:
    """Gather all facts. A part that cannot be examined is named in ``trouble``, and the rest is reported."""
    config = await trio.to_thread.run_sync(_config, wish)
    facts = DoctorFacts(
        version=__version__,
        now=time.time(),
        config=None if config is None else config[0],
        named_engine=os.environ.get(ENGINE_VARIABLE, ""),
        named_fault=await trio.to_thread.run_sync(_named_fault),
    )
    trouble: dict[str, str] = {}
    sources = ModelOptions(models_dir=wish.models_dir).beside(config[1] if config is not None else None)
    server = await _tried("the server", trouble, partial(ask_server, wish.server))
    port = None
    if server is not None and server.answer != "answers" and is_loopback(wish.server.address.host):
        port = await trio.to_thread.run_sync(port_owner, wish.server.address.port)
    facts = structs.replace(facts, models_dir=_folder(sources), server=server, port=port)
    facts = await _tried("the engines", trouble, partial(_with_engines, facts, wish)) or facts
    said = config[1] if config is not None else None
    models = await _tried("the models", trouble, partial(_models, sources, said, _room(facts.look)))
    checked = await _tried("the system", trouble, partial(_checkup, sources))
    return structs.replace(facts, models=models or (), checkup=checked or facts.checkup, trouble=trouble)


async def _tried(part: str, trouble: dict[str, str], work: Callable[[], Awaitable[T]]) -> T | None:
    """Do one part of the examination, without letting its failure hide the others."""
    try:
        return await work()
    except (ApplianceError, OSError, psutil.Error, ValueError) as error:
        trouble[part] = " ".join(str(error).split()) or type(error).__name__
        return None


def _config(wish: DoctorOptions) -> tuple[ConfigFact, Config | None] | None:
    """Return the problems of the named configuration, and its content if it can be used."""
    if wish.config is None:
        return None
    files = tuple(str(path) for path in config_paths(wish.config, None))
    try:
        read = Files(config=wish.config).read()
    except ApplianceError as error:
        return ConfigFact(files=files, unreadable=str(error)), None
    return ConfigFact(files=files, problems=read.problems), read.config


async def _models(sources: ModelFolders, config: Config | None, room: dict[str, int]) -> tuple[ModelFact, ...]:
    snapshot = await trio.to_thread.run_sync(Catalog(sources, config).scan)
    return tuple(_model(model, plan_of(model, FleetSettings(), room)) for model in snapshot.models)


def _room(seen: MachineLook | None) -> dict[str, int]:
    """Return the machine's total memory: models that use some of it now could make way."""
    gpus = [gpu.total for gpu in (seen.gpus if seen is not None else ()) if gpu.total and not gpu.integrated]
    memory = seen.memory_total if seen is not None else psutil.virtual_memory().total
    return {**{f"gpu{index}": total for index, total in enumerate(gpus)}, RAM: memory}


def _model(model: Model, plan: FitPlan | None) -> ModelFact:
    info = model.info
    return ModelFact(
        id=model.id,
        source=model.source,
        path=model.path,
        size=model.size,
        error=model.error or "",
        fit=plan.word if plan is not None else "",
        why=plan.why if plan is not None else "",
        architecture=info.architecture if info is not None else "",
        quantisation=(info.quantisation if info is not None else "") or "",
        parameters=info.parameters if info is not None else 0,
        context_length=(info.context_length if info is not None else 0) or 0,
    )


def _folder(sources: ModelFolders) -> str:
    return str(sources.models_dir or default_models_dir())


async def _checkup(sources: ModelFolders) -> Checkup:
    folders = {"models": Path(_folder(sources)), "engines": own_shelf().root}
    if sources.cache is not None:
        folders["downloads"] = sources.cache
    return await trio.to_thread.run_sync(partial(checkup, folders))


async def _with_engines(facts: DoctorFacts, wish: DoctorOptions) -> DoctorFacts:
    """Return what is remembered of engines; without a server, examine the machine and the builds anew."""
    find = partial(list_engines, EngineFolders.of_this_machine())
    async with open_engines(find, own_shelf().state, starter=STARTER) as engines:
        served = facts.server is not None and facts.server.answer == "answers"
        if engines.look is None or not served:
            await engines.probe()
        damage = {engine.id: await engines.check(engine) for engine in engines.engines}
        return structs.replace(
            facts,
            look=engines.state.look,
            state=engines.state,
            ranked=tuple(engines.ranked(wish.model)),
            engines=tuple(_installed(engine, damage[engine.id]) for engine in engines.engines),
            offers=offers_here(
                engines.state.look, {one.backend for one in engines.engines if not (one.damage or damage[one.id])}
            ),
        )


def _installed(engine: Engine, damage: str) -> Installed:
    needs = BuildNeeds()
    if engine.folder is not None:
        try:
            needs = read_build(Path(engine.folder)).needs
        except (OSError, ValueError):
            pass  # then its damage says so
    return Installed(
        id=engine.id,
        backend=engine.backend,
        source=engine.source,
        digest=engine.digest,
        damage=damage or engine.damage,
        needs=needs,
    )
