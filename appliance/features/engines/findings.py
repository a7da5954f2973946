"""Engines in the doctor's examination. Threads do what blocks; no engine is started."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import trio
from msgspec import structs

from appliance.core.builds import BuildNeeds
from appliance.core.engine import Engine
from appliance.core.examination import Examiner, Known, OwnFacts
from appliance.engines.builds import read_build
from appliance.engines.named import ENGINE_VARIABLE
from appliance.errors import ApplianceError
from appliance.features.engines.core.builds import Installed
from appliance.features.engines.core.choice import best
from appliance.features.engines.core.findings import EnginesExamined
from appliance.features.engines.found import find_engine, list_engines
from appliance.features.engines.installing import offers_here
from appliance.features.engines.owner import Engines
from appliance.features.engines.source import FoundHere
from appliance.platform.home import engines_folder
from appliance.platform.machine import free_memory


def command_examiner() -> Examiner:
    """The examiner of a command, where no server tells of its engines."""

    @asynccontextmanager
    async def opened() -> AsyncGenerator[Engines]:
        async with FoundHere(list_engines, engines_folder()).open() as engines:
            await engines.probe()
            yield engines

    return Examiner(part="the engines", facts=EnginesExamined, look=partial(_look, opened), folders=_folders)


def running_examiner(engines: Engines) -> Examiner:
    """The examiner of a server. No driver is asked, but where nobody has looked at the machine yet."""

    @asynccontextmanager
    async def opened() -> AsyncGenerator[Engines]:
        if engines.look is None:
            await engines.probe()
        else:
            await engines.refresh()  # another program may have installed a build, or chosen one
        yield engines

    async def look(known: Known, model: str) -> tuple[Known, OwnFacts]:
        known, facts = await _look(opened, known, model)
        used = best(engines.ranked(""))
        if known.server is not None and used is not None:
            known = structs.replace(known, server=structs.replace(known.server, engine=used.seat.id))
        return known, facts

    return Examiner(part="the engines", facts=EnginesExamined, look=look, folders=_folders)


async def _look(
    opened: Callable[[], AbstractAsyncContextManager[Engines]], known: Known, model: str
) -> tuple[Known, EnginesExamined]:
    facts = EnginesExamined(named_engine=os.environ.get(ENGINE_VARIABLE, ""))
    if facts.named_engine:
        try:
            await trio.to_thread.run_sync(find_engine, None)
        except (ApplianceError, OSError) as cause:
            facts = structs.replace(facts, named_fault=str(cause))
    try:
        async with opened() as engines:
            damage = {engine.id: await engines.check(engine) for engine in engines.engines}
            seen, free = engines.state.look, await trio.to_thread.run_sync(free_memory)
            facts = structs.replace(
                facts,
                state=engines.state,
                ranked=tuple(engines.ranked(model)),
                engines=tuple(_installed(engine, damage[engine.id]) for engine in engines.engines),
                offers=offers_here(seen, [one for one in engines.engines if not damage[one.id]]),
            )
    except (ApplianceError, OSError, ValueError) as cause:
        return known.without("the engines", cause), facts
    look = structs.replace(seen, memory_available=free) if seen is not None else None
    return structs.replace(known, look=look), facts


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


def _folders() -> Mapping[str, Path]:
    return {"engines": engines_folder()}
