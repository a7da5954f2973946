"""Drivers, asked through a process of their own (`platform.driver_process`), which they may crash or stop.

`look` asks everything once, of a throw-away process. `open_gpus` keeps a process that NVIDIA's driver is asked through
again and again. It starts with the first question, and only if the driver's library is installed; after a failure it
starts again, each time a while later.
"""

from __future__ import annotations

import logging
import os
import platform
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TypeVar

import msgspec
import trio
from msgspec import structs

from appliance.core.engines.builds import platform_of
from appliance.core.engines.listing import printable
from appliance.core.engines.machine import Look
from appliance.core.machine import Accelerator, GpuSample
from appliance.platform.children import Child, Children, describe_status, open_children
from appliance.platform.driver_process import (
    ACCELERATORS,
    LOOK,
    PROCESSES,
    SAMPLES,
    STAGES,
    Order,
    Seen,
    Stage,
    Told,
    command,
)
from appliance.platform.env import inherited_env
from appliance.platform.libraries import has_nvml
from appliance.platform.throwaway import Ran, clear_away, run_to_end

LIMIT = 30.0 if sys.platform == "win32" else 10.0
"""Seconds for one process; a driver that is asked for the first time may take three to wake a card."""
WHOSE = {
    "nvml": "NVIDIA's driver library (NVML)",
    "nvidia": "NVIDIA's driver",
    "amd": "AMD's driver",
    "intel": "Intel's driver",
    "apple": "Metal",
    "loaders": "the list of GPU libraries",
    "problems": "the list of cards",
}
PATIENCE = 5.0
"""Seconds for an answer. A card that sleeps takes one to two to wake."""
AGAIN = (5.0, 30.0, 120.0, 600.0)
"""Seconds until the process is started again after its first, second ... failure in a row; the last for later ones."""
MAX_ANSWER = 1 << 20
MAX_ERRORS = 2000

T = TypeVar("T")
Ask = tuple[str, "Reply"]

_TOLD: msgspec.json.Decoder[Told] = msgspec.json.Decoder(Told)
_SAMPLES = msgspec.json.Decoder(list[GpuSample])
_ACCELERATORS = msgspec.json.Decoder(list[Accelerator])
_PROCESSES = msgspec.json.Decoder(list[tuple[int, int | None]] | None)

log = logging.getLogger(__name__)


# ---- one look --------------------------------------------------------------------------------------------------------


async def look(
    children: Children, *, seconds: float = LIMIT, root: str = "/", env: Mapping[str, str] | None = None
) -> Look:
    """Look at the machine. ``seconds`` are those of one process; each driver that kills or stops one costs another.

    Never an error: a driver that does not answer is one of the look's problems, by name. ``root`` is where the
    system's files are looked for.
    """
    without: list[str] = []
    problems: list[str] = []
    while True:
        try:
            order = LOOK.encode() + b" " + msgspec.json.encode(Order(tuple(without), root)) + b"\n"
            ran = await run_to_end(children, command(), env or inherited_env(), seconds=seconds, stdin=order)
        except OSError as error:
            return _blind(f"the process that looks at the machine cannot be started: {error}")
        stage, seen = _told(ran.output)
        if seen is not None:
            return structs.replace(seen, problems=(*problems, *seen.problems))
        how = _how(ran, seconds)
        if stage not in WHOSE or stage in without:
            return _blind(f"the machine could not be looked at: {how}", *problems)
        without.append(stage)
        problems.append(f"{WHOSE[stage]} {how} when asked for its cards, and is left out")


def _told(output: bytes) -> tuple[str, Look | None]:
    """The last stage that began, and the look if there is one."""
    stage = STAGES[0]
    for line in output.split(b"\n"):
        try:
            told = _TOLD.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            continue  # a driver that prints something
        match told:
            case Stage(name):
                stage = name
            case Seen(seen):
                return stage, seen
    return stage, None


def _how(ran: Ran, seconds: float) -> str:
    if ran.flooded:
        return "printed without end"
    if ran.status is None:
        return f"did not answer within {seconds:g} s"
    last = ran.errors.decode(errors="replace").strip().rpartition("\n")[2]
    return f"ended its process ({describe_status(ran.status)}{': ' + printable(last) if last else ''})"


def _blind(*problems: str) -> Look:
    """Return the facts that need no look."""
    return Look(
        platform=platform_of(sys.platform, platform.machine()),
        system=f"{platform.system()} {platform.release()}",
        environment="unknown",
        cpu=platform.machine(),
        cores=os.cpu_count() or 1,
        problems=problems,
    )


# ---- NVIDIA's driver -------------------------------------------------------------------------------------------------


