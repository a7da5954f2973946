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

from appliance.core.engine import Engine
from appliance.core.engine_output import explanation, printable
from appliance.core.rpc_workers import NO_DEBUGGER
from appliance.errors import Busy, UpstreamFailed
from appliance.features.engines.core import trials
from appliance.features.engines.core.listing import Fault
from appliance.fleet.child import Readiness
from appliance.platform.children import Child, Children, describe_status, inherited_env
from appliance.platform.machine import engine_threads
from appliance.platform.ports import LOOPBACK, free_port
from appliance.platform.process import Command, LineSink, before_end, open_process, text_of
from appliance.upstream.client import Address, HttpCall

CONTEXT = "1024"  # tokens: of the known prompts, and of those that measure, none is longer
VERBOSITY = "4"  # from here on llama-server says which devices and buffers it uses
PORT_ATTEMPTS = 3
FIRST_LINES, LAST_LINES = 400, 200  # lines that are kept: where it says what it uses, and how it ended
MAX_LINE = 2000  # bytes of a line that are kept
END_TIME = 2.0  # seconds for a process to exit after its connection breaks; it may be writing a crash report
PIPE_TIME = 0.5  # seconds to wait for the end of the output, which a leftover process may hold open
MAX_ANSWER = 4 << 20
NOT_EXECUTED = (126, 127)  # exit statuses of the shell that should have become the engine
JSON_HEADERS = ((b"Content-Type", b"application/json"),)


class TrialFailed(Exception):
    """A test run that shows that an engine does not work here. ``why`` is one line, for people."""

    def __init__(self, fault: Fault, why: str) -> None:
        super().__init__(fault, why)
        self.fault: Fault = fault
        self.why = why


class TrialServer:
    """A server, and what it prints. Owned by `open_trial`, which gives it its process."""

    child: Child

    def __init__(self, address: Address) -> None:
        self.address = address
        self._first: list[str] = []
        self._last: deque[str] = deque(maxlen=LAST_LINES)
        self._cut = LineSink(self._take)
        self._over = trio.Event()

    def lines(self) -> list[str]:
        """The lines that it has printed so far; of a long log the beginning and the end."""
        return [*self._first, *self._last]

    async def read(self, piece: bytes) -> bool:
        """Take a piece of its output. A `Sink`."""
        await self._cut(piece)
        if not piece:
            self._over.set()
        return True

    def _take(self, line: bytes) -> None:
        kept = self._first if len(self._first) < FIRST_LINES else self._last
        kept.append(text_of(line[:MAX_LINE]))

    async def ask(self, path: str, body: object, *, seconds: float) -> bytes:
        """The answer to a POST of ``body`` as JSON. Raises TrialFailed for anything but 200 within ``seconds``."""
        try:
            with trio.fail_after(seconds):
                data = msgspec.json.encode(body)
                async with HttpCall(self.address, "POST", path, JSON_HEADERS, data) as response:
                    answer = await response.read(MAX_ANSWER)
        except trio.TooSlowError:
            raise TrialFailed("hang", f"it did not answer within {seconds:.0f} s") from None
        except (UpstreamFailed, Busy) as cause:
            raise await self._broken(cause) from None
        if response.status != 200:
            shown = printable(re.sub(r"\s+", " ", answer[:400].decode("utf-8", "replace")), 200)
            raise TrialFailed("garbage", f"it answered with status {response.status}: {shown}")
        return answer

    async def _broken(self, cause: UpstreamFailed | Busy) -> TrialFailed:
        """Why a connection broke: mostly because the process ended."""
        status: int | None = None
        with trio.move_on_after(END_TIME):
            status = await self.child.wait()
        if status is None:
            return TrialFailed("crash", f"it runs, but {cause.why if isinstance(cause, UpstreamFailed) else cause}")
        told = await self._end(status, "at work")
        return TrialFailed(trials.fault_of_death(self.lines()[-LAST_LINES:]), told)

    async def wait_ready(self) -> None:
        """Return when it answers, or raise TrialFailed when it ends before."""

        async def answers() -> bool:
            await Readiness(self.address, "/v1/models").wait()
            return True

        if await before_end(self.child, answers):
            return
        status = await self.child.wait()
        told = await self._end(status, "while it loaded")
        fault = trials.fault_of_start(describe_status(status), status not in NOT_EXECUTED, self.lines())
        raise TrialFailed(fault, told)

    async def _end(self, status: int, when: str) -> str:
        """Describe its end, in words. Waits for its last line, but not for long."""
        with trio.move_on_after(PIPE_TIME):
            await self._over.wait()
        told = explanation(self.lines()[-LAST_LINES:])
        return f"{describe_status(status)} {when}" + (f": {told}" if told else "")


@asynccontextmanager
async def open_trial(
    engine: Engine,
    args: Sequence[str],
    model: Path,
    children: Children,
    *,
    seconds: float,
) -> AsyncGenerator[TrialServer]:
    """Start ``engine`` with ``model`` on loopback, with a key of its own; ``args`` name its devices.

    Yields once it answers, within ``seconds``, and kills it on leaving. Raises TrialFailed when it does not get so far;
    a TrialFailed of the block leaves as it is.
    """
    for attempts_left in reversed(range(PORT_ATTEMPTS)):
        port, key, begun = free_port(), secrets.token_urlsafe(24), False
        trial = TrialServer(Address(LOOPBACK, port, key, engine.name))
        command = _command(engine, args, model, port, key)
        try:
            async with open_process(children, command, trial.read, rest=PIPE_TIME) as trial.child:
                try:
                    with trio.fail_after(seconds):
                        await trial.wait_ready()
                except trio.TooSlowError:
                    raise TrialFailed("hang", f"it was not ready within {seconds:.0f} s") from None
                begun = True
                yield trial
                return
        except TrialFailed:
            if begun or not attempts_left or not trials.lost_its_port(trial.lines()):
                raise
        except (OSError, ValueError) as cause:
            if begun:
                raise
            raise TrialFailed("damaged", f"it cannot be started: {cause}") from None


def _command(engine: Engine, args: Sequence[str], model: Path, port: int, key: str) -> Command:
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
    return Command(argv=argv, env=env, stdin=None)
