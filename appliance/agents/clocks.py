"""The three clocks of one turn of a run: connect, head, silence. They do not count queueing and loading."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import trio
from msgspec import Struct

from appliance.core.runs.messages import CancelAsked, FailReason, TurnFailed
from appliance.errors import (
    ApplianceError,
    ModelFailedToStart,
    ModelUnloaded,
    PeerFailed,
    RequestCancelled,
    ShuttingDown,
    UpstreamFailed,
    WorkerFailed,
)
from appliance.upstream.wire import ConnectFailed


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
