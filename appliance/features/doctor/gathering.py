"""The doctor's facts, gathered from a program's parts: by a command from its own, by the server from those that run.

Threads do the work that blocks. A part that cannot be examined is named in ``trouble``, and the rest is reported.
"""

from __future__ import annotations

import io
import math
import os
import platform
import sys
import time
import zipfile
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import psutil
import trio
from msgspec import structs

from appliance import __version__
from appliance.catalog.catalog import Catalog
from appliance.catalog.configuration import ConfigInForce, Files, config_paths
from appliance.catalog.sources import ModelFolders, default_models_dir
from appliance.core.config.types import Config
from appliance.core.engine import Engine
from appliance.core.engines.builds import BuildNeeds
from appliance.core.memory import RAM, FitPlan
from appliance.core.models.model import Model
from appliance.core.records.history import Happening
from appliance.engines.found import ENGINE_VARIABLE, EngineFolders, find_engine, installed_folder, read_build
from appliance.engines.installing import offers_here
from appliance.engines.owner import Engines
from appliance.errors import ApplianceError
from appliance.features.doctor.core.bundle import ReportFile, Versions, report_files, report_of
from appliance.features.doctor.core.facts import ConfigFact, DoctorFacts, Installed, ModelFact
from appliance.features.doctor.core.findings import Finding
from appliance.features.doctor.system import checkup
from appliance.fleet.estimate import Estimate
from appliance.platform.machine import free_memory
from appliance.start import programs_folder
from appliance.store.engine_state import StateFile

T = TypeVar("T")


async def examine(
    known: DoctorFacts,
    engines: AbstractAsyncContextManager[Engines],
    catalog: Catalog,
    estimate: Estimate,
    *,
    model: str = "",
) -> DoctorFacts:
    """Add the facts about engines (which are opened for it), models and the system to those ``known``.

    ``model`` is the one to rank engines for; empty: one about which nothing is known.
    """
    trouble = dict(known.trouble)
    facts = await tried("the engines", trouble, partial(_with_engines, known, engines, model)) or known
    facts = await tried("the models", trouble, partial(with_models, facts, catalog, estimate)) or facts
    facts = await tried("the system", trouble, partial(_with_system, facts, catalog.sources)) or facts
    facts = await tried("versions of the program", trouble, partial(_with_versions, facts)) or facts
    return structs.replace(facts, trouble=trouble)


async def tried(part: str, trouble: dict[str, str], work: Callable[[], Awaitable[T]]) -> T | None:
    """Do one part of the examination, without letting its failure hide the others."""
    try:
        return await work()
    except (ApplianceError, OSError, psutil.Error, ValueError) as error:
        trouble[part] = " ".join(str(error).split()) or type(error).__name__
        return None


async def begun(config: ConfigFact | None) -> DoctorFacts:
    """Return the facts that need no owner: the version, the time, the engine that the environment names."""
    named, fault = os.environ.get(ENGINE_VARIABLE, ""), ""
    try:
        if named:
            await trio.to_thread.run_sync(find_engine, None, EngineFolders.of_this_machine())
    except (ApplianceError, OSError) as cause:
        fault = str(cause)
    return DoctorFacts(version=__version__, now=time.time(), config=config, named_engine=named, named_fault=fault)


def read_config(path: Path) -> tuple[ConfigFact, Config | None]:
    """Return the problems of a configuration that nobody follows, and its content if it can be used. Blocks."""
    files = tuple(str(each) for each in config_paths(path, None))
    try:
        read = Files(config=path).read()
    except ApplianceError as error:
        return ConfigFact(files=files, unreadable=str(error)), None
    return ConfigFact(files=files, problems=read.problems), read.config


async def config_in_force(configuration: ConfigInForce) -> ConfigFact:
    """Return the problems of the files of a configuration that the program follows, as they are now."""
    files = await trio.to_thread.run_sync(configuration.paths)
    try:
        return ConfigFact(files=files, problems=await configuration.check())
    except ApplianceError as error:
        return ConfigFact(files=files, unreadable=str(error))


async def with_models(facts: DoctorFacts, catalog: Catalog, estimate: Estimate) -> DoctorFacts:
    """Return the facts with these models, which are looked for anew. Raises OSError."""
    # The machine's total memory: models that use some of it now could make way.
    cards = enumerate(gpu.total for gpu in facts.gpus if gpu.total and not gpu.integrated)
    memory = facts.look.memory_total if facts.look is not None else psutil.virtual_memory().total
    room = {**{f"gpu{index}": total for index, total in cards}, RAM: memory}

    def look() -> DoctorFacts:
        catalog.refresh(0.0, math.inf)
        catalog.keep()
        snapshot = catalog.snapshot
        return structs.replace(
            facts,
            models=tuple(_model(model, estimate.plan(model, room)) for model in snapshot.models),
            models_dir=str(_folder(catalog.sources)),
            notes=snapshot.notes,
        )

    return await trio.to_thread.run_sync(look)


def bundled(
    facts: DoctorFacts,
    findings: Sequence[Finding],
    history: Iterable[Happening],
    logs: Iterable[tuple[str, str]],
    secrets: Collection[str],
) -> list[ReportFile]:
    """Return the files of a support bundle. ``logs`` are by their names in it, ``secrets`` are taken out of them."""
    versions = Versions(
        program=__version__,
        server=facts.server.version if facts.server is not None else "",
        python=platform.python_version(),
        platform=platform.platform(),
        frozen=bool(getattr(sys, "frozen", False)),
    )
    return report_files(report_of(facts, findings, versions, os.environ, history), logs, secrets)


def zipped(files: Iterable[ReportFile]) -> bytes:
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w", zipfile.ZIP_DEFLATED) as bundle:
        for file in files:
            bundle.writestr(file.name, file.data)
    return memory.getvalue()


async def _with_engines(facts: DoctorFacts, opened: AbstractAsyncContextManager[Engines], model: str) -> DoctorFacts:
    async with opened as engines:
        damage = {engine.id: await engines.check(engine) for engine in engines.engines}
        seen, free = engines.state.look, await trio.to_thread.run_sync(free_memory)
        return structs.replace(
            facts,
            look=structs.replace(seen, memory_available=free) if seen is not None else None,
            state=engines.state,
            ranked=tuple(engines.ranked(model)),
            engines=tuple(_installed(engine, damage[engine.id]) for engine in engines.engines),
            offers=offers_here(seen, {one.backend for one in engines.engines if not (one.damage or damage[one.id])}),
        )


def _installed(engine: Engine, damage: str) -> Installed:
    needs = BuildNeeds()
    with suppress(OSError, ValueError):  # else its damage says so
        needs = read_build(Path(engine.folder)).needs if engine.folder is not None else needs
    return Installed(
        id=engine.id,
        backend=engine.backend,
        source=engine.source,
        digest=engine.digest,
        damage=damage or engine.damage,
        needs=needs,
    )


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


def _folder(sources: ModelFolders) -> Path:
    return sources.models_dir or default_models_dir()


async def _with_system(facts: DoctorFacts, sources: ModelFolders) -> DoctorFacts:
    folders = {"models": _folder(sources), "engines": installed_folder()}
    if sources.cache is not None:
        folders["downloads"] = sources.cache
    return structs.replace(facts, checkup=await trio.to_thread.run_sync(checkup, folders))


async def _with_versions(facts: DoctorFacts) -> DoctorFacts:
    state = await trio.to_thread.run_sync(StateFile(programs_folder()).read)
    return structs.replace(facts, versions_back=state.withdrawn)
