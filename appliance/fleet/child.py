"""One model process from spawn to reap. From outside it is ready once it answers a GET with 200."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

import msgspec
import trio
from msgspec import Struct

from appliance.core.lenient_json import UNREADABLE
from appliance.core.llama.buffers import Buffers
from appliance.core.records.flood import WINDOW, FloodGate
from appliance.errors import Busy, UpstreamFailed
from appliance.fleet.launch import Launch
from appliance.platform.children import Child, Children, describe_status
from appliance.platform.ports import foreign_holder, listens
from appliance.platform.process import PIECE, Command, LineSink, open_process, text_of
from appliance.trio_parts import beside
from appliance.upstream.client import Address, HttpCall

FIRST_LOOK = 0.005
PAUSE = 0.007
"""Seconds between two looks, and so the longest that a ready process waits for nothing..."""
PATIENT_PAUSE = 0.001
"""... or this part of the time that it has loaded for, if that is longer: nobody notices it, and servers log less."""
LOOK_TIME = 0.5
"""Seconds after which a look without an answer gets company: one that is never answered must not hide the next."""


FOREIGN = (
    "port {port} is held by {holder}, and not by the process of the model's command or one that it has started; stop "
    "the other program, change startPort or the port, or set compat.foreignPort if the command starts a container or "
    "a service"
)

log = logging.getLogger(__name__)
STATE_PREFIX = b"cmd_child_to_router:state:"
EXIT_LINE = b"cmd_router_to_child:exit\n"
"""llama-server's child protocol: states on standard output, commands on standard input (b11434)."""
PIPE_GRACE = 1.0
"""Seconds that a finished process's output may be held open by something it left behind."""
WORDS_TIME = 0.25
"""Seconds in which an engine that answers already is to say what it has loaded; it does within a millisecond."""
MOST_PIECES = 16
"""Pieces of output that are read at once."""
FLOOD_PAUSE = 0.005
"""Seconds between two reads of a flood. A process that prints over 13 MB a second has to wait for them."""
LINE_PAUSE = 0.02
"""Seconds between two reads of what a process that is ready prints."""
KILL_TIME = 1.0
"""Seconds that the rest of a killed process group is waited for."""


async def unanswered(address: Address, path: str, seconds: float) -> str:
    """Ask a server that is ready whether it lives: any answer will do. Return why there was none; empty: it lives."""
    with trio.move_on_after(seconds):
        try:
            async with HttpCall(address, "GET", path):
                return ""
        except Busy:
            return ""  # this program has no descriptor left, which says nothing of the server
        except UpstreamFailed as cause:
            return f"GET {path} was not answered: {cause.why}"
    return f"GET {path} was not answered within {seconds:g} s"


