"""Runs one command to its end: output as it comes, bounded time, nothing left of it afterwards."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

import trio
from msgspec import Struct
from trio.abc import ReceiveStream, SendStream

from appliance.core.tools.lines import CappedOutput
from appliance.platform.children import REAP_TIME, Child, Children

PIPE_GRACE = 2.0
"""Seconds to read the rest from the pipes, once the command has ended with everything that it has started."""
POLITE = 2.0
"""Seconds that a command gets to end by itself when its input is closed, if that is how it ends."""
PIECE = 1 << 16
MAX_ERRORS = 4096

Take = Callable[[bytes], Awaitable[bool]]
"""Gets a piece of output; returns True if more is wanted."""


class Command(Struct, frozen=True, kw_only=True):
    """One command to execute. ``stdin`` is all of its input.

    ``own_errors``: its standard error is not part of its output. ``ends_with_input``: its input stays open while it
    runs, and closing it ends the command, which may run on another machine.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str | None = None
    stdin: bytes = b""
    own_errors: bool = False
    ends_with_input: bool = False


class Ended(Struct, frozen=True, kw_only=True):
    """The end of a command. ``status`` is in the shell's way: 128 plus the signal's number for a killed one."""

    status: int
    timed_out: bool = False
    errors: str = ""
    """The beginning of its standard error, if that was separate."""


async def run(children: Children, command: Command, take: Take, *, seconds: float) -> Ended:
    """Run it, for at most this long. Cancelling kills it, with everything that it has started.

    Raises OSError, or ValueError, when it cannot be started. A missing program shows as status 126 or 127.
    """
    child = await children.spawn(command.argv, command.env, cwd=command.cwd, own_errors=command.own_errors)
    status: int | None = None
    timed_out = False
    errors = CappedOutput(MAX_ERRORS)

    async def keep_errors(data: bytes) -> bool:
        errors.feed(data)
        return True

    try:
        async with trio.open_nursery() as nursery:

            async def pump() -> None:
                if not await _pump(child.output, take):
                    nursery.cancel_scope.cancel()

            nursery.start_soon(pump)
            if child.errors is not None:
                nursery.start_soon(_pump, child.errors, keep_errors)
            nursery.start_soon(_feed, child.stdin, command)
            with trio.move_on_after(seconds):
                status = await child.wait()
            if status is None:
                timed_out = True
                status = await _end(child, command)
            nursery.cancel_scope.deadline = trio.current_time() + PIPE_GRACE
    finally:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + POLITE + REAP_TIME):
            if status is None:
                status = await _end(child, command)
            for stream in (child.stdin, child.output, child.errors):
                if stream is not None:
                    await stream.aclose()
    assert status is not None
    return Ended(status=status if status >= 0 else 128 - status, timed_out=timed_out, errors=errors.text())


async def _end(child: Child, command: Command) -> int:
    if command.ends_with_input:
        with trio.move_on_after(POLITE):
            await child.stdin.aclose()
            return await child.wait()
    child.kill()
    return await child.wait()


async def _feed(stdin: SendStream, command: Command) -> None:
    try:
        if command.stdin:
            await stdin.send_all(command.stdin)
        if not command.ends_with_input:
            await stdin.aclose()
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass  # it does not read to the end


async def _pump(stream: ReceiveStream, take: Take) -> bool:
    """False: no more is wanted."""
    try:
        while data := await stream.receive_some(PIECE):
            if not await take(bytes(data)):
                return False
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass
    return True
