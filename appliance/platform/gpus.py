"""NVIDIA's GPUs, asked through a process of their own (`platform.gpu_process`), which their driver may crash or stop.

The process starts with the first question, and only if the driver's library is installed; after a failure it starts
again, each time a while later.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import msgspec
import trio

from appliance.core.machine import Accelerator, GpuSample
from appliance.platform.children import Child, Children, describe_status, open_children
from appliance.platform.env import inherited_env
from appliance.platform.gpu_process import ACCELERATORS, PROCESSES, SAMPLES, command
from appliance.platform.libraries import has_nvml
from appliance.platform.throwaway import clear_away

PATIENCE = 5.0
"""Seconds for an answer. A card that sleeps takes one to two to wake."""
AGAIN = (5.0, 30.0, 120.0, 600.0)
"""Seconds until the process is started again after its first, second ... failure in a row; the last for later ones."""
MAX_ANSWER = 1 << 20
MAX_ERRORS = 2000

T = TypeVar("T")
Ask = tuple[str, "Reply"]

_SAMPLES = msgspec.json.Decoder(list[GpuSample])
_ACCELERATORS = msgspec.json.Decoder(list[Accelerator])
_PROCESSES = msgspec.json.Decoder(list[tuple[int, int | None]] | None)

log = logging.getLogger(__name__)


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


_opened: list[Gpus] = []
"""The open `Gpus`, the newest last. A machine has one driver: every measurement of a model asks it through these."""


async def processes_on(index: int) -> list[tuple[int, int | None]] | None:
    """Return `Gpus.processes` of the newest open one; None if there is none."""
    return await _opened[-1].processes(index) if _opened else None


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
        _opened.append(gpus)
        try:
            yield gpus
        finally:
            _opened.remove(gpus)
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
