"""One model process from spawn to reap."""

from __future__ import annotations

import os
import secrets
import socket
import sys
from collections.abc import Callable, Sequence

import msgspec
import trio
from msgspec import Struct

from appliance.errors import Busy, UpstreamFailed
from appliance.fleet.command import LOOPBACK
from appliance.platform.children import REAP_TIME, Child, Children
from appliance.platform.env import child_env
from appliance.upstream.client import Address, exchange

STATE_PREFIX = b"cmd_child_to_router:state:"
EXIT_LINE = b"cmd_router_to_child:exit\n"
"""llama-server's child protocol: states on standard output, commands on standard input (b11434)."""

MAX_STATE_LINE = 1 << 20
PIPE_GRACE = 1.0
"""Seconds that a finished process's output may be held open by something it left behind."""
FIRST_POLL = 0.005
SLOWEST_POLL = 0.25
POLL_TIMEOUT = 2.0


class ChildState(Struct, frozen=True):
    """What a child said of itself: ``loading``, ``ready``, ``sleeping``; ``payload`` is llama-server's JSON."""

    state: str
    payload: msgspec.Raw = msgspec.Raw(b"null")


class Exited(Struct, frozen=True):
    """How a model process ended. ``was_ready`` tells a failed start from a later death."""

    status: int
    was_ready: bool
    timed_out: bool = False


class ModelProcess:
    """Runs one process for one model; `run` owns it. The rest is for the fleet to read and to ask for the end."""

    def __init__(
        self, model_id: str, command: Callable[[int], tuple[str, ...]], log: Callable[[str], None], stop_timeout: float
    ) -> None:
        self.model_id = model_id
        self.port = _free_port()
        self.argv: Sequence[str] = command(self.port)
        self.address = Address(LOOPBACK, self.port, secrets.token_urlsafe(24), model_id)
        self.pid: int | None = None
        self.state = ChildState("loading")
        self.ready_info: msgspec.Raw | None = None
        self._log = log
        self._stop_timeout = stop_timeout
        self._ready = trio.Event()
        self._stop = trio.Event()
        self._timed_out = False
        self._hurry = False
        self._on_ready: Callable[[], None] | None = None

    def stop(self, *, politely: bool = True) -> None:
        """Ask for the end: politely when the model is loaded and nobody is in a hurry, else at once."""
        self._hurry = self._hurry or not politely
        self._stop.set()

    async def run(self, children: Children, *, load_timeout: float, on_ready: Callable[[], None]) -> Exited:
        """Spawn, report readiness through ``on_ready``, wait for the end, reap. Cancelling it kills the process group.

        Raises OSError when the process cannot be created.
        """
        self._on_ready = on_ready
        env = child_env(os.environ, frozen=getattr(sys, "frozen", False))
        env["LLAMA_API_KEY"] = self.address.key or ""
        env["LLAMA_SERVER_ROUTER_PORT"] = str(self.port)
        child = await children.spawn(self.argv, env)
        self.pid = child.pid
        status: int | None = None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._pump, child)
                async with trio.open_nursery() as watchers:
                    watchers.start_soon(self._poll_until_ready)
                    watchers.start_soon(self._end_when_asked, child)
                    watchers.start_soon(self._give_up, child, load_timeout)
                    status = await child.wait()
                    watchers.cancel_scope.cancel()
                nursery.cancel_scope.deadline = trio.current_time() + PIPE_GRACE
        finally:
            with trio.move_on_after(REAP_TIME, shield=True):
                if status is None:
                    child.kill()
                    await child.wait()
                await child.stdin.aclose()
                await child.output.aclose()
        assert status is not None
        return Exited(status, self._on_ready is None, self._timed_out)

    def _became_ready(self) -> None:
        """Tell the fleet once; later ready lines are wake-ups from sleep."""
        if self._on_ready is not None:
            on_ready, self._on_ready = self._on_ready, None
            on_ready()
            self._ready.set()

    async def _pump(self, child: Child) -> None:
        """Drain the output for as long as anybody holds it, into the log, and pick out state lines."""
        partial = bytearray()
        while chunk := await child.output.receive_some(65536):
            partial += chunk
            *lines, rest = partial.split(b"\n")
            partial = bytearray(rest)
            for line in lines:
                self._line(bytes(line))
            if len(partial) > MAX_STATE_LINE:
                self._line(bytes(partial))
                partial.clear()
        if partial:
            self._line(bytes(partial))

    def _line(self, line: bytes) -> None:
        at = line.find(STATE_PREFIX)  # another thread's unfinished log text may stand in front of it
        if at < 0:
            self._log(line.decode("utf-8", "replace").rstrip("\r"))
            return
        try:
            state = _decode_state(line[at + len(STATE_PREFIX) :])
        except msgspec.DecodeError:
            self._log(line.decode("utf-8", "replace"))
            return
        self.state = state
        if state.state == "ready":
            if state.payload != b"null":
                self.ready_info = state.payload
            self._became_ready()

    async def _poll_until_ready(self) -> None:
        """Ask the process itself, for engines that print no state lines."""
        pause = FIRST_POLL
        while not self._ready.is_set():
            with trio.move_on_after(pause):
                await self._ready.wait()
            pause = min(pause * 1.5, SLOWEST_POLL)
            with trio.move_on_after(POLL_TIMEOUT):
                try:
                    async with exchange(self.address, "GET", "/v1/models") as response:
                        if response.status == 200:
                            self._became_ready()
                except (UpstreamFailed, Busy):
                    pass  # not listening yet, or no descriptor left to ask with

    async def _give_up(self, child: Child, load_timeout: float) -> None:
        with trio.move_on_after(load_timeout):
            await self._ready.wait()
            return
        self._timed_out = True
        child.kill()

    async def _end_when_asked(self, child: Child) -> None:
        """The exit line, then SIGTERM for what does not know it, then the kill; cancelled by the child's end."""
        await self._stop.wait()
        if self._ready.is_set() and not self._hurry:
            try:
                with trio.move_on_after(self._stop_timeout / 2):
                    await child.stdin.send_all(EXIT_LINE)
                    await trio.sleep_forever()
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass  # it takes no commands
            child.terminate()
            await trio.sleep(self._stop_timeout / 2)
        child.kill()


_decode_state = msgspec.json.Decoder(ChildState).decode


def _free_port() -> int:
    """A loopback port that was free a moment ago; a child that loses the race for it exits, and is started again."""
    with socket.socket() as sock:
        sock.bind((LOOPBACK, 0))
        port: int = sock.getsockname()[1]
        return port
