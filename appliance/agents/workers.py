"""The limits on the runs of one model: slots, a bounded queue, and a lock after too many restarts."""

from __future__ import annotations

from collections import deque
from typing import Literal

from msgspec import Struct

from appliance.core.config.types import RunsConfig
from appliance.errors import NoSlotAvailable, WorkerFailed

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
