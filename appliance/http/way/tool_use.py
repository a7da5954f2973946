"""The use of tools in a turn of a model: each within its time, and every failure of one has an answer."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence

import trio

from appliance.core.tools.box import Toolbox, ToolContext
from appliance.core.turns.messages import ModelCall, ToolFinished
from appliance.errors import ApplianceError

MAX_PARALLEL = 16
"""Number of tools of one turn at once, each of which may be a process; the model decides how many it calls."""
log = logging.getLogger(__name__)


async def use_tool(toolbox: Toolbox, call: ModelCall, timeout: float) -> ToolFinished:
    """A tool that reports an error has been used; one that could not be used is a failure."""
    began = trio.current_time()
    content, failure = "", None
    try:
        with trio.move_on_after(timeout) as patience:
            content = (await toolbox.call(call.name, call.arguments.encode(), ToolContext())).text
        if patience.cancelled_caught:
            failure = f"it took longer than {timeout:g} s"
    except ApplianceError as error:
        failure = str(error)
    except Exception:
        bug = secrets.token_hex(4)
        log.exception("internal error %s in tool '%s'; this is a bug", bug, call.name)
        failure = f"internal error {bug}; the log says more"
    seconds = trio.current_time() - began
    return ToolFinished(call_id=call.id, content=content, failure=failure, seconds=round(seconds, 6))


async def use_each(calls: Sequence[ModelCall], use: Callable[[ModelCall], Awaitable[bool]], *, parallel: bool) -> None:
    """Use the tools of one turn: in order, or at once; until ``use`` says False."""
    places = trio.CapacityLimiter(MAX_PARALLEL if parallel else 1)

    async def wait(call: ModelCall) -> None:
        async with places:
            if not await use(call):
                nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for call in calls:
            if parallel:
                nursery.start_soon(wait, call)
            else:
                await wait(call)
