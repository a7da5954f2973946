"""The sign-in of the feature."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, nullcontext
from typing import TYPE_CHECKING

from appliance.cli.verb import Verb
from appliance.feature import Feature, Ground, ServerParts

if TYPE_CHECKING:
    import click

    from appliance.core.examination import Examiner
    from appliance.fleet.chooser import EngineSource
    from appliance.http.control.routes import Routes
    from appliance.http.kernel import Kernel


def _verb() -> click.Command:
    from appliance.features.engines.verbs.commands import engines

    return engines


def _rpc_worker() -> click.Command:
    from appliance.features.engines.rpc_server import rpc_worker

    return rpc_worker


def _examiner() -> Examiner:
    from appliance.features.engines.findings import command_examiner

    return command_examiner()


def _source() -> EngineSource:
    from appliance.features.engines.source import MachineEngines

    return MachineEngines()


@asynccontextmanager
async def _open(ground: Ground) -> AsyncGenerator[ServerParts]:
    from appliance.features.engines.background import EngineUpkeep
    from appliance.features.engines.owner import Engines

    engines, fleet = ground.engines, ground.fleet
    if not isinstance(engines, Engines):
        yield ServerParts()
        return

    def routes(kernel: Kernel) -> Routes:
        from appliance.features.engines.routes import engine_routes, seats_in_use

        return engine_routes(
            engines, lambda: seats_in_use(fleet.status()), fleet.see_machine, may_choose=kernel.settings.admin
        )

    def examiner() -> Examiner:
        from appliance.features.engines.findings import running_examiner

        return running_examiner(engines)

    background = EngineUpkeep(engines, lambda: fleet.busy, fleet.see_machine)
    async with background.open() if ground.learns else nullcontext():
        yield ServerParts(routes=routes, folders={"engines": engines.folder}, examiners=(examiner,))


_DOES = "Manage the llama.cpp builds of this machine."
_LENDS = "Lend this machine's devices to models on another machine."
ENGINES = Feature(
    name="engines",
    verbs=(
        Verb("engines", "this machine", _DOES, _verb, page="engines.md"),
        Verb("rpc-worker", "several machines", _LENDS, _rpc_worker, page="rpc.md"),
    ),
    engines=_source,
    open=_open,
    examiners=(_examiner,),
)
