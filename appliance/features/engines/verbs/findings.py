"""Engines in the examination of a command, where no server tells of them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial

from appliance.catalog.sources import STARTER
from appliance.core.examination import Examiner
from appliance.features.engines.findings import engines_examiner
from appliance.features.engines.found import EngineFolders, list_engines
from appliance.features.engines.owner import Engines, open_engines
from appliance.features.engines.verbs.sources import own_shelf


def command_examiner() -> Examiner:
    return engines_examiner(_own_engines)


@asynccontextmanager
async def _own_engines() -> AsyncGenerator[Engines]:
    """Return the engines of this home, after a look at the machine and the builds."""
    find = partial(list_engines, EngineFolders.of_this_machine())
    async with open_engines(find, own_shelf().state, starter=STARTER) as engines:
        await engines.probe()
        yield engines