class Reply:
    """The place for one answer. None: there is none."""

    def __init__(self) -> None:
        self.answer: bytes | None = None
        self.there = trio.Event()


class Gpus:
    """Owned by `open_gpus`. Without an NVIDIA driver it always answers that there are no GPUs."""

    def __init__(self, asking: trio.MemorySendChannel[Ask] | None) -> None:
        self._asking = asking

    async def samples(self) -> list[GpuSample]:
        """Return how busy they are."""
        return await self._ask(SAMPLES, _SAMPLES.decode, [])

    async def accelerators(self) -> list[Accelerator]:
        """Return their hardware."""
        return await self._ask(ACCELERATORS, _ACCELERATORS.decode, [])

    async def processes(self, index: int) -> list[tuple[int, int | None]] | None:
        """Return the processes on one GPU with their bytes there, None for unknown bytes; None: unknown."""
        return await self._ask(f"{PROCESSES} {index}", _PROCESSES.decode, None)

    async def _ask(self, question: str, read: Callable[[bytes], T], nothing: T) -> T:
        if self._asking is None:
            return nothing
        reply = Reply()
        try:
            await self._asking.send((question, reply))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return nothing  # the program ends
        await reply.there.wait()
        try:
            return nothing if reply.answer is None else read(reply.answer)
        except msgspec.MsgspecError:
            return nothing


@asynccontextmanager
async def open_gpus() -> AsyncGenerator[Gpus]:
    """Own the process that asks the driver, for the length of the block. Without a driver nothing is started."""
    if not has_nvml():
        yield Gpus(None)
        return
    send, receive = trio.open_memory_channel[Ask](0)
    gpus = Gpus(send)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_answer_all, receive)
        try:
            yield gpus
        finally:
            send.close()
        nursery.cancel_scope.cancel()


async def _answer_all(questions: trio.MemoryReceiveChannel[Ask]) -> None:
    """Ask one question after the other; children are opened with the first."""
    with questions:
        try:
            question, reply = await questions.receive()
        except trio.EndOfChannel:
            return
        try:
            async with open_children() as children:
                link = _Link(children)
                try:
                    while True:
                        reply.answer = await link.ask(question)
                        reply.there.set()
                        question, reply = await questions.receive()
                except trio.EndOfChannel:
                    pass
                finally:
                    await link.end()
        finally:
            reply.there.set()  # whoever waits still learns that there is no answer


class _Link:
    """The process, if there is one."""

    def __init__(self, children: Children) -> None:
        self._children = children
        self._child: Child | None = None
        self._failures = 0
        self._not_before = 0.0

    async def ask(self, question: str) -> bytes | None:
        """Return None if there is no answer in time; the process is then ended."""
        if self._child is None:
            if trio.current_time() < self._not_before:
                return None
            try:
                self._child = await self._children.spawn(command(), inherited_env(), own_errors=True)
            except OSError as error:
                self._failed(f"it cannot be started: {error}")
                return None
        why = f"no answer within {PATIENCE:g} s"
        with trio.move_on_after(PATIENCE):
            if answer := await _exchange(self._child, question.encode() + b"\n"):
                self._failures = 0
                return answer
            why = ""
        self._failed(why or await self._last_words())
        await self.end()
        return None

    async def end(self) -> None:
        """End the process, if there is one."""
        child, self._child = self._child, None
        if child is not None:
            await clear_away(child)

    def _failed(self, why: str) -> None:
        wait = AGAIN[min(self._failures, len(AGAIN) - 1)]
        self._not_before = trio.current_time() + wait
        told = logging.WARNING if not self._failures else logging.DEBUG
        log.log(told, "NVIDIA's driver cannot be asked (%s); it is asked again in %.0f s", why, wait)
        self._failures += 1

    async def _last_words(self) -> str:
        """Describe how the process ended, and its last words."""
        assert self._child is not None
        said = b""
        with trio.move_on_after(1.0):
            status = await self._child.wait()
            while self._child.errors is not None and (piece := await self._child.errors.receive_some(MAX_ERRORS)):
                said = (said + piece)[-MAX_ERRORS:]
            last = said.decode(errors="replace").strip().rpartition("\n")[2]
            return f"{describe_status(status)}{': ' + last if last else ''}"
        return "its output ended"


async def _exchange(child: Child, question: bytes) -> bytes | None:
    """Read one line for one line; None when the output has ended, or is not a line."""
    answer = bytearray()
    try:
        await child.stdin.send_all(question)
        while not answer.endswith(b"\n"):
            piece = await child.output.receive_some()
            if not piece or len(answer) > MAX_ANSWER:
                return None
            answer += piece
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        return None
    return bytes(answer)
