"""The sign-in of the feature.

Its owner opens behind the fleet, with the kernel's box of tools. The MCP server asks for a run by `core.turns.tasks`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.cli.verb import Verb
from appliance.feature import Feature, Ground, ServerParts

if TYPE_CHECKING:
    import click

    from appliance.core.config.types import Config
    from appliance.core.turns.tasks import TaskEnd, Tell
    from appliance.features.runs.store import RunStore
    from appliance.http.control.routes import Routes
    from appliance.http.kernel import Kernel
    from appliance.traffic.targets import Targets

WORDS = "Run agent tasks on the running server, and list, follow, answer and cancel them."


@asynccontextmanager
async def _open(ground: Ground) -> AsyncGenerator[ServerParts]:
    """Runs are stored in the file of the activity log, where the configuration names one."""
    from appliance.features.runs.owner import open_agents

    kept: AbstractAsyncContextManager[RunStore | None] = nullcontext()
    if ground.settings.config is not None and (log := ground.settings.config.store) is not None:
        from appliance.features.runs.store import open_run_store  # with SQLite

        kept = open_run_store(Path(log.path))
    runs, ping_after = ground.config.runs, ground.settings.http.ping_after
    async with (
        kept as store,
        open_agents(runs, ground.inward, ground.tools, ground.fleet, store, ping_after=ping_after) as agents,
    ):

        def routes(kernel: Kernel) -> Routes:
            from appliance.features.runs.routes import run_routes

            return run_routes(kernel, agents)

        def adopt(config: Config) -> Sequence[str]:
            agents.adopt(config.runs)
            return ()

        async def run_task(targets: Targets, body: bytes, tell: Tell | None) -> TaskEnd:
            from appliance.features.runs import tasks

            return await tasks.run_task(agents, targets, body, tell)

        yield ServerParts(routes=routes, adopt=adopt, wait_ended=agents.wait_ended, run_task=run_task)


def _verb() -> click.Command:
    from appliance.features.runs.verb import agent

    return agent


RUNS = Feature(
    name="runs",
    verbs=(Verb("agent", "server", WORDS, _verb, page="agents.md#in-the-terminal"),),
    open=_open,
)