class Readiness:
    """Looks at one server until it is ready. ``last`` says what the latest finished look saw, for an error message."""

    def __init__(self, address: Address, path: str, foreign: Callable[[], Awaitable[str | None]] | None = None) -> None:
        """``foreign`` names another program that answered instead of the server, None where there is none."""
        self.last = ""
        self._foreign = foreign
        self._warned = False
        self._address = address
        self._path = path
        self._ready = trio.Event()

    async def wait(self) -> None:
        """Return when the server has answered 200.

        A server may answer slowly as well as swallow what it is asked before it is ready. So the first look that takes
        long is left to itself for as long as it takes, and the others, each of which gets `LOOK_TIME`, go on beside it.
        """
        async with beside() as nursery:
            nursery.start_soon(self._look_again_and_again, nursery)
            await self._ready.wait()

    async def _look_again_and_again(self, nursery: trio.Nursery) -> None:
        began = trio.current_time()
        pause = FIRST_LOOK
        patient: trio.Event | None = None
        while True:
            await trio.sleep(pause)
            pause = max(PAUSE, (trio.current_time() - began) * PATIENT_PAUSE)
            answered, scope = trio.Event(), trio.CancelScope()
            nursery.start_soon(self._look, answered, scope)
            with trio.move_on_after(LOOK_TIME):
                await answered.wait()
            if answered.is_set():
                continue
            # At most one look waits without a limit. A server that answers slowly needs that one, or no look would ever
            # be answered. A server that swallows its first requests needs the others. If all were patient, each half
            # second would add a connection that a loading server has to hold.
            if patient is None or patient.is_set():
                patient = answered
            else:
                scope.cancel()

    async def _look(self, answered: trio.Event, scope: trio.CancelScope) -> None:
        self.last = self.last or f"GET {self._path} was not answered"
        with scope:
            try:
                async with HttpCall(self._address, "GET", self._path) as response:
                    if response.status == 200 and await self._is_foreign():
                        return
                    self.last = f"GET {self._path} was answered with status {response.status}"
                    if response.status == 200:
                        self._ready.set()
            except (UpstreamFailed, Busy) as cause:  # not listening yet, or no descriptor left to ask with
                self.last = cause.why if isinstance(cause, UpstreamFailed) else str(cause)
            finally:
                answered.set()
        if scope.cancelled_caught:
            self.last = f"GET {self._path} was not answered"

    async def _is_foreign(self) -> bool:
        """Report at once whether another program has the server's port."""
        if self._foreign is None or (holder := await self._foreign()) is None:
            return False
        self.last = FOREIGN.format(port=self._address.port, holder=holder)
        if not self._warned:
            self._warned = True
            log.warning("model '%s' is not used: %s", self._address.label, self.last)
        return True


class ChildState(Struct, frozen=True):
    """The state that a child reports: ``loading``, ``ready``, ``sleeping``; ``payload`` is llama-server's JSON."""

    state: str
    payload: msgspec.Raw = msgspec.Raw(b"null")


class Exited(Struct, frozen=True):
    """The end of a model process. ``was_ready`` tells a failed start from a later death."""

    status: int
    was_ready: bool
    timed_out: bool = False
    asked: bool = False
    """It was asked to end, or killed, before it did."""
    last_look: str = ""
    """The result of the last readiness check that came in time."""


