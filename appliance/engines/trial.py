"""One llama-server for a test run: started, asked a few things, killed. The fleet knows nothing of it."""

from __future__ import annotations

import re
import secrets
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import trio

from appliance.core.engines import trial_log
from appliance.core.engines.listing import printable
from appliance.core.engines.proofs import Fault
from appliance.core.engines.stands_for import NO_DEBUGGER
from appliance.engines.found import Engine
from appliance.errors import Busy, UpstreamFailed
from appliance.platform.children import REAP_TIME, Child, Children, describe_status
from appliance.platform.cpu import engine_threads
from appliance.platform.env import inherited_env
from appliance.platform.ports import LOOPBACK, free_port
from appliance.upstream.client import Address, Exchange

CONTEXT = "1024"
"""Tokens: of the known prompts, and of those that measure, none is longer."""
VERBOSITY = "4"
"""From here on llama-server says which devices and buffers it uses."""
PORT_ATTEMPTS = 3
FIRST_LINES, LAST_LINES = 400, 200
"""Lines that are kept: where it says what it uses, and how it ended."""
MAX_LINE = 2000
"""Bytes of a line that are kept."""
PAUSE, LONGEST_PAUSE = 0.01, 0.25
"""Seconds between two looks whether it is ready."""
LOOK_TIME = 1.0
END_TIME = 2.0
"""Seconds in which a process ends whose connection broke; a crash may be written down first."""
PIPE_TIME = 0.5
"""Seconds that output is waited for which something left behind holds."""
MAX_ANSWER = 4 << 20
NOT_EXECUTED = (126, 127)
"""Exit statuses of the shell that should have become the engine."""
JSON_HEADERS = ((b"Content-Type", b"application/json"),)


class TrialFailed(Exception):
    """A test run that shows that an engine does not work here. ``why`` is one line, for people."""

    def __init__(self, fault: Fault, why: str) -> None:
        super().__init__(fault, why)
        self.fault: Fault = fault
        self.why = why

    def __str__(self) -> str:
        return f"{self.fault}: {self.why}"


class Trial:
    """A server that is ready. Owned by `open_trial`."""

    def __init__(self, address: Address, child: Child) -> None:
        self.address = address
        self.ready = False
        self._child = child
        self._first: list[str] = []
        self._last: deque[str] = deque(maxlen=LAST_LINES)
        self._drained = trio.Event()
        self._ended = trio.Event()
        self._status: int | None = None

    def lines(self) -> list[str]:
        """What it has printed so far; of a long log the beginning and the end."""
        return [*self._first, *self._last]

    async def ask(self, path: str, body: object, *, seconds: float) -> bytes:
        """The answer to a POST of ``body`` as JSON. Raises TrialFailed for anything but 200 within ``seconds``."""
        try:
            with trio.fail_after(seconds):
                data = msgspec.json.encode(body)
                async with Exchange(self.address, "POST", path, JSON_HEADERS, data) as response:
                    answer = await response.read(MAX_ANSWER)
        except trio.TooSlowError:
            raise TrialFailed("hang", f"it did not answer within {seconds:.0f} s") from None
        except (UpstreamFailed, Busy) as cause:
            raise await self._broken(cause) from None
        if response.status != 200:
            raise TrialFailed("garbage", f"it answered with status {response.status}: {_shown(answer)}")
        return answer

    async def _broken(self, cause: UpstreamFailed | Busy) -> TrialFailed:
        """Why a connection broke: mostly because the process ended."""
        with trio.move_on_after(END_TIME):
            await self._ended.wait()
        if self._status is None:
            return TrialFailed("crash", f"it runs, but {cause.why if isinstance(cause, UpstreamFailed) else cause}")
        await self._read_rest()
        return TrialFailed(trial_log.fault_of_death(self._last_lines()), self._end("at work"))

    async def keep(self) -> None:
        """Read its output and see it end, until cancelled; the process is gone then."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._drain)
                self._status = await self._child.wait_exit()
                self._child.take_down()
                self._ended.set()
                nursery.cancel_scope.deadline = trio.current_time() + PIPE_TIME
        finally:
            with trio.move_on_after(REAP_TIME, shield=True):
                if self._status is None:
                    self._child.kill()
                    await self._child.wait_exit()
                self._child.take_down()
                await self._child.stdin.aclose()
                await self._child.output.aclose()

    async def wait_ready(self) -> None:
        """Return when it answers, or raise TrialFailed when it ends before."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._look_again_and_again, nursery.cancel_scope)
            await self._ended.wait()
            nursery.cancel_scope.cancel()
        if self.ready:
            return
        await self._read_rest()
        assert self._status is not None
        executed = self._status not in NOT_EXECUTED
        fault = trial_log.fault_of_start(describe_status(self._status), executed, self.lines())
        raise TrialFailed(fault, self._end("while it loaded"))

    async def _look_again_and_again(self, scope: trio.CancelScope) -> None:
        pause = PAUSE
        while not self.ready:
            await trio.sleep(pause)
            pause = min(LONGEST_PAUSE, pause * 1.2)
            with trio.move_on_after(LOOK_TIME):
                try:
                    async with Exchange(self.address, "GET", "/v1/models") as response:
                        self.ready = response.status == 200
                except (UpstreamFailed, Busy):
                    continue  # it does not listen yet
        scope.cancel()

    async def _drain(self) -> None:
        partial = b""
        try:
            while chunk := await self._child.output.receive_some(1 << 16):
                *whole, partial = (partial + chunk).split(b"\n")
                for line in whole:
                    self._take(line)
                partial = partial[: 2 * MAX_LINE]
            self._take(partial)
        finally:
            self._drained.set()

    def _take(self, line: bytes) -> None:
        text = line[:MAX_LINE].decode("utf-8", "replace").rstrip("\r")
        if len(self._first) < FIRST_LINES:
            self._first.append(text)
        else:
            self._last.append(text)

    async def _read_rest(self) -> None:
        with trio.move_on_after(PIPE_TIME):
            await self._drained.wait()

    def _last_lines(self) -> list[str]:
        return self.lines()[-LAST_LINES:]

    def _end(self, when: str) -> str:
        """How it ended, in words."""
        assert self._status is not None
        told = trial_log.explanation(self._last_lines())
        return f"{describe_status(self._status)} {when}" + (f": {told}" if told else "")


