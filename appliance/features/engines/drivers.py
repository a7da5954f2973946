"""Drivers, asked through a process of their own (`features.engines.driver_process`), which they may crash or stop.

`look` asks everything once, of a throw-away process. `open_gpus` keeps a process that NVIDIA's driver is asked through
again and again. It starts with the first question, and only if the driver's library is installed; after a failure it
starts again, each time a while later.
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TypeVar

import msgspec
import trio
from msgspec import structs

from appliance.core.engine_output import printable
from appliance.core.lenient_json import UNREADABLE, decoded
from appliance.core.machine import GpuSample
from appliance.core.machine_look import MachineLook
from appliance.features.engines import driver_process
from appliance.features.engines.driver_process import LOOK, PROCESSES, SAMPLES, STAGES, ProbeOrder
from appliance.platform.children import Child, Children, describe_status, inherited_env, open_children, own_process
from appliance.platform.gpus import Gpus, NoGpus, plain_look
from appliance.platform.libraries import has_nvml
from appliance.platform.process import Command, LineSink, Ran, before_end, open_process, run_to_end
from appliance.trio_parts import Awaited, Changed, beside, persist

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
PATIENCE = 5.0  # seconds for an answer; a card that sleeps takes one to two to wake
AGAIN = (5.0, 30.0, 120.0, 600.0)
"""Seconds until the process is started again after its first, second ... failure in a row; the last for later ones."""
MAX_ERRORS = 2000

T = TypeVar("T")
Ask = tuple[str, Awaited[bytes | None]]  # a question, and the place for its answer; None: there is none

_TOLD: msgspec.json.Decoder[str | MachineLook] = msgspec.json.Decoder(str | MachineLook)
_SAMPLES = msgspec.json.Decoder(list[GpuSample])
_PROCESSES = msgspec.json.Decoder(list[tuple[int, int | None]] | None)

log = logging.getLogger(__name__)


async def look(
    children: Children, *, seconds: float = LIMIT, root: str = "/", env: Mapping[str, str] | None = None
) -> MachineLook:
    """Look at the machine. ``seconds`` are those of one process; each driver that kills or stops one costs another.

    Never an error: a driver that does not answer is one of the look's problems, by name. ``root`` is where the
    system's files are looked for.
    """
    without: list[str] = []
    problems: list[str] = []
    while True:
        try:
            # Each round leaves out one more driver: the one in whose stage the process died or hung. A stage that fails
            # although it was left out ends the look, so there are never more rounds than drivers.
            order = LOOK.encode() + b" " + msgspec.json.encode(ProbeOrder(tuple(without), root)) + b"\n"
            ran = await run_to_end(
                children, own_process(driver_process.__name__), env or inherited_env(), seconds=seconds, stdin=order
            )
        except OSError as error:
            return plain_look(f"the process that looks at the machine cannot be started: {error}")
        stage, seen = _last_look(ran.output)
        if seen is not None:
            return structs.replace(seen, problems=(*problems, *seen.problems))
        how = _how(ran, seconds)
        if stage not in WHOSE or stage in without:
            return plain_look(f"the machine could not be looked at: {how}", *problems)
        without.append(stage)
        problems.append(f"{WHOSE[stage]} {how} when asked for its cards, and is left out")


def _last_look(output: bytes) -> tuple[str, MachineLook | None]:
    """The last stage that began, and the look if there is one."""
    stage = STAGES[0]
    for line in output.split(b"\n"):
        match decoded(_TOLD, line):
            case str(begun) if begun in STAGES:
                stage = begun
            case MachineLook() as seen:
                return stage, seen
            case _:
                pass  # a driver that prints something
    return stage, None


def _how(ran: Ran, seconds: float) -> str:
    if ran.flooded:
        return "printed without end"
    if ran.status is None:
        return f"did not answer within {seconds:g} s"
    last = ran.errors.decode(errors="replace").strip().rpartition("\n")[2]
    return f"ended its process ({describe_status(ran.status)}{': ' + printable(last) if last else ''})"


@asynccontextmanager
async def open_gpus() -> AsyncGenerator[Gpus]:
    """Own the process that asks the driver, for the length of the block. Without a driver nothing is started."""
    if not has_nvml():
        yield NoGpus()
        return
    gpus = NvidiaGpus()
    async with beside(partial(persist, "asking NVIDIA's driver", gpus.keep)):
        try:
            yield gpus
        finally:
            gpus.asking.close()


class NvidiaGpus:
    """The process, if there is one, and the question that waits for its answer. Owned by `open_gpus`."""

    def __init__(self) -> None:
        self.asking, self._questions = trio.open_memory_channel[Ask](0)
        self._question = ""
        self._reply: Awaited[bytes | None] | None = None
        self._failures = 0
        self._not_before = -math.inf

    async def samples(self) -> list[GpuSample]:
        """Return how busy they are."""
        return await self._ask(SAMPLES, _SAMPLES.decode, [])

    async def processes(self, index: int) -> list[tuple[int, int | None]] | None:
        """Return the processes on one GPU with their bytes there, None for unknown bytes; None: unknown."""
        return await self._ask(f"{PROCESSES} {index}", _PROCESSES.decode, None)

    async def _ask(self, question: str, read: Callable[[bytes], T], nothing: T) -> T:
        reply = Awaited[bytes | None]()
        try:
            await self.asking.send((question, reply))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return nothing  # the program ends
        answer = await reply.get()
        try:
            return nothing if answer is None else read(answer)
        except UNREADABLE:
            return nothing

    async def keep(self) -> None:
        """Ask one question after the other, until there will be no more; children are opened with the first."""
        try:
            with suppress(trio.EndOfChannel):
                await self._answer(None)
                async with open_children() as children:
                    while True:
                        # After a failure questions are answered with None at once, until the pause is over. Otherwise
                        # every question about a GPU would start another process for a driver that kills it.
                        if trio.current_time() >= self._not_before:
                            self._failed(await self._use(children))
                        await self._answer(None)
        finally:
            self._give(None)  # the waiting task still learns that there is no answer

    async def _answer(self, answer: bytes | None) -> None:
        """Give the answer, and wait for the next question."""
        self._give(answer)
        self._question, self._reply = await self._questions.receive()

    def _give(self, answer: bytes | None) -> None:
        waiting, self._reply = self._reply, None
        if waiting is not None:
            waiting.give(answer)

    async def _use(self, children: Children) -> str:
        """Start the process and answer with it until it fails at a question; return why it did."""
        said, words = _LastLine(), _LastLine()
        process = Command(argv=own_process(driver_process.__name__), env=inherited_env(), stdin=None, own_errors=True)
        try:
            async with open_process(children, process, LineSink(said.take), errors=LineSink(words.take)) as child:
                while True:
                    answer: bytes | None = None
                    with trio.move_on_after(PATIENCE) as patience:
                        answer = await before_end(child, partial(_exchange, child, self._question, said))
                    # Leaving the block ends the process. It could still answer later, and that answer would be taken
                    # for the next one.
                    if patience.cancelled_caught:
                        return f"no answer within {PATIENCE:g} s"
                    if answer is None:
                        status = await child.wait()
                        break
                    self._failures = 0
                    await self._answer(answer)
        except OSError as error:
            return f"it cannot be started: {error}"
        last = words.line.decode(errors="replace").strip()[:MAX_ERRORS]
        return f"{describe_status(status)}{': ' + last if last else ''}"

    def _failed(self, why: str) -> None:
        wait = AGAIN[min(self._failures, len(AGAIN) - 1)]
        self._not_before = trio.current_time() + wait
        told = logging.WARNING if not self._failures else logging.DEBUG
        log.log(told, "NVIDIA's driver cannot be asked (%s); it is asked again in %.0f s", why, wait)
        self._failures += 1


class _LastLine:
    """The latest line of an output that is not blank."""

    def __init__(self) -> None:
        self.line = b""
        self.changed = Changed()

    def take(self, line: bytes) -> None:
        if line.strip():
            self.line = line
            self.changed.wake()


async def _exchange(child: Child, question: str, said: _LastLine) -> bytes:
    """Wait for one line of output after one line of input."""
    # Forget a line that the driver itself has printed since the last answer. It must not pass for this answer.
    said.line = b""
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError):  # its end says more
        await child.stdin.send_all(question.encode() + b"\n")
    while not said.line:
        await said.changed.wait()
    return said.line
