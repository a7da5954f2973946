"""Which model processes run: events in, effects out.

Theory. A model is *absent*, STARTING, READY, DRAINING (asked to go, still leased) or STOPPING. A process exists in
every state but absent. The processes that stay must satisfy all policies at once: the `Policy` (matrix or groups), the
number of processes, and the memory of each device (`FleetLimits`). A caller holds a *ticket*; a ticket is queued (no
process of its model can take it yet), waiting (its model is starting), leased, or ended. Rules:

1. A ticket for a READY model is granted at once, unless the model yields (rule 5); for a STARTING one it waits for that
   start; otherwise it queues. A model has at most ``terms.limit`` tickets, the queue at most ``limits.queue``.
2. Tickets for the same model share one queue entry and one start.
3. Entries are served by priority, then first come, first served. An entry's plan says which models must go for it:
   those that the policy evicts, and then others in eviction order until there is room (`core.scheduling.policy`). When
   all of them are free they are stopped, and when all are gone the model starts. A leased, starting, pinned or just
   loaded model is never stopped: the entry waits for it, and the others go on meanwhile.
4. An entry may be overtaken only by entries that can run beside it, so swaps that do not collide go on in parallel and
   no entry loses its place to a later one.
5. An entry that has waited for ``terms.patience`` seconds is *overdue*: it goes before all that are not, and the models
   that its plan must evict *yield*: they get no new leases, so a stream of requests to them cannot starve it.
6. A start that succeeds grants all its tickets in the same step, so nothing can be evicted between "ready" and the
   first byte. A start that fails refuses them all; the next request tries again.
7. A leased model is stopped only when `expire` says that its leases have had their time after `unload`.
8. A READY model without leases stops ``terms.ttl`` seconds after its last use, unless it is pinned.
9. Every ticket ends exactly once: by `release`, or by a Refuse (after which `release` does nothing).
10. Limits that shrink stop nothing by themselves (`adopt`). `squeeze` does: READY models without leases, in the order
   of rule 3, until what is loaded fits the memory again; call it anew as leases end.

All methods are synchronous and total; illegal events raise RuntimeError and change nothing. ``now`` is any clock that
does not go back, in seconds; `deadline` tells when the next `tick` can change something. Matrix and groups are
llama-swap's (0bdb3720), number and eviction order llama-server's router (b11434); patience and atomic hand-over ours.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy

from msgspec import Struct, structs

from appliance.core.config.matrix import Eviction
from appliance.core.scheduling.effects import (
    ASKED,
    DEFAULT_TERMS,
    GOING,
    OUTDATED,
    Cause,
    Drain,
    Effect,
    Foresight,
    Grant,
    ProcessState,
    Refuse,
    Start,
    Stop,
    Terms,
)
from appliance.core.scheduling.policy import (
    NO_MEMORY,
    FleetLimits,
    Occupant,
    Policy,
    fits,
    make_fit,
    make_room,
    shortage,
    too_large,
)
from appliance.core.scheduling.waiting import QueueEntry
from appliance.errors import ApplianceError, Busy, ModelFailedToStart, ModelUnloaded, ShuttingDown, TooManyRequests

LOOK_AHEAD = 8
"""Entries that cannot be served yet after which the rest of the queue also waits; bounds the work of one event."""
REMOVED = Cause(rule="removed")
FORESEEN = -1
"""A ticket that nobody holds: the fleet counts from 0."""
QUEUE_RETRY = 5.0
"""Seconds after which a client that found the queue full may try again."""


class _Process:
    """One process of one model: its state, who waits for it, who uses it, and when it was last used."""

    def __init__(self, terms: Terms, waiting: list[int]) -> None:
        self.terms = terms
        self.state = ProcessState.STARTING
        self.waiting = waiting
        self.leases: set[int] = set()
        self.ready_at = math.inf
        self.used_at = 0.0
        self.cause = ASKED
        """Why it is DRAINING."""
        self.turn = 0
        """Counts uses of all models, and so orders them where the clock is too coarse."""

    def idle_at(self) -> float:
        """When it goes if nobody uses it until then."""
        ttl = math.inf if self.terms.pinned else self.terms.ttl or math.inf
        return self.used_at + ttl

    def held(self, now: float) -> bool:
        """It cannot be stopped at this moment."""
        return self.state is ProcessState.STARTING or bool(self.leases) or now < self.ready_at + self.terms.min_loaded


class _Plan(Struct, frozen=True):
    """The models that go for an entry: some by the policy, and more for the room."""

    policy: Eviction
    more: list[str]
    staying: list[Occupant]
    """The occupants among which ``more`` were found."""

    @property
    def going(self) -> list[str]:
        return [*self.policy.evict, *self.more]


class Schedule:
    """The state of the fleet and the rules above."""

    def __init__(self, limits: FleetLimits, policy: Policy) -> None:
        self.limits = limits
        self._policy = policy
        self._processes: dict[str, _Process] = {}
        self._queue: dict[str, QueueEntry] = {}
        self._holders: dict[int, str] = {}  # every ticket that has not ended -> its model
        self._measured: dict[str, Mapping[str, int]] = {}
        self._yielding: frozenset[str] = frozenset()
        self._turn = 0
        self._latest = ""
        self._entries = 0
        self._closed = False

    # ---- what is -----------------------------------------------------------------------------------------------------

    def state(self, model: str) -> ProcessState | None:
        """The state of the model's process, None when it has none."""
        process = self._processes.get(model)
        return process.state if process else None

    def leases(self, model: str) -> int:
        """How many tickets use the model now."""
        process = self._processes.get(model)
        return len(process.leases) if process else 0

    def waiting(self, model: str) -> int:
        """How many tickets wait for the model, queued or starting."""
        process, entry = self._processes.get(model), self._queue.get(model)
        return (len(entry.tickets) if entry else 0) + (len(process.waiting) if process else 0)

    def queued(self) -> int:
        """How many tickets are in the queue."""
        return sum(len(entry.tickets) for entry in self._queue.values())

    def position(self, ticket: int, now: float) -> int | None:
        """The ticket's place in the queue, counted from 1; None when it is not (any more) in it."""
        entry = self._queue.get(self._holders.get(ticket, ""))
        if entry is None or ticket not in entry.tickets:
            return None
        rank = entry.rank(now)
        before = sum(len(other.tickets) for other in self._queue.values() if other.rank(now) < rank)
        return before + list(entry.tickets).index(ticket) + 1

    def awaited(self, ticket: int, now: float) -> list[str]:
        """The models that are loaded before the ticket is served, its own at the end; none if it does not wait."""
        model = self._holders.get(ticket, "")
        process, entry = self._processes.get(model), self._queue.get(model)
        if process is not None and ticket in process.waiting:
            return [model]
        if entry is None or ticket not in entry.tickets:
            return []
        loading = [other for other, process in self._processes.items() if process.state is ProcessState.STARTING]
        rank = entry.rank(now)
        ahead = [other.model for other in self._queue.values() if other.rank(now) < rank and other.model not in loading]
        is_ready = process is not None and process.state is ProcessState.READY
        return [*loading, *ahead, *([] if is_ready else [model])]

    def foresee(self, model: str, terms: Terms, now: float) -> Foresight:
        """Return what a request for the model would do now; nothing changes. A copy is asked, so the two agree."""
        copy = deepcopy(self, {id(self._policy): self._policy})
        effects = copy.request(FORESEEN, model, terms, now)
        if refused := [effect.error for effect in effects if isinstance(effect, Refuse) and effect.ticket == FORESEEN]:
            return Foresight(refused=refused[0])
        goes = tuple(effect.model for effect in effects if isinstance(effect, Stop))
        before = tuple(other for other in copy.awaited(FORESEEN, now) if other != model)
        if (entry := copy._queue.get(model)) is not None and not goes:
            ahead = [other for other in copy._queue.values() if other.rank(now) < entry.rank(now)]
            planned = copy._plan(entry, ahead, now)
            goes = tuple(planned.going) if isinstance(planned, _Plan) else ()
        there = {other: p for other in goes if (p := self._processes.get(other)) and p.state not in GOING}
        goes, held = tuple(there), tuple(other for other, process in there.items() if process.held(now))
        return Foresight(goes=goes, held=held, before=before)

    def takes(self, model: str) -> bool:
        """True if `take` would lease the model."""
        process = self._processes.get(model)
        if process is None or process.state is not ProcessState.READY or self._closed or model in self._yielding:
            return False
        limit = process.terms.limit
        return not limit or len(process.leases) + self.waiting(model) < limit

    def memory(self, model: str) -> Mapping[str, int]:
        """Bytes by device that the model's process counts for; empty without one."""
        process = self._processes.get(model)
        return self._memory(model, process.terms) if process is not None else NO_MEMORY

    def stays_for(self, model: str, now: float = 0.0) -> float:
        """Seconds until the model's process goes if it is not used any more; infinity if it stays (rule 8)."""
        process = self._processes.get(model)
        if process is None:
            return math.inf
        since = now if process.leases else process.used_at
        return max(0.0, process.idle_at() - process.used_at + since - now)

    def taken(self) -> Mapping[str, int]:
        """Bytes by device that all processes together count for."""
        total: dict[str, int] = {}
        for model, process in self._processes.items():
            for device, size in self._memory(model, process.terms).items():
                total[device] = total.get(device, 0) + size
        return total

    def models(self) -> Iterable[str]:
        """Every model that has a process or a queue entry."""
        return self._processes.keys() | self._queue.keys()

    def latest_used(self) -> str:
        """The model used last of those that are loaded or load; if none is, of all; "" before the first use."""
        states = (ProcessState.STARTING, ProcessState.READY)
        running = [(process.turn, model) for model, process in self._processes.items() if process.state in states]
        return max(running, default=(0, self._latest))[1]

    def deadline(self, now: float) -> float:
        """When `tick` is to be called at the latest; infinity when only events can change something."""
        earliest = math.inf
        for entry in self._queue.values():
            # An entry that is overdue already is left out. The tick at that moment has acted on it, and a deadline in
            # the past would make the caller tick without end.
            if now < (at := entry.overdue_at()) < earliest:
                earliest = at
        for process in self._processes.values():
            terms = process.terms
            if process.state is not ProcessState.READY:
                continue
            if not process.leases:
                earliest = min(earliest, process.idle_at())  # `tick` stops what is overdue, so it is not asked again
            if self._queue and now < (at := process.ready_at + terms.min_loaded):
                earliest = min(earliest, at)
        return earliest

    # ---- what happens ------------------------------------------------------------------------------------------------

    def take(self, ticket: int, model: str, now: float = 0.0) -> bool:
        """The first half of rule 1, alone: True where `request` would answer with the ticket's Grant and nothing else.

        The ticket is leased then. False changes nothing: call `request`, of which this is the first step, so that the
        two cannot disagree. It is the way of nearly every request, and therefore needs no terms and makes no effects:
        the limit of a READY model is the one that its process got last.
        """
        if ticket in self._holders:
            raise RuntimeError(f"ticket {ticket} is in use")
        if not self.takes(model):
            return False
        process = self._processes[model]
        self._holders[ticket] = model
        process.leases.add(ticket)
        self._used(model, process, now)
        return True

    def request(self, ticket: int, model: str, terms: Terms = DEFAULT_TERMS, now: float = 0.0) -> list[Effect]:
        """Request the model. Tickets are never reused; ``terms`` count from the model's next start on."""
        if self.take(ticket, model, now):
            return [Grant(ticket, model)]
        if refusal := self._refusal(model, terms):
            return [Refuse(ticket, model, refusal)]
        self._holders[ticket] = model
        process = self._processes.get(model)
        if process is not None and process.state is ProcessState.STARTING:
            process.waiting.append(ticket)
            return []
        entry = self._queue.get(model)
        if entry is None:
            self._entries += 1
            entry = self._queue[model] = QueueEntry(model, terms, self._entries)
        entry.tickets[ticket] = now
        return self._serve_queue(now)

    def release(self, ticket: int, now: float = 0.0) -> list[Effect]:
        """The holder is done, gives up waiting, or was refused; total over every state of a ticket."""
        model = self._holders.pop(ticket, None)
        if model is None:
            return []
        process, entry = self._processes.get(model), self._queue.get(model)
        if process is not None and ticket in process.leases:
            process.leases.remove(ticket)
            self._used(model, process, now)
            # The queue is not served here. A draining process was going before, so no plan changes, and its memory is
            # free only at `exited`.
            if process.state is ProcessState.DRAINING and not process.leases:
                process.state = ProcessState.STOPPING
                return [Stop(model, process.cause)]
        elif process is not None and ticket in process.waiting:
            process.waiting.remove(ticket)  # the start goes on: the next request will want it
        elif entry is not None and ticket in entry.tickets:
            del entry.tickets[ticket]
            if not entry.tickets:
                del self._queue[model]
        return self._serve_queue(now)

    def ready(self, model: str, now: float = 0.0) -> list[Effect]:
        """The process started for the model can serve."""
        process = self._processes.get(model)
        if process is None or process.state is ProcessState.READY:
            raise RuntimeError(f"{model} is not starting")
        if process.state is not ProcessState.STARTING:
            return []  # asked to stop while it was loading
        process.state = ProcessState.READY
        process.ready_at = now
        self._used(model, process, now)
        waiting, process.waiting = process.waiting, []
        # Grants come before the queue (rule 6). The other way round, the queue would find a ready model without leases,
        # and could evict it before anyone has used it.
        return [*self._grant(process, model, waiting, now), *self._serve_queue(now)]

    def exited(self, model: str, error: ApplianceError, now: float = 0.0) -> list[Effect]:
        """The model's process is gone; requests that waited for its start get ``error``."""
        process = self._processes.pop(model, None)
        if process is None:
            raise RuntimeError(f"{model} has no process")
        # The tickets of its leases end here. Each holder still calls `release`, which then finds nothing: by that time
        # the same model may have a new process, whose leases it must not touch.
        for ticket in process.leases:
            del self._holders[ticket]
        return [*self._refuse(process.waiting, error), *self._serve_queue(now)]

    def measured(self, model: str, memory: Mapping[str, int]) -> None:
        """Note the memory that the model really takes, by device; it counts instead of ``terms.memory`` from now on."""
        self._measured[model] = memory

    def unload(self, model: str, now: float = 0.0, cause: Cause = ASKED) -> list[Effect]:
        """Unload the model: waiters are refused, leases may finish, an idle process stops now."""
        entry = self._queue.pop(model, None)
        effects = self._refuse(entry.tickets if entry else (), ModelUnloaded(model))
        process = self._processes.get(model)
        if process is None or process.state in GOING:
            if self.leases(model):
                effects.append(Drain(model))  # the end of a process that is out of date may be waited for until then
            return [*effects, *self._serve_queue(now)]
        effects += self._refuse(process.waiting, ModelUnloaded(model))
        process.waiting = []
        process.cause = cause
        if process.leases:
            process.state = ProcessState.DRAINING
            return [*effects, Drain(model)]
        process.state = ProcessState.STOPPING
        return [*effects, Stop(model, cause)]

    def retune(self, model: str, terms: Terms, now: float = 0.0) -> list[Effect]:
        """Other terms for the model from now on, also for its process and for waiting requests."""
        if entry := self._queue.get(model):
            entry.terms = terms
        if process := self._processes.get(model):
            process.terms = terms
        return self.tick(now)

    def remove(self, model: str, now: float = 0.0) -> list[Effect]:
        """There is no such model any more: its leases may finish, however long; waiting requests are refused."""
        entry, process = self._queue.pop(model, None), self._processes.get(model)
        waiting = list(entry.tickets) if entry else []
        if process is not None:
            waiting += process.waiting
            process.waiting = []
        return [*self._refuse(waiting, ModelUnloaded(model)), *self.retire(model, now=now, cause=REMOVED)]

    def retire(
        self, model: str, terms: Terms = DEFAULT_TERMS, now: float = 0.0, cause: Cause = OUTDATED
    ) -> list[Effect]:
        """The model's process is out of date: its leases may finish, however long; waiting requests get the next
        process.
        """
        process = self._processes.get(model)
        self._measured.pop(model, None)
        if entry := self._queue.get(model):
            entry.terms = terms
        if process is None or process.state in GOING:
            return self._serve_queue(now)
        # Requests that wait for this start move to the queue, and get the next process. Their patience counts from now:
        # they wait for another load than before.
        if process.waiting:
            self._entries += 1
            entry = self._queue.setdefault(model, QueueEntry(model, terms, self._entries))
            entry.tickets |= dict.fromkeys(process.waiting, now)
            process.waiting = []
        process.cause = cause
        process.state = ProcessState.DRAINING if process.leases else ProcessState.STOPPING
        return [*([] if process.leases else [Stop(model, cause)]), *self._serve_queue(now)]

    def expire(self, model: str, cause: Cause | None = None) -> list[Effect]:
        """The leases of a draining model have had their time: stop it under them. ``cause``: another than before."""
        process = self._processes.get(model)
        if process is None or process.state is not ProcessState.DRAINING:
            return []
        process.state = ProcessState.STOPPING
        return [Stop(model, structs.replace(cause or process.cause, leases=len(process.leases)))]

    def adopt(self, limits: FleetLimits, policy: Policy, now: float = 0.0) -> list[Effect]:
        """Other limits and another policy from now on; running models stay until a request needs their place."""
        self.limits, self._policy = limits, policy
        return self._serve_queue(now)

    def squeeze(self, now: float) -> list[Effect]:
        """Others have taken memory, and the limits are below what is loaded: idle models stop (rule 10)."""
        loaded = list(self._occupants(now))
        short = shortage(self.limits, [occupant.memory for occupant in loaded])
        effects: list[Effect] = []
        for model in make_fit(self.limits, loaded):
            process = self._processes[model]
            process.state = ProcessState.STOPPING
            taken = self._memory(model, process.terms)
            effects.append(Stop(model, Cause(rule="squeeze", idle=now - process.used_at, short=_part(short, taken))))
        return [*effects, *self._serve_queue(now)]

    def tick(self, now: float) -> list[Effect]:
        """Time has passed."""
        effects: list[Effect] = []
        for model, process in self._processes.items():
            if process.state is ProcessState.READY and not process.leases and now >= process.idle_at():
                process.state = ProcessState.STOPPING
                effects.append(Stop(model, Cause(rule="idle", idle=now - process.used_at)))
        return [*effects, *self._serve_queue(now)]

    def close(self) -> list[Effect]:
        """No new work: everything that waits is refused, leases may finish; processes stop by `unload`."""
        self._closed = True
        waiting = [ticket for entry in self._queue.values() for ticket in entry.tickets]
        self._queue.clear()
        for process in self._processes.values():
            waiting += process.waiting
            process.waiting = []
        return self._refuse(waiting, ShuttingDown())

    # ---- the rules ---------------------------------------------------------------------------------------------------

    def _refusal(self, model: str, terms: Terms) -> ApplianceError | None:
        """Rule 1."""
        if self._closed:
            return ShuttingDown()
        process = self._processes.get(model)
        limit = process.terms.limit if process is not None and process.state is ProcessState.READY else terms.limit
        if limit and self.leases(model) + self.waiting(model) >= limit:
            return TooManyRequests(model, limit)
        queues = process is None or process.state in GOING or model in self._yielding
        if queues and self.queued() >= self.limits.queue:
            return Busy(f"{self.queued()} requests wait for models already", retry_after=QUEUE_RETRY)
        return None

    def _serve_queue(self, now: float) -> list[Effect]:
        """Rules 3 to 5."""
        if not self._queue:
            self._yielding = frozenset()
            return []
        effects: list[Effect] = []
        # One pass over the queue, best rank first. ``ahead`` collects the entries that cannot be served yet; every
        # later one has to respect them (rule 4). ``yielding`` is built anew each time, so a model yields only as long
        # as an overdue entry needs its place. Once that is served, refused or given up, the next pass ends this.
        yielding: set[str] = set()
        ahead: list[QueueEntry] = []
        for entry in sorted(self._queue.values(), key=lambda entry: entry.rank(now)):
            if len(ahead) >= LOOK_AHEAD:
                break
            process = self._processes.get(entry.model)
            if process is not None and process.state is ProcessState.READY:
                # A READY model is in the queue because it yields, or did. The set holds the needs of better ranks
                # alone, and that is right: an entry behind this one has no claim before it.
                if entry.model not in yielding:
                    del self._queue[entry.model]
                    effects += self._grant(process, entry.model, entry.tickets, now)
                    continue
            else:
                effects += self._serve_entry(entry, ahead, yielding, now)
            if entry.model in self._queue:
                ahead.append(entry)
        self._yielding = frozenset(yielding)
        return effects

    def _serve_entry(self, entry: QueueEntry, ahead: list[QueueEntry], yielding: set[str], now: float) -> list[Effect]:
        """Start the entry's model, or move on towards it; a start or a refusal takes it out of the queue."""
        plan = self._plan(entry, ahead, now)
        if isinstance(plan, ApplianceError):
            del self._queue[entry.model]
            return self._refuse(entry.tickets, plan)
        if plan is None:
            return []
        going = plan.going
        there = {m: p for m in going if (p := self._processes.get(m)) is not None and p.state not in GOING}
        held = any(process.held(now) for process in there.values())
        if held and now < entry.overdue_at():
            return []  # before rule 4 is asked, which costs a plan for each of those ahead
        if self._stands_in_the_way(entry, going, ahead):
            return []
        if held:
            yielding.update(there)
            return []
        # All or nothing: they are stopped only when every one of them is free. To stop the free ones first would cost
        # loaded models while the entry still waits for a leased one, perhaps for minutes. Memory is free only when a
        # process is gone, so the start may follow with a later `exited`: the entry stays in the queue until then.
        for process in there.values():
            process.state = ProcessState.STOPPING
        effects: list[Effect] = [Stop(model, self._cause(entry, plan, model, now)) for model in there]
        if self._may_start(entry, going):
            del self._queue[entry.model]
            self._processes[entry.model] = _Process(entry.terms, list(entry.tickets))
            effects.append(Start(entry.model, len(entry.tickets), now - min(entry.tickets.values())))
        return effects

    def _may_start(self, entry: QueueEntry, going: list[str]) -> bool:
        """True if everything that must go for it is gone, its own last process included."""
        if entry.model in self._processes or any(model in self._processes for model in going):
            return False
        taken = [self._memory(model, process.terms) for model, process in self._processes.items()]
        return fits(self.limits, [self._memory(entry.model, entry.terms), *taken])

    def _cause(self, entry: QueueEntry, plan: _Plan, model: str, now: float) -> Cause:
        """Why the plan lets this model go."""
        process = self._processes[model]
        idle = now - process.used_at
        if model in plan.policy.evict:
            return Cause(rule=self._policy.kind, by=entry.model, set=plan.policy.set or "", idle=idle)
        could_go = (o for o in plan.staying if not (o.fixed or o.held) and o.model not in plan.more)
        longest = all(process.turn < o.last_used for o in could_go)
        loaded = [self._memory(entry.model, entry.terms), *(o.memory for o in plan.staying)]
        short = _part(shortage(self.limits, loaded), self._memory(model, process.terms))
        if short:
            return Cause(rule="memory", by=entry.model, idle=idle, longest_idle=longest, short=short)
        return Cause(rule="number", by=entry.model, idle=idle, longest_idle=longest, most=self.limits.capacity)

    def _plan(self, entry: QueueEntry, ahead: list[QueueEntry], now: float) -> _Plan | ApplianceError | None:
        """Return the models that must go for this entry; None if it waits for those ahead; an error if it could wait
        for ever.
        """
        # Entries ahead are planned as if they ran already. Otherwise a small model would slip into memory for which a
        # large one waits, then the next small one, and the large one would never start. Their occupants are fixed:
        # nothing behind them may plan to evict them. A plan of None means "wait for those ahead". An error is for what
        # can never come true: the model is too large by itself, or beside what is pinned.
        promised = {other.model for other in ahead}
        others = {*self._processes, *promised} - {entry.model}
        policy = self._policy.plan(entry.model, sorted(others))
        going = policy.evict
        pinned = [m for m, p in self._processes.items() if p.terms.pinned and p.state not in GOING]
        if in_the_way := [m for m in pinned if m in going]:
            return self._beside_pinned(entry.model, in_the_way)
        needed = self._memory(entry.model, entry.terms)
        staying = [o for o in self._occupants(now) if o.model not in {*going, *promised, entry.model}]
        staying += [Occupant(model=e.model, memory=self._memory(e.model, e.terms), fixed=True) for e in ahead]
        more = make_room(self.limits, needed, staying)
        if more is not None:
            return _Plan(policy, more, staying)
        if not fits(self.limits, [needed]):
            return ModelFailedToStart(entry.model, too_large(self.limits, needed))
        if not fits(self.limits, [needed, *(self._memory(m, self._processes[m].terms) for m in pinned)]):
            return self._beside_pinned(entry.model, pinned)
        return None

    def _stands_in_the_way(self, entry: QueueEntry, going: list[str], ahead: list[QueueEntry]) -> bool:
        """Rule 4: it would evict somebody ahead, or somebody ahead would evict it."""
        if any(other.model in going for other in ahead):
            return True
        # The second half matters as well. An entry ahead that would evict this model as soon as its turn comes makes
        # the load useless, and delays itself by it.
        running = sorted({*self._processes, entry.model})
        return any(entry.model in self._policy.plan(other.model, running).evict for other in ahead)

    def _occupants(self, now: float) -> Iterator[Occupant]:
        """Processes that stay as far as is known."""
        for model, process in self._processes.items():
            if process.state not in GOING:
                yield Occupant(
                    model=model,
                    memory=self._memory(model, process.terms),
                    fixed=process.terms.pinned,
                    held=process.held(now),
                    cost=self._policy.cost_of(model),
                    last_used=process.turn,
                )

    def _memory(self, model: str, terms: Terms) -> Mapping[str, int]:
        return self._measured.get(model, terms.memory)

    def _beside_pinned(self, model: str, pinned: list[str]) -> Busy:
        names = ", ".join(f"'{name}'" for name in pinned)
        return Busy(
            f"model '{model}' cannot run beside {names}, which {'is' if len(pinned) == 1 else 'are'} pinned; "
            "unload what is pinned, or change the configuration",
            retry_after=QUEUE_RETRY,
        )

    def _grant(self, process: _Process, model: str, tickets: Iterable[int], now: float) -> list[Effect]:
        granted = list(tickets)
        process.leases.update(granted)
        if granted:
            self._used(model, process, now)
        return [Grant(ticket, model) for ticket in granted]

    def _refuse(self, tickets: Iterable[int], error: ApplianceError) -> list[Effect]:
        refused = list(tickets)
        return [Refuse(ticket, self._holders.pop(ticket), error) for ticket in refused]

    def _used(self, model: str, process: _Process, now: float) -> None:
        self._turn += 1
        process.turn, process.used_at = self._turn, now
        self._latest = model


def _part(short: Mapping[str, int], taken: Mapping[str, int]) -> Mapping[str, int]:
    """Return the shortage on the devices on which something is taken."""
    return {device: missing for device, missing in short.items() if taken.get(device)}