@asynccontextmanager
async def open_trial(
    engine: Engine,
    args: Sequence[str],
    model: Path,
    children: Children,
    *,
    seconds: float,
    extra: Sequence[str] = (),
) -> AsyncGenerator[Trial]:
    """Start ``engine`` with ``model`` on loopback, with a key of its own; ``args`` name its devices.

    Yields once it answers, within ``seconds``, and kills it on leaving. Raises TrialFailed when it does not get so far;
    a TrialFailed of the block leaves as it is.
    """
    failure: TrialFailed | None = None
    for attempt in range(1, PORT_ATTEMPTS + 1):
        trial = await _spawn(engine, (*args, *extra), model, children)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trial.keep)
            try:
                await _wait_ready(trial, seconds)
                yield trial
            except TrialFailed as cause:
                failure = cause  # raised below: out of a nursery it would come as a group
            nursery.cancel_scope.cancel()
        lost = failure is not None and not trial.ready and trial_log.lost_its_port(trial.lines())
        if not lost or attempt == PORT_ATTEMPTS:
            break
        failure = None
    if failure is not None:
        raise failure


async def _wait_ready(trial: Trial, seconds: float) -> None:
    try:
        with trio.fail_after(seconds):
            await trial.wait_ready()
    except trio.TooSlowError:
        raise TrialFailed("hang", f"it was not ready within {seconds:.0f} s") from None


async def _spawn(engine: Engine, args: Sequence[str], model: Path, children: Children) -> Trial:
    port = free_port()
    key = secrets.token_urlsafe(24)
    argv = (
        *engine.command,
        "--model", str(model),
        "--host", LOOPBACK,
        "--port", str(port),
        "--threads", str(engine_threads()),
        "--ctx-size", CONTEXT,
        "--parallel", "1",
        "-lv", VERBOSITY,
        *engine.args,
        *args,
    )  # fmt: skip
    # A crash is not looked at with a debugger, which ggml starts where there is one.
    env = inherited_env() | NO_DEBUGGER | {"LLAMA_API_KEY": key}
    try:
        child = await children.spawn(argv, env)
    except (OSError, ValueError) as cause:
        raise TrialFailed("damaged", f"it cannot be started: {cause}") from None
    return Trial(Address(LOOPBACK, port, key, engine.name), child)


def _shown(answer: bytes) -> str:
    return printable(re.sub(r"\s+", " ", answer[:400].decode("utf-8", "replace")), 200)
