"""Runs one command of a tool to its end: output as it comes, bounded time, nothing left of it afterwards."""

from __future__ import annotations

from msgspec import Struct

from appliance.core.tools.texts import CappedOutput
from appliance.platform import process
from appliance.platform.children import Children
from appliance.platform.process import Command, Ending, Sink, into

PIPE_GRACE = 2.0
"""Seconds to read the rest from the pipes, once the command has ended with everything that it has started."""
WITH_INPUT = Ending(closed=2.0)
"""A command that may run on another machine: closing its input is what ends it there."""
MAX_ERRORS = 4096
KILLED = -9
"""The status of a command that hangs in the kernel, which will kill it."""


class Ended(Struct, frozen=True, kw_only=True):
    """The end of a command. ``status`` is in the shell's way: 128 plus the signal's number for a killed one."""

    status: int
    timed_out: bool = False
    errors: str = ""
    """The beginning of its standard error, if that was separate."""


async def run(children: Children, command: Command, take: Sink, *, seconds: float) -> Ended:
    """Run it, for at most this long. Cancelling kills it, with everything that it has started.

    Raises OSError, or ValueError, when it cannot be started. A missing program shows as status 126 or 127.
    """
    errors = CappedOutput(MAX_ERRORS)
    ended = await process.run(children, command, take, errors=into(errors), seconds=seconds, rest=PIPE_GRACE)
    status = KILLED if ended.status is None else ended.status
    return Ended(status=status if status >= 0 else 128 - status, timed_out=ended.timed_out, errors=errors.text())
