"""Uses one tool for a run: within its time, and with an answer for every failure."""

from __future__ import annotations

import logging
import secrets

import trio

from appliance.core.runs.messages import Call, ToolFinished
from appliance.core.tools.tool import ToolContext
from appliance.errors import ApplianceError
from appliance.tools.box import Toolbox

MAX_PARALLEL = 16
"""Number of tools of one turn at once, each of which may be a process; the model decides how many it calls."""

log = logging.getLogger(__name__)


async def use_tool(toolbox: Toolbox, call: Call, timeout: float) -> ToolFinished:
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
