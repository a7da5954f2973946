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
from functools import partial
from pathlib import Path

import psutil
import trio
from msgspec import structs

from appliance import __version__
from appliance.catalog.catalog import Catalog
from appliance.catalog.configuration import ConfigInForce, Files, config_paths
from appliance.catalog.sources import ModelFolders, default_models_dir
from appliance.core.config.types import Config
from appliance.core.examination import ConfigFact, Examiner, Known, ModelFact, OwnFacts
from appliance.core.findings import Finding
from appliance.core.memory import RAM, FitPlan
from appliance.core.models.model import Model
from appliance.core.records.history import Happening
from appliance.errors import ApplianceError
from appliance.features.doctor.core.bundle import ReportFile, Versions, report_files, report_of
from appliance.features.doctor.core.facts import Facts
from appliance.features.doctor.system import checkup
from appliance.fleet.estimate import Estimate

LACKS = (ApplianceError, OSError, psutil.Error, ValueError)
"""The errors of a part that cannot be examined."""


async def examine(
    known: Known, examiners: Iterable[Examiner], catalog: Catalog, estimate: Estimate, model: str = ""
) -> Facts:
    """Add the facts of features, of models and of the system to what is known.

    ``model`` is the one to rank engines for; empty: one about which nothing is known.
    """
    own: list[OwnFacts] = []
    for each in examiners:
        facts = each.facts()
        if each.look is not None:
            try:
                known, facts = await each.look(known, model)
            except LACKS as cause:
                known = known.without(each.part, cause)
        own.append(facts)
    known = await added("the models", known, partial(with_models, catalog=catalog, estimate=estimate))
    known = await added("the system", known, partial(_with_system, sources=catalog.sources, examiners=examiners))
    return Facts(known, tuple(own))


async def added(part: str, known: Known, look: Callable[[Known], Awaitable[Known]]) -> Known:
    """Do one part of the examination, without letting its failure hide the others."""
    try:
        return await look(known)
    except LACKS as cause:
        return known.without(part, cause)


def begun(config: ConfigFact | None) -> Known:
    """Return the facts that need no owner."""
    return Known(version=__version__, now=time.time(), config=config)


def read_config(files: Files) -> tuple[ConfigFact, Config | None]:
    """Return the problems of a configuration that nobody follows, and its content if it can be used. Blocks."""
    paths = tuple(map(str, config_paths(files.config, files.config_dir)))
    try:
        read = files.read()
    except ApplianceError as error:
        return ConfigFact(files=paths, unreadable=str(error)), None
    return ConfigFact(files=paths, problems=read.problems), read.config


async def config_in_force(configuration: ConfigInForce) -> ConfigFact:
    """Return the problems of the files of a configuration that the program follows, as they are now."""
    files = await trio.to_thread.run_sync(configuration.paths)
    try:
        return ConfigFact(files=files, problems=await configuration.check())
    except ApplianceError as error:
        return ConfigFact(files=files, unreadable=str(error))


async def with_models(known: Known, catalog: Catalog, estimate: Estimate) -> Known:
    """Return what is known with these models, which are looked for anew. Raises OSError."""
    # The machine's total memory: models that use some of it now could make way.
    cards = enumerate(gpu.total for gpu in known.gpus if gpu.total and not gpu.integrated)
    memory = known.look.memory_total if known.look is not None else psutil.virtual_memory().total
    room = {**{f"gpu{index}": total for index, total in cards}, RAM: memory}

    def look() -> Known:
        catalog.refresh(0.0, math.inf)
        catalog.keep()
        snapshot = catalog.snapshot
        return structs.replace(
            known,
            models=tuple(_model(model, estimate.plan(model, room)) for model in snapshot.models),
            models_dir=str(_folder(catalog.sources)),
            notes=snapshot.notes,
        )

    return await trio.to_thread.run_sync(look)


def bundled(
    facts: Facts,
    findings: Sequence[Finding],
    history: Iterable[Happening],
    logs: Iterable[tuple[str, str]],
    secrets: Collection[str],
) -> list[ReportFile]:
    """Return the files of a support bundle. ``logs`` are by their names in it, ``secrets`` are taken out of them."""
    versions = Versions(
        program=__version__,
        server=server.version if (server := facts.known.server) is not None else "",
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


async def _with_system(known: Known, sources: ModelFolders, examiners: Iterable[Examiner]) -> Known:
    def look() -> Known:
        folders = {"models": _folder(sources)}
        for each in examiners:
            folders |= each.folders()
        if sources.cache is not None:
            folders["downloads"] = sources.cache
        return structs.replace(known, checkup=checkup(folders))

    return await trio.to_thread.run_sync(look)