class ModelProcess:
    """Runs one process for one model; `run` owns it. The rest is for the fleet to read and to ask for the end."""

    def __init__(self, launch: Launch, log: Callable[[str], None], lose: Callable[[int], None]) -> None:
        """``log`` takes each line of its output, ``lose`` how many lines of a flood were dropped."""
        self.launch = launch
        self.pid: int | None = None
        self.state = ChildState("loading")
        self.ready_info: msgspec.Raw | None = None
        self.buffers = Buffers()
        """The memory that it reports as allocated. Complete soon after it is ready: an engine may log in a thread of
        its own.
        """
        self._log = log
        self._lose = lose
        self._child: Child | None = None
        self._gate = FloodGate(STATE_PREFIX)
        self._gate.is_open = True  # until it is ready: a load has many lines, and some of them tell the memory
        self._held = trio.Event()
        foreign = self._foreign_holder if launch.own_port else None
        self._readiness = Readiness(launch.address, launch.probe, foreign) if launch.probe is not None else None
        self._ready = trio.Event()
        self._stop = trio.Event()
        self._ending = trio.Event()
        """It has been asked to end, or has: its last lines do not wait, and the end does not wait for them."""
        self._lingering = trio.CancelScope()
        self._command_ended: trio.Event | None = None
        self._timed_out = False
        self._last_look = ""
        self._hurry = False
        self._notice = 0.0
        self.asked = False
        """It has been asked to end."""
        self._tells = False
        self._on_ready: Callable[[], None] | None = None

    @property
    def says_more(self) -> bool:
        """It answers, and is about to say what it has loaded: its words come by another way than its answers."""
        return self._tells and self.ready_info is None

    def stop(self, *, politely: bool = True, notice: float = 0.0) -> None:
        """Ask for the end: politely when the model is loaded and nobody is in a hurry.

        Otherwise an engine is killed, and a configured server gets `Launch.abort_timeout` at most. ``notice`` are
        seconds in which the end of a process that may be dying already is noticed before it is asked.
        """
        self._hurry = self._hurry or not politely
        self._notice = notice
        self._stop.set()
        self._ending.set()

    async def run(self, children: Children, *, on_ready: Callable[[], None]) -> Exited:
        """Spawn, report readiness through ``on_ready``, wait for the end, reap. Cancelling it kills the process group.

        Raises OSError, or ValueError, when the process cannot be created.
        """
        self._on_ready = on_ready
        stdin = None if self.launch.protocol else b""  # there is nobody to type
        command = Command(argv=self.launch.argv, env=self.launch.env, stdin=stdin)
        async with (
            open_process(children, command, self._take, rest=PIPE_GRACE) as child,
            trio.open_nursery() as watchers,
        ):
            self._child, self.pid = child, child.pid
            watchers.start_soon(self._watch_readiness)
            watchers.start_soon(self._end_when_asked, children, child)
            watchers.start_soon(self._give_up, child)
            watchers.start_soon(self._release_held)
            # `wait` would kill the rest of the group at once. A wrapper may end before the server that it started, and
            # that has the same time to end politely.
            status = await child.wait_exit()
            self._ending.set()
            if self._stop.is_set():
                await self._linger(child)
            watchers.cancel_scope.cancel()
        return Exited(status, self._on_ready is None, self._timed_out, self.asked, self._last_look)

    async def _linger(self, child: Child) -> None:
        """A wrapper may end before the server that it runs, and a stop command after it; both have until the kill."""
        with self._lingering:
            await child.wait_group()
            if self._command_ended is not None:
                await self._command_ended.wait()

    def _became_ready(self) -> None:
        """Tell the fleet once; later ready lines are wake-ups from sleep. What is being stopped is too late."""
        if self._on_ready is not None and not self._stop.is_set():
            on_ready, self._on_ready = self._on_ready, None
            on_ready()
            self._ready.set()
            self._gate.is_open = False

    def catch_up(self, *, held: bool) -> None:
        """Log what it has printed by now, and with ``held`` what is held of a flood; the pump may not have come to it.

        A process prints its words about an answer before it sends that. A client with the answer may look for them.
        """
        for _ in range(MOST_PIECES):
            if self._child is None or not (piece := self._child.printed(PIECE)):
                break
            self._log_lines(partial(self._gate.feed, piece, trio.current_time()))
        if held:
            self._log_lines(partial(self._gate.release, math.inf))
        elif self._gate.is_holding:
            self._held.set()

    async def _take(self, piece: bytes) -> bool:
        """A piece of its output. It always wants more."""
        self._log_lines(partial(self._gate.feed, piece, trio.current_time()))
        # Most of the price is the wake-up for every few lines: llama-server prints nine about a request. Meanwhile the
        # pipe fills (64 KiB on Linux); `catch_up` reads it for a client.
        if self._gate.is_holding:
            self._held.set()
            await trio.sleep(FLOOD_PAUSE)
        elif self._ready.is_set():
            with trio.move_on_after(LINE_PAUSE):
                await self._ending.wait()
        return True

    async def _release_held(self) -> None:
        """A flood may end in the middle of a window, and nothing more come."""
        while True:
            await self._held.wait()
            self._held = trio.Event()
            while self._gate.is_holding:
                await trio.sleep(WINDOW)
                self._log_lines(partial(self._gate.release, trio.current_time()))

    def _log_lines(self, taken: Callable[[], list[bytes]]) -> None:
        before = self._gate.lost
        lines = taken()
        if lost := self._gate.lost - before:
            self._lose(lost)
        for line in lines:
            self._line(line)

    def _line(self, line: bytes) -> None:
        at = line.find(STATE_PREFIX)  # another thread's unfinished log text may stand in front of it
        if at < 0 or not self.launch.protocol:
            text = text_of(line)
            if self.buffers.read(text):
                self._log(text)
            return
        try:
            state = _decode_state(line[at + len(STATE_PREFIX) :])
        except UNREADABLE:
            self._log(text_of(line))
            return
        self.state, self._tells = state, True
        if state.state == "ready":
            if state.payload != b"null":
                self.ready_info = state.payload
            self._became_ready()

    async def _watch_readiness(self) -> None:
        """Ask the process itself, unless it says so first."""
        if self._readiness is None:
            self._became_ready()
            return
        async with beside(partial(self._ask_whether_ready, self._readiness)):
            await self._ready.wait()

    async def _ask_whether_ready(self, readiness: Readiness) -> None:
        """An engine that prints its states gets a moment to report itself ready, with the details of the load."""
        await readiness.wait()
        if self._tells:
            with trio.move_on_after(WORDS_TIME):
                await self._ready.wait()
        self._became_ready()

    async def _foreign_holder(self) -> str | None:
        """Another program may have taken the port before the command did; it would get the model's prompts."""
        pid, port = self.pid, self.launch.address.port
        if pid is None or listens(pid, port):
            return None
        return await trio.to_thread.run_sync(foreign_holder, pid, port)

    async def _give_up(self, child: Child) -> None:
        with trio.move_on_after(self.launch.load_timeout):
            await self._ready.wait()
            return
        self._timed_out = True
        self._last_look = self._readiness.last if self._readiness else ""
        # An engine that still loads has nothing to lose, and is killed. A configured command may be the client of a
        # container, and a kill would end the client and leave the container: it is asked first.
        if self.launch.abort_timeout:
            self._stop.set()
        else:
            child.kill()

    async def _end_when_asked(self, children: Children, child: Child) -> None:
        """Try the polite ways first, each for its time, then kill. The child's end cancels this."""
        await self._stop.wait()
        await trio.sleep(self._notice)
        self.asked = True
        launch = self.launch
        time = launch.stop_timeout if self._ready.is_set() else launch.abort_timeout
        time = min(time, launch.abort_timeout) if self._hurry else time
        if time:
            # An engine gets half of the time for its exit line and half for SIGTERM. An engine that ignores the line is
            # still asked in the usual way before it is killed.
            if launch.protocol:
                await self._send_exit(child, time / 2)
                time /= 2
            with trio.move_on_after(time):
                await self._ask_politely(children, child)
                await trio.sleep_forever()
        child.kill()
        await trio.sleep(KILL_TIME)
        self._lingering.cancel()

    async def _send_exit(self, child: Child, time: float) -> None:
        try:
            with trio.move_on_after(time):
                await child.stdin.send_all(EXIT_LINE)
                await trio.sleep_forever()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # it takes no commands

    async def _ask_politely(self, children: Children, child: Child) -> None:
        """By the model's own command, or by a signal where there is none, or it fails."""
        stopped = False
        if argv := self.launch.stop_argv(child.pid):
            self._command_ended = trio.Event()
            try:
                stopped = await _run_stop_command(children, argv, self.launch.env, self._log)
            finally:
                self._command_ended.set()
        if not stopped:
            child.terminate()


async def _run_stop_command(
    children: Children, argv: Sequence[str], env: Mapping[str, str], log: Callable[[str], None]
) -> bool:
    """Run a model's own command to stop it (llama-swap's ``cmdStop``) to its end, its output into the log.

    False: it failed. Cancelling kills it.
    """
    lines = LineSink(lambda line: log(text_of(line)))
    try:
        async with open_process(children, Command(argv=argv, env=env), lines, rest=PIPE_GRACE) as child:
            status = await child.wait()
    except (OSError, ValueError) as error:
        log(f"cmdStop cannot be run: {error}")
        return False
    except trio.Cancelled:
        log("cmdStop has not ended in time, and is killed")
        raise
    if status:
        log(f"cmdStop ended with {describe_status(status)}; stopping the process itself")
    return status == 0


_decode_state = msgspec.json.Decoder(ChildState).decode
