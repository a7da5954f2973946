"""Carries out the commands of a run's loop: turns of the model, tools, and waiting for the caller."""

from __future__ import annotations

from collections.abc import Callable

import trio

from appliance.agents.clocks import Clocks
from appliance.agents.run import Run
from appliance.agents.turn import take_turn
from appliance.agents.use import MAX_PARALLEL, use_tool
from appliance.core.runs.inward import Asker
from appliance.core.runs.messages import AskClient, Call, Generate, RunTools, TurnFailed
from appliance.errors import ApplianceError, ModelFailedToStart
from appliance.fleet.owner import Fleet
from appliance.tools.box import Toolbox

Trouble = Callable[[Clocks, str | None, object, str, bool], None]
"""A turn's clocks, the model that failed it, the token of its process, the reason, and whether to end the process."""


class Execution:
    """The tools for executing runs. ``admit`` and ``trouble`` are the owner's."""

    def __init__(
        self,
        asker: Asker,
        toolbox: Toolbox,
        fleet: Fleet,
        admit: Callable[[str | None], int | None],
        trouble: Trouble,
    ) -> None:
        self._asker = asker
        self._toolbox = toolbox
        self._fleet = fleet
        self._admit = admit
        self._trouble = trouble

    async def execute(self, run: Run, tool_timeout: float, caller_timeout: float) -> None:
        """Execute until the loop has nothing left to do."""
        run.start()
        while run.todo:
            match run.todo.popleft():
                case Generate(body=body):
                    await self._take_turn(run, body)
                case RunTools(calls=calls, parallel=parallel):
                    await self._use(run, calls, tool_timeout, parallel=parallel)
                case AskClient(calls=calls):
                    await _wait_for_caller(run, calls, caller_timeout)

    async def _take_turn(self, run: Run, body: bytes) -> None:
        clocks = run.clocks = Clocks(run.asked.limits, self._admit)
        error = await take_turn(self._asker, body, f"run {run.id}", clocks, run.hear, run.received)
        run.clocks = None
        if error is not None:
            self._failed(run, clocks, error)
        elif clocks.scope.cancelled_caught and not run.over:
            failure = clocks.overdue()
            run.hear(failure)
            self._trouble(clocks, clocks.model, clocks.pid, failure.detail, True)

    def _failed(self, run: Run, clocks: Clocks, error: ApplianceError) -> None:
        failure = clocks.failure(error, stopped=self._was_stopped(clocks))
        run.hear(failure)
        if not isinstance(failure, TurnFailed) or failure.reason not in ("server_died", "connect_failed"):
            return
        useless = failure.reason == "connect_failed"
        if clocks.model is None and isinstance(error, ModelFailedToStart):
            self._trouble(clocks, error.model, error, failure.detail, False)
        elif useless or self._is_gone(clocks):
            self._trouble(clocks, clocks.model, clocks.pid, failure.detail, useless)

    def _was_stopped(self, clocks: Clocks) -> bool:
        """True if somebody unloaded the model under the turn."""
        if clocks.model is None:
            return False
        status = self._fleet.known(clocks.model)
        return status is None or (status.error is None and (status.pid != clocks.pid or status.state == "stopping"))

    def _is_gone(self, clocks: Clocks) -> bool:
        status = None if clocks.model is None else self._fleet.known(clocks.model)
        return status is not None and status.pid != clocks.pid

    async def _use(self, run: Run, calls: tuple[Call, ...], timeout: float, *, parallel: bool) -> None:
        limits = {tool.name: timeout if tool.timeout is None else tool.timeout for tool in run.asked.task.tools}
        places = trio.CapacityLimiter(MAX_PARALLEL)

        async def use(call: Call) -> None:
            async with places:
                finished = await use_tool(self._toolbox, call, limits[call.name])
            if not run.over:
                run.tool_finished(finished)
            if run.over:
                using.cancel_scope.cancel()

        async with trio.open_nursery() as using:
            for call in calls:
                if parallel:
                    using.start_soon(use, call)
                elif not run.over:
                    await use(call)


async def _wait_for_caller(run: Run, calls: tuple[Call, ...], timeout: float) -> None:
    ids = {call.id for call in calls}
    with trio.move_on_after(timeout):
        while any(call.id in ids for call in run.pending()):
            await run.answered.park()
    for call in run.pending():
        if call.id in ids and not run.over:
            run.answer(call.id, "", f"the caller gave no result within {timeout:g} s")
