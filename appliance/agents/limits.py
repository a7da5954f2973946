"""The limits on runs: slots, a bounded queue and a lock after too many restarts for each model; time for turns and
tools.

A turn has three clocks: connect, head and silence. They do not count queueing and loading. A tool is used within its
time, and with an answer for every failure.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections import deque
from collections.abc import Callable
from typing import Literal

import trio
from msgspec import Struct

from appliance.core.config.types import RunsConfig
from appliance.core.runs.messages import Call, CancelAsked, FailReason, ToolFinished, TurnFailed
from appliance.core.tools.specs import ToolContext
from appliance.errors import (
    ApplianceError,
    ModelFailedToStart,
    ModelUnloaded,
    NoSlotAvailable,
    PeerFailed,
    RequestCancelled,
    ShuttingDown,
    UpstreamFailed,
    WorkerFailed,
)
from appliance.tools.box import Toolbox
from appliance.upstream.connect import ConnectFailed


class Limits(Struct, frozen=True, kw_only=True):
    """In seconds."""

    connect: float
    headers: float
    stall: float


Phase = Literal["waiting", "connect", "headers", "stall"]


class Clocks:
    """Cancels ``scope`` when a phase takes too long; the `Watch` of the turn's request."""

    def __init__(self, limits: Limits, admit: Callable[[str | None], int | None]) -> None:
        self.scope = trio.CancelScope()
        self.phase: Phase = "waiting"
        self.model: str | None = None
        """The model whose process answers; None while the turn waits, and for a peer's."""
        self.pid: int | None = None
        self.condemned: str | None = None
        """The reason why the process was ended under this turn."""
        self._limits = limits
        self._admit = admit

    def granted(self, model: str | None) -> None:
        """Raises WorkerFailed if runs on this model are refused."""
        self.pid = self._admit(model)
        self.model = model
        self._begin("connect", self._limits.connect)

    def connected(self) -> None:
        self._begin("headers", self._limits.headers)

    def received(self) -> None:
        """The head, or any byte behind it, has come."""
        self._begin("stall", self._limits.stall)

    def stop(self) -> None:
        """Nothing is expected any more."""
        self.scope.deadline = math.inf

    def _begin(self, phase: Phase, seconds: float) -> None:
        self.phase = phase
        self.scope.deadline = trio.current_time() + seconds

    def overdue(self) -> TurnFailed:
        """Return the meaning of the scope's end."""
        limits = self._limits
        match self.phase:
            case "headers":
                return _failed("headers_timeout", f"the engine's answer did not begin within {limits.headers:g} s")
            case "stall":
                return _failed("stall_timeout", f"the engine sent nothing for {limits.stall:g} s")
            case "connect" | "waiting":
                return _failed("connect_failed", f"there was no connection to the engine within {limits.connect:g} s")

    def failure(self, error: ApplianceError, *, stopped: bool) -> TurnFailed | CancelAsked:
        """Return the meaning of a request's error for the run. ``stopped``: the process was ended on purpose."""
        if self.condemned is not None:
            return _failed("worker_restarted", f"the engine was restarted: {self.condemned}")
        match error:
            case ConnectFailed():
                return _failed("connect_failed", str(error))
            case PeerFailed() if self.phase == "connect":
                return _failed("connect_failed", str(error))
            case UpstreamFailed() if stopped:
                return _failed("worker_restarted", f"the engine was stopped on request: {error}")
            case UpstreamFailed() | PeerFailed() | ModelFailedToStart():
                return _failed("server_died", str(error))
            case ModelUnloaded() | ShuttingDown() | WorkerFailed():
                return _failed("worker_restarted", str(error))
            case RequestCancelled():
                return CancelAsked(str(error))
            case _:
                return _failed("unknown_error", str(error))


def _failed(reason: FailReason, detail: str) -> TurnFailed:
    return TurnFailed(reason=reason, detail=detail)


WorkerState = Literal["running", "ready", "failed", "stopped"]


class WorkerStatus(Struct, frozen=True, kw_only=True):
    """One model as runs see it: its process is running, ready, stopped, or failed too often."""

    model: str
    state: WorkerState
    slots: int
    running: int
    waiting: int
    restarts: int
    """Within the window."""
    detail: str | None = None


class Worker:
    """The runs of one model. Synchronous: no decision waits."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.running: set[str] = set()
        self.waiting: deque[str] = deque()
        self.failure: WorkerFailed | None = None
        self._restarts: deque[float] = deque()
        self._last: object = None

    def enter(self, run: str, settings: RunsConfig) -> bool:
        """Take a slot, or else a place in the queue: False. Raises NoSlotAvailable and WorkerFailed."""
        self.check()
        if len(self.running) < settings.slots and not self.waiting:
            self.running.add(run)
            return True
        if len(self.waiting) >= settings.queue:
            raise NoSlotAvailable(self.model, len(self.running), len(self.waiting))
        self.waiting.append(run)
        return False

    def leave(self, run: str) -> None:
        """Give back a slot, or a place in the queue."""
        self.running.discard(run)
        if run in self.waiting:
            self.waiting.remove(run)

    def next(self, slots: int) -> str | None:
        """Give a free slot to the run that has waited longest."""
        if not self.waiting or len(self.running) >= slots:
            return None
        run = self.waiting.popleft()
        self.running.add(run)
        return run

    def check(self) -> None:
        """Raises WorkerFailed."""
        if self.failure is not None:
            raise self.failure.with_traceback(None)

    def restarts(self, now: float, window: float) -> int:
        """Return the number of restarts within the window."""
        while self._restarts and self._restarts[0] <= now - window:
            self._restarts.popleft()
        return len(self._restarts)

    def restarted(self, process: object, now: float, settings: RunsConfig) -> bool:
        """Note the end of ``process``, any token for it: runs that shared it count once. Returns True for one restart
        too many.
        """
        if process is not None and process == self._last:
            return False
        self._last = process
        self._restarts.append(now)
        return self.restarts(now, settings.restart_window) > settings.max_restarts

    def reset(self) -> None:
        """Forget all failures."""
        self.failure = None
        self._restarts.clear()


MAX_PARALLEL = 16
"""Number of tools of one turn at once, each of which may be a process; the model decides how many it calls."""

log = logging.getLogger(__name__)


async def use_tool(toolbox: Toolbox, call: Call, timeout: float) -> ToolFinished:
    """A tool that reports an error has been used; one that could not be used is a failure."""
    began = trio.current_time()
    content, failure = "", None
    try:
        with trio.move_on_after(timeout) as patience:
            content = (await toolbox.call(call.name, call.arguments.encode(), ToolContext())).text
        if patience.cancelled_caught:
            failure = f"it took longer than {timeout:g} s"
    except ApplianceError as error:
        failure = str(error)
    except Exception:
        bug = secrets.token_hex(4)
        log.exception("internal error %s in tool '%s'; this is a bug", bug, call.name)
        failure = f"internal error {bug}; the log says more"
    seconds = trio.current_time() - began
    return ToolFinished(call_id=call.id, content=content, failure=failure, seconds=round(seconds, 6))
