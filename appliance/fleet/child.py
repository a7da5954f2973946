"""One model process from spawn to reap."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import trio
from msgspec import Struct

from appliance.errors import Busy, UpstreamFailed
from appliance.fleet.launch import Launch
from appliance.platform.children import REAP_TIME, Child, Children, describe_status
from appliance.upstream.client import exchange

STATE_PREFIX = b"cmd_child_to_router:state:"
EXIT_LINE = b"cmd_router_to_child:exit\n"
"""llama-server's child protocol: states on standard output, commands on standard input (b11434)."""

MAX_STATE_LINE = 1 << 20
PIPE_GRACE = 1.0
"""Seconds that a finished process's output may be held open by something it left behind."""
FIRST_POLL = 0.005
POLL = 0.01
"""Seconds between two looks whether a process is ready, and so the longest that it waits for nothing..."""
PATIENT_POLL = 0.001
"""... or this part of the time that it has loaded for, if that is longer: nobody notices it, and servers log less."""
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

    def __init__(self, launch: Launch, log: Callable[[str], None]) -> None:
        self.launch = launch
        self.pid: int | None = None
        self.state = ChildState("loading")
        self.ready_info: msgspec.Raw | None = None
        self._log = log
        self._ready = trio.Event()
        self._stop = trio.Event()
        self._timed_out = False
        self._hurry = False
        self._on_ready: Callable[[], None] | None = None

    def stop(self, *, politely: bool = True) -> None:
        """Ask for the end: politely when the model is loaded and nobody is in a hurry, else at once."""
        self._hurry = self._hurry or not politely
        self._stop.set()

    async def run(self, children: Children, *, on_ready: Callable[[], None]) -> Exited:
        """Spawn, report readiness through ``on_ready``, wait for the end, reap. Cancelling it kills the process group.

        Raises OSError when the process cannot be created.
        """
        self._on_ready = on_ready
        child = await children.spawn(self.launch.argv, self.launch.env)
        self.pid = child.pid
        status: int | None = None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._pump, child)
                async with trio.open_nursery() as watchers:
                    watchers.start_soon(self._poll_until_ready)
                    watchers.start_soon(self._end_when_asked, children, child)
                    watchers.start_soon(self._give_up, child)
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
        if at < 0 or not self.launch.protocol:
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
        """Ask the process itself: the fact is known at most `POLL`, or a thousandth of the load, after it is one."""
        if self.launch.probe is None:
            self._became_ready()
            return
        began = trio.current_time()
        pause = FIRST_POLL
        while not self._ready.is_set():
            with trio.move_on_after(pause):
                await self._ready.wait()
            pause = max(POLL, (trio.current_time() - began) * PATIENT_POLL)
            with trio.move_on_after(POLL_TIMEOUT):
                try:
                    async with exchange(self.launch.address, "GET", self.launch.probe) as response:
                        if response.status == 200:
                            self._became_ready()
                except (UpstreamFailed, Busy):
                    pass  # not listening yet, or no descriptor left to ask with

    async def _give_up(self, child: Child) -> None:
        with trio.move_on_after(self.launch.load_timeout):
            await self._ready.wait()
            return
        self._timed_out = True
        if self.launch.abort_timeout:
            self._stop.set()
        else:
            child.kill()

    async def _end_when_asked(self, children: Children, child: Child) -> None:
        """The polite ways first, each for as long as it is given, then the kill; cancelled by the child's end."""
        await self._stop.wait()
        launch = self.launch
        time = launch.stop_timeout if self._ready.is_set() else launch.abort_timeout
        if time and not self._hurry:
            if launch.protocol:
                await self._say_exit(child, time / 2)
                time /= 2
            with trio.move_on_after(time):
                if not await self._run_stop_command(children, child):
                    child.terminate()
                await trio.sleep_forever()
        child.kill()

    async def _say_exit(self, child: Child, time: float) -> None:
        try:
            with trio.move_on_after(time):
                await child.stdin.send_all(EXIT_LINE)
                await trio.sleep_forever()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # it takes no commands

    async def _run_stop_command(self, children: Children, child: Child) -> bool:
        """Run the model's own stop command to its end; False when there is none, or it cannot be started.

        Its output goes to the model's log. What it does to the process shows there, not in its exit status.
        """
        argv = self.launch.stop_argv(child.pid)
        if not argv:
            return False
        try:
            stopper = await children.spawn(argv, self.launch.env)
        except OSError as error:
            self._log(f"cmdStop cannot be run: {error}")
            return False
        status: int | None = None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._pump, stopper)
                status = await stopper.wait()
                nursery.cancel_scope.deadline = trio.current_time() + PIPE_GRACE
        finally:
            with trio.move_on_after(REAP_TIME, shield=True):
                if status is None:
                    stopper.kill()
                    await stopper.wait()
                await stopper.stdin.aclose()
                await stopper.output.aclose()
        if status:
            self._log(f"cmdStop ended with {describe_status(status)}; stopping the process itself")
        return status == 0


_decode_state = msgspec.json.Decoder(ChildState).decode
