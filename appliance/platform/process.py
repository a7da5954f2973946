"""One child process from spawn to reap: every process that this program starts for its own use runs in `open_process`.

A block owns its process. However the block is left (it is done, it fails, it is cancelled), the same things happen in
the same order: the process is ended in its own way and reaped, the rest of its process group is killed, what is left
in the pipes is read for a moment, and the pipes are closed. `end` is the only place that waits in a shield, and its
deadline follows from the way of ending.

`trio.run_process` has the same shape. It is not used here because it knows one process and no group, kills after a
fixed time, and cannot hand output on piece by piece.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

import trio
from msgspec import Struct
from trio.abc import ReceiveStream, SendStream

from appliance.core.capped_output import CappedOutput
from appliance.platform.children import REAP_TIME, Child, Children
from appliance.trio_parts import plain_nursery, wait_any

PIECE = 1 << 16
MAX_LINE = 1 << 20
"""Longer lines are cut into pieces: no process may fill the memory with one line."""

T = TypeVar("T")

Sink = Callable[[bytes], Awaitable[bool]]
"""Gets each piece of output, and ``b""`` at its end. False: nothing more is wanted, so the process is ended."""
MOST = 1 << 20
"""Bytes of each output that are kept; a program that prints more is ended."""


class StopSteps(Struct, frozen=True, kw_only=True):
    """The way in which a process is ended, in seconds for each step. A step of 0 s is left out; SIGKILL is the last."""

    closed: float = 0.0
    """The time that it gets once its input is closed."""
    asked: float = 0.0
    """The time that it gets after SIGTERM to its group."""
    group: float = 0.0
    """The longest wait for the kernel to remove the rest of the group."""


KILL = StopSteps()


class Command(Struct, frozen=True, kw_only=True):
    """One command. ``stdin``: all of its input; None: it stays open. ``own_errors``: not part of its output."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str | None = None
    stdin: bytes | None = b""
    own_errors: bool = False
    ending: StopSteps = KILL


class CommandEnd(Struct, frozen=True, kw_only=True):
    """The end of a command. ``status`` None: the kernel did not end it in time."""

    status: int | None
    timed_out: bool
    """Its time was used up, so it was ended."""


async def ignore(piece: bytes) -> bool:
    """Drop all output. A `Sink`."""
    return True


@asynccontextmanager
async def open_process(
    children: Children, command: Command, output: Sink = ignore, *, errors: Sink = ignore, rest: float = 1.0
) -> AsyncGenerator[Child]:
    """Own a process for the length of the block; leaving the block ends it, unless it has ended.

    ``rest``: seconds to read what is left in the pipes after that, which something left behind may hold open. A sink
    that wants no more cancels the block, and only the block. An exception of the block leaves as it is.

    Raises OSError, or ValueError, when the process cannot be started. A missing program shows as status 126 or 127.
    """
    # This is outside of the nursery, so that a failure to start is a plain exception and not one in a group.
    child = await children.spawn(command.argv, command.env, cwd=command.cwd, own_errors=command.own_errors)
    try:
        async with plain_nursery() as nursery:
            nursery.start_soon(_pump, child.output, output, nursery.cancel_scope)
            if child.errors is not None:
                nursery.start_soon(_pump, child.errors, errors, nursery.cancel_scope)
            if command.stdin is not None:
                nursery.start_soon(_feed, child.stdin, command.stdin)
            try:
                yield child
            finally:
                # Inside of the nursery, so that the pipes are read meanwhile: a process with a full pipe cannot end.
                await end(child, command.ending)
            nursery.cancel_scope.deadline = trio.current_time() + rest
    finally:
        for stream in (child.stdin, child.output, child.errors):
            if stream is not None:
                with trio.move_on_after(0, shield=True):  # closing itself is immediate
                    await stream.aclose()


async def run(
    children: Children, command: Command, output: Sink, *, errors: Sink = ignore, seconds: float, rest: float = 1.0
) -> CommandEnd:
    """Run a command in `open_process` for at most ``seconds``; a sink that wants no more ends it earlier."""
    async with open_process(children, command, output, errors=errors, rest=rest) as child:
        with trio.move_on_after(seconds) as time:
            await child.wait()
    return CommandEnd(status=child.status, timed_out=time.cancelled_caught)


async def before_end(child: Child, ready: Callable[[], Awaitable[T]]) -> T | None:
    """Return the result of ``ready``. None: the process ended first."""
    result: T | None = None

    async def wait_ready() -> None:
        nonlocal result
        result = await ready()

    await wait_any(child.wait_exit, wait_ready)
    return result


async def end(child: Child, ending: StopSteps = KILL) -> None:
    """End the process and the rest of its group, politely first if ``ending`` says so, and reap it.

    Not even cancelling hinders it. It takes the times of ``ending`` and `REAP_TIME` at most: nobody can end a process
    that hangs in the kernel, which is left to the warden then.
    """
    with trio.move_on_after(ending.closed + ending.asked + REAP_TIME + ending.group, shield=True):
        # The shield has a deadline. Without a shield a cancelled owner would leave its process behind; without the
        # deadline a process that is stuck in a driver would keep this program from ending.
        if child.status is None and not await _ended_politely(child, ending):
            child.kill()
        await child.wait()
        if ending.group:
            with trio.move_on_after(ending.group):
                await child.wait_group()


async def _ended_politely(child: Child, ending: StopSteps) -> bool:
    if ending.closed:
        with trio.move_on_after(ending.closed):
            await child.stdin.aclose()
            await child.wait_exit()
            return True
    if ending.asked:
        child.terminate()
        with trio.move_on_after(ending.asked):
            await child.wait_exit()
            return True
    return False


async def _pump(stream: ReceiveStream, sink: Sink, block: trio.CancelScope) -> None:
    try:
        while piece := await stream.receive_some(PIECE):
            if not await sink(bytes(piece)):
                block.cancel()
                return
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass
    await sink(b"")


async def _feed(stream: SendStream, data: bytes) -> None:
    try:
        if data:
            await stream.send_all(data)
        await stream.aclose()
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass  # it does not read to the end


# ---- sinks -----------------------------------------------------------------------------------------------------------


class LineSink:
    """A `Sink` that cuts output into lines, without their ends, and hands each to ``take``."""

    def __init__(self, take: Callable[[bytes], None]) -> None:
        self._take = take
        self._partial = bytearray()

    async def __call__(self, piece: bytes) -> bool:
        self._partial += piece
        # Lines are cut from bytes, before any decoding: a piece may end in the middle of a character.
        *lines, rest = self._partial.split(b"\n")
        for line in lines:
            self._take(bytes(line))
        self._partial = bytearray(rest)
        if self._partial and (not piece or len(self._partial) > MAX_LINE):
            self._take(bytes(self._partial))
            self._partial.clear()
        return True


def text_of(line: bytes) -> str:
    """Return a line for the log, whatever its encoding and its end."""
    return line.decode("utf-8", "replace").rstrip("\r")


def into(kept: CappedOutput, *, flood: bool = True) -> Sink:
    """Return a sink that keeps the beginning. ``flood``: output beyond that is dropped, else it ends the process."""

    async def take(piece: bytes) -> bool:
        kept.feed(piece)
        return flood or not kept.truncated

    return take


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
    """Run ``argv`` to its end, at most so long. Raises OSError, ValueError; a missing program ends with status 127."""
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
