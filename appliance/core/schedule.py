"""Which model processes run: events in, effects out.

Theory. A model is *absent*, STARTING, READY, DRAINING (asked to go, still leased) or STOPPING. A process exists in
every state but absent, and at most ``capacity`` processes exist. A caller holds a *ticket*; a ticket is queued (no
process of its model can take it yet), waiting (its model is starting), leased, or ended. Rules:

1. A ticket for a READY model is granted at once; for a STARTING one it waits for that start; otherwise it queues.
2. Tickets for the same model share one queue entry and one start.
3. Entries are served first come, first served. An entry starts when a process slot is free; else it waits for a slot
   that is already being freed and not spoken for; else the least recently used READY model without leases is stopped
   for it. When there is none, it and all entries behind it wait.
4. A start that succeeds grants all its tickets in the same step, so nothing can be evicted between "ready" and the
   first byte. A start that fails refuses them all; the next request tries again.
5. A leased model is stopped only when `expire` says that its leases have had their time after `unload`.
6. Every ticket ends exactly once: by `release`, or by a Refuse (after which `release` does nothing).

All methods are synchronous and total; illegal events raise RuntimeError and change nothing. Capacity and eviction order
are those of llama-server's router (b11434); the atomic hand-over is ours.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from msgspec import Struct

from appliance.errors import ApplianceError, ModelUnloaded, ShuttingDown


class State(Enum):
    """The life of one model process."""

    STARTING = "loading"
    READY = "loaded"
    DRAINING = "draining"
    STOPPING = "stopping"


class Start(Struct, frozen=True):
    """Spawn a process for this model; answer with `Schedule.ready` or `Schedule.exited`."""

    model: str


class Stop(Struct, frozen=True):
    """End the process of this model; answer with `Schedule.exited`."""

    model: str


class Drain(Struct, frozen=True):
    """The model is asked to go but leased: call `Schedule.expire` when its leases have had long enough."""

    model: str


class Grant(Struct, frozen=True):
    """The holder of this ticket may use the model until it releases the ticket."""

    ticket: int
    model: str


class Refuse(Struct, frozen=True):
    """The holder of this ticket gets this error instead of a model."""

    ticket: int
    error: ApplianceError


Effect = Start | Stop | Drain | Grant | Refuse


class _Process:
    """One process of one model: its state, who waits for it, who uses it, and when it was last used."""

    def __init__(self, waiting: list[int]) -> None:
        self.state = State.STARTING
        self.waiting = waiting
        self.leases: set[int] = set()
        self.last_used = 0


class Schedule:
    """The state of the fleet and the rules above. ``capacity`` 0 means unlimited."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._processes: dict[str, _Process] = {}
        self._queue: dict[str, list[int]] = {}  # insertion order is the order of service
        self._holders: dict[int, str] = {}  # every ticket that has not ended -> its model
        self._clock = 0
        self._closed = False

    # ---- what is -----------------------------------------------------------------------------------------------------

    def state(self, model: str) -> State | None:
        """The state of the model's process, None when it has none."""
        process = self._processes.get(model)
        return process.state if process else None

    def leases(self, model: str) -> int:
        """How many tickets use the model now."""
        process = self._processes.get(model)
        return len(process.leases) if process else 0

    def waiting(self, model: str) -> int:
        """How many tickets wait for the model, queued or starting."""
        process = self._processes.get(model)
        return len(self._queue.get(model, ())) + (len(process.waiting) if process else 0)

    def models(self) -> Iterable[str]:
        """Every model that has a process or a queue entry."""
        return self._processes.keys() | self._queue.keys()

    # ---- what happens ------------------------------------------------------------------------------------------------

    def request(self, ticket: int, model: str) -> list[Effect]:
        """Somebody wants the model. Tickets are never reused."""
        if ticket in self._holders:
            raise RuntimeError(f"ticket {ticket} is in use")
        if self._closed:
            return [Refuse(ticket, ShuttingDown())]
        self._holders[ticket] = model
        process = self._processes.get(model)
        if process is not None and process.state is State.READY:
            return self._grant(process, model, [ticket])
        if process is not None and process.state is State.STARTING:
            process.waiting.append(ticket)
            return []
        self._queue.setdefault(model, []).append(ticket)
        return self._serve_queue()

    def release(self, ticket: int) -> list[Effect]:
        """The holder is done, gives up waiting, or was refused; total over every state of a ticket."""
        model = self._holders.pop(ticket, None)
        if model is None:
            return []
        process = self._processes.get(model)
        if process is not None and ticket in process.leases:
            process.leases.remove(ticket)
            process.last_used = self._tick()
            if process.state is State.DRAINING and not process.leases:
                process.state = State.STOPPING
                return [Stop(model)]
        elif process is not None and ticket in process.waiting:
            process.waiting.remove(ticket)  # the start goes on: the next request will want it
        elif ticket in self._queue.get(model, ()):
            self._queue[model].remove(ticket)
            if not self._queue[model]:
                del self._queue[model]
        return self._serve_queue()

    def ready(self, model: str) -> list[Effect]:
        """The process started for the model can serve."""
        process = self._processes.get(model)
        if process is None or process.state is State.READY:
            raise RuntimeError(f"{model} is not starting")
        if process.state is not State.STARTING:
            return []  # asked to stop while it was loading
        process.state = State.READY
        waiting, process.waiting = process.waiting, []
        process.last_used = self._tick()
        return [*self._grant(process, model, waiting), *self._serve_queue()]

    def exited(self, model: str, error: ApplianceError) -> list[Effect]:
        """The model's process is gone; ``error`` is what those who waited for its start are told."""
        process = self._processes.pop(model, None)
        if process is None:
            raise RuntimeError(f"{model} has no process")
        for ticket in process.leases:
            del self._holders[ticket]
        return [*self._refuse(process.waiting, error), *self._serve_queue()]

    def unload(self, model: str) -> list[Effect]:
        """Somebody wants the model gone: waiters are refused, leases may finish, an idle process stops now."""
        effects = self._refuse(self._queue.pop(model, []), ModelUnloaded(model))
        process = self._processes.get(model)
        if process is None or process.state in (State.DRAINING, State.STOPPING):
            return [*effects, *self._serve_queue()]
        effects += self._refuse(process.waiting, ModelUnloaded(model))
        process.waiting = []
        if process.leases:
            process.state = State.DRAINING
            return [*effects, Drain(model)]
        process.state = State.STOPPING
        return [*effects, Stop(model)]

    def expire(self, model: str) -> list[Effect]:
        """The leases of a draining model have had their time: stop it under them."""
        process = self._processes.get(model)
        if process is None or process.state is not State.DRAINING:
            return []
        process.state = State.STOPPING
        return [Stop(model)]

    def close(self) -> list[Effect]:
        """No new work: everything that waits is refused, leases may finish; processes stop by `unload`."""
        self._closed = True
        waiting = [ticket for tickets in self._queue.values() for ticket in tickets]
        self._queue.clear()
        for process in self._processes.values():
            waiting += process.waiting
            process.waiting = []
        return self._refuse(waiting, ShuttingDown())

    # ---- the rules ---------------------------------------------------------------------------------------------------

    def _serve_queue(self) -> list[Effect]:
        """Rule 3."""
        effects: list[Effect] = []
        free = self.capacity - len(self._processes) if self.capacity else len(self._queue)
        freeing = sum(p.state in (State.DRAINING, State.STOPPING) for p in self._processes.values())
        for model in list(self._queue):
            if model in self._processes:  # its last process is still going; a slot comes with that exit at the latest
                freeing = max(0, freeing - 1)
            elif free > 0:
                free -= 1
                self._processes[model] = _Process(self._queue.pop(model))
                effects.append(Start(model))
            elif freeing > 0:
                freeing -= 1
            elif victim := self._victim():
                self._processes[victim].state = State.STOPPING
                effects.append(Stop(victim))
            else:
                break
        return effects

    def _victim(self) -> str | None:
        idle = [(p.last_used, m) for m, p in self._processes.items() if p.state is State.READY and not p.leases]
        return min(idle)[1] if idle else None

    def _grant(self, process: _Process, model: str, tickets: list[int]) -> list[Effect]:
        process.leases.update(tickets)
        if tickets:
            process.last_used = self._tick()
        return [Grant(ticket, model) for ticket in tickets]

    def _refuse(self, tickets: list[int], error: ApplianceError) -> list[Effect]:
        for ticket in tickets:
            del self._holders[ticket]
        return [Refuse(ticket, error) for ticket in tickets]

    def _tick(self) -> int:
        self._clock += 1
        return self._clock
