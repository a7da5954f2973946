"""One program run to its end in a throw-away process: bounded in time and output, and nothing left of it afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import trio
from msgspec import Struct
from trio.abc import ReceiveStream

from appliance.platform.children import REAP_TIME, Child, Children

MOST = 1 << 20
"""Bytes of each output that are kept; a program that prints more is ended."""
PIPE_GRACE = 1.0
"""Seconds to read the rest from the pipes once the program has ended."""
PIECE = 1 << 16


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

    Raises OSError, or ValueError, when it cannot be started. A program that does not exist ends with status 127. One
    that hangs in the kernel cannot be ended by anybody; it is left after `REAP_TIME`.
    """
    begun = trio.current_time()
    child = await children.spawn(argv, env, own_errors=True)
    output, errors = bytearray(), bytearray()
    status: int | None = None
    flooded = False
    try:
        async with trio.open_nursery() as nursery:

            async def keep(stream: ReceiveStream, kept: bytearray) -> None:
                nonlocal flooded
                try:
                    while piece := await stream.receive_some(PIECE):
                        kept += piece
                        if len(kept) > most:
                            flooded = True
                            nursery.cancel_scope.cancel()
                            return
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    pass

            nursery.start_soon(keep, child.output, output)
            if child.errors is not None:
                nursery.start_soon(keep, child.errors, errors)
            nursery.start_soon(_feed, child, stdin)
            with trio.move_on_after(seconds):
                status = await child.wait()
            if status is None:
                child.kill()
            nursery.cancel_scope.deadline = trio.current_time() + PIPE_GRACE
    finally:
        await clear_away(child, ended=status is not None)
    return Ran(
        status=None if flooded else status,
        output=bytes(output[:most]),
        errors=bytes(errors[:most]),
        flooded=flooded,
        seconds=trio.current_time() - begun,
    )


async def _feed(child: Child, stdin: bytes) -> None:
    try:
        await child.stdin.send_all(stdin)
        await child.stdin.aclose()
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass  # it does not read


async def clear_away(child: Child, *, ended: bool = False) -> None:
    """End it, unless it has ``ended``, and close its pipes; even while the program is being stopped."""
    with trio.move_on_after(REAP_TIME, shield=True):
        if not ended:
            child.kill()
            await child.wait()
    with trio.CancelScope(shield=True):
        for stream in (child.stdin, child.output, child.errors):
            if stream is not None:
                await trio.aclose_forcefully(stream)
