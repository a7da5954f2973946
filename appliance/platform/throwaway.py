"""One program run to its end in a throw-away process: bounded in time and output, and nothing left of it afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import trio
from msgspec import Struct

from appliance.core.tools.texts import CappedOutput
from appliance.platform.children import Children
from appliance.platform.process import Command, into, run

MOST = 1 << 20
"""Bytes of each output that are kept; a program that prints more is ended."""


class Ran(Struct, frozen=True, kw_only=True):
    """The end of the program. ``status`` None: this process ended it, because its time or its output was used up."""

    status: int | None
    output: bytes
    errors: bytes
    flooded: bool
    """It printed more than it may."""
    seconds: float


async def run_to_end(
    children: Children,
    argv: Sequence[str],
    env: Mapping[str, str],
    *,
    seconds: float,
    stdin: bytes = b"",
    most: int = MOST,
) -> Ran:
    """Run ``argv`` with these few bytes as its input, at most so long; its process group is ended in any case.

    Raises OSError, or ValueError, when it cannot be started. A program that does not exist ends with status 127.
    """
    begun = trio.current_time()
    output, errors = CappedOutput(most), CappedOutput(most)
    command = Command(argv=argv, env=env, stdin=stdin, own_errors=True)
    ended = await run(children, command, into(output, flood=False), errors=into(errors, flood=False), seconds=seconds)
    flooded = output.truncated or errors.truncated
    return Ran(
        status=None if flooded or ended.timed_out else ended.status,
        output=output.kept,
        errors=errors.kept,
        flooded=flooded,
        seconds=trio.current_time() - begun,
    )
