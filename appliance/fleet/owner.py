"""The owner of all model processes: carries out what `core.scheduling.schedule` decides."""

from __future__ import annotations

import itertools
import math
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial

import trio

from appliance.catalog.supply import Supply
from appliance.core.config.types import Config
from appliance.core.engine import Engine, same_start
from appliance.core.memory import GpuMemory
from appliance.core.models.model import Model
from appliance.core.records.history import Tell, refusal, told_to_nobody
from appliance.core.scheduling.effects import Cause, ProcessState, Terms
from appliance.core.settings import FleetSettings
from appliance.errors import ApplianceError, ModelNotFound, ModelUnloaded
from appliance.fleet.chooser import Chooser, OneEngine
from appliance.fleet.estimate import Estimate, PlainEstimate
from appliance.fleet.failures import Hangs
from appliance.fleet.hold import SlotHold
from appliance.fleet.lease import Lease, QueuePlace
from appliance.fleet.logs import Echo, Logs
from appliance.fleet.performer import Means, Performer
from appliance.fleet.state import FleetState, log
from appliance.fleet.status import progress_of
from appliance.fleet.view import FleetView
from appliance.platform.children import REAP_TIME, open_children
from appliance.platform.gpus import Gpus, NoGpus
from appliance.trio_parts import beside
from appliance.upstream.client import Address

LOAD_PAUSE = 60.0
"""Seconds after a failed `Fleet.load_soon` in which it begins no load of the same model."""

_now = trio.current_time


class Fleet(FleetView):
    """Gives out leases on running models; starts, stops and restarts their processes as needed.

    Made by `open_fleet`. Every method that is not async is atomic.
    """

    def __init__(
        self, state: FleetState, chooser: Chooser | None, means: Means, supply: Supply | None, hold: SlotHold
    ) -> None:
        super().__init__(state, chooser, hold)
        self.tell = state.tell
        self._supply, self._nursery, self.children = supply, means.nursery, means.children
        self._performer = Performer(state, means, self.launches, hold, self._failures)
        self._perform = self._performer.perform
        self._tickets = itertools.count()
        self._no_load_before: dict[str, float] = {}
        """For `load_soon`: infinity while its load is under way."""
        self.logs.catch_up = self._catch_up

    # ---- what applies ------------------------------------------------------------------------------------------------

    def adopt(self, config: Config | None, models: Iterable[Model]) -> list[str]:
        """Follow this configuration from now on; the result are the ids of models whose process is out of date.

        Unchanged models continue to run. An outdated process is stopped when its requests under way have ended, and
        requests that wait for its model get the new one.
        """
        state, schedule = self._state, self._schedule
        state.config = config
        self._no_load_before.clear()  # the mistake that made a load fail may be corrected
        current = state.current = {model.id: model for model in models}
        outdated = self.outdated(current.values())
        state.load_times.forget(outdated)
        # Only models that somebody has asked for are renewed here, so this does not grow with the catalogue.
        state.models |= {model_id: model for model_id, model in current.items() if model_id in state.models}
        for model_id in [m for m in schedule.models() if m not in current]:
            self._perform(schedule.remove(model_id, _now()))
        self._performer.limit()
        for model_id in [m for m in schedule.models() if m in current]:
            self._follow(current[model_id], outdated=model_id in outdated)
        return outdated

    def _follow(self, model: Model, *, outdated: bool) -> None:
        """Apply the configuration to a model that has a process, or that requests wait for."""
        terms = self._terms(model)
        if outdated:
            self._perform(self._schedule.retire(model.id, terms, _now()))
            return
        if model.config is not None and (run := self._runs.get(model.id)) is not None:
            run.follow(model.config)
        self._perform(self._schedule.retune(model.id, terms, _now()))

    # ---- using models ------------------------------------------------------------------------------------------------

    def lease(self, model: Model, place: QueuePlace | None = None) -> Lease:
        """Hold the model loaded for the length of an ``async with``; queues, loads and evicts first as needed.

        ``place`` tells meanwhile how far it is. Raises ModelFailedToStart, ModelUnloaded, TooManyRequests, Busy (no
        room in the queue, or waited longer than the queue timeout), ShuttingDown, and what `supply` raises where the
        model has to be fetched first. Leaving, for whatever reason and at whatever moment, gives the lease back.
        """
        return Lease(self, next(self._tickets), model, place)

    def lend(self, lease: Lease) -> Address | None:
        """See `Lender`."""
        model, now = self._in_force(lease.model), _now()
        lease.model = model
        self._failures.check(lease, now)
        run = self._runs.get(model.id)
        if run is None or (address := run.address) is None:
            return None
        # The ticket is taken last, when nothing is left that can refuse: a caller that gets None, or an error, has
        # nothing to give back. `take` has no effects to carry out, so this path makes no lists and starts no task.
        if not self._schedule.take(lease.ticket, model.id, now):
            return None
        self._state.models[model.id] = model
        self._state.asked[lease.ticket] = lease
        self._state.changed.wake()  # the alarm stays: a lease makes no deadline earlier
        if not run.reused:  # once, for a line of the log costs more than all else that is done here
            run.reused = True
            log.debug("model '%s' is used again as it runs, on port %s", model.id, address.port)
        self.waited(lease, 0.0)
        return address

    async def supply_for(self, lease: Lease) -> None:
        """See `Lender`. A failure is kept in `status`, too: not everybody who has it loaded waits for it."""
        model = lease.model
        if self.is_ready(model.id):
            return
        try:
            if model.fetch and self._supply is not None:
                lease.model = await self._supply.bring(model, lease.place.fetches if lease.place is not None else None)
            await self.launches.check_alone(lease.model)
        except ApplianceError as error:
            if not isinstance(error, ModelUnloaded):
                self._state.ends.add_unfetched(model.id, error)
                self._state.changed.wake()
            raise
        self._state.ends.forget_unfetched(model.id)

    def ask(self, lease: Lease) -> None:
        """See `Lender`."""
        model, ticket = lease.model, lease.ticket
        self._state.asked[ticket] = lease
        self._state.models[model.id] = model
        self._perform(self._schedule.request(ticket, model.id, self._terms(model), _now()))
        if lease.place is not None and lease.address is None:
            lease.place.take(
                lambda: self._schedule.position(ticket, _now()),
                lambda: progress_of(self._runs.get(model.id)),
                lambda: self.outlook.wait_of(ticket),
            )

    def waited(self, lease: Lease, seconds: float) -> None:
        """See `Lender`."""
        if lease.place is not None:
            run, now = self._runs.get(lease.model.id), _now()
            if run is not None and run.ready_at is not None and run.ready_at > now - seconds:
                lease.place.load = min(now - run.began, seconds), now - run.ready_at
        for on_wait in self._state.waits.calls:
            on_wait(lease.model.id, seconds)

    def hear(self, lease: Lease) -> None:
        """See `Lender`."""
        run = self._runs.get(lease.model.id) if self.logs.echo is not None else None
        if run is not None and run.process is not None:
            run.process.catch_up(held=True)

    def _catch_up(self) -> None:
        for run in list(self._runs.values()):
            if run.process is not None:
                run.process.catch_up(held=False)

    def take_back(self, lease: Lease, error: BaseException | None) -> None:
        """See `Lender`."""
        now = _now()
        if lease.place is not None:
            lease.place.leave()
        if lease.placed is not None:
            lease.placed.release(refused=error is not None and not lease.passed)
        self._state.asked.pop(lease.ticket, None)
        self._failures.over(lease, error, now)
        if lease.address is None and lease.refusal is None and isinstance(error, ApplianceError):
            self.tell(refusal(lease.model.id, error))  # not by the schedule: it waited too long, or may not be asked
        effects = self._schedule.release(lease.ticket, now)
        if effects or not self._schedule.leases(lease.model.id):
            self._perform(effects)
        else:
            self._state.changed.wake()  # with other leases on the model, its end makes no deadline earlier

    def _in_force(self, model: Model) -> Model:
        """Return the model in the present configuration, which may be newer than the caller's. Raises ModelNotFound."""
        if self._state.config is None or model.config is None:
            return model
        current = self._state.current.get(model.id)
        if current is None or current.config is None:
            raise ModelNotFound(model.id)
        return current

    async def load(self, model: Model, *, wait: bool = True) -> None:
        """Load the model as a request for it would. Without ``wait``, return when the request for it is placed."""
        if wait:
            async with self.lease(model):
                return
        self._nursery.start_soon(self._load_quietly, model)
        await trio.lowlevel.checkpoint()

    def load_soon(self, model: Model) -> None:
        """Load the model in the background, if it is not on its way already and its last load here did not just fail.

        So it may be called with every request that would have liked the model.
        """
        if self._schedule.waiting(model.id) or _now() < self._no_load_before.get(model.id, -math.inf):
            return
        self._no_load_before[model.id] = math.inf
        self._nursery.start_soon(self._load_soon, model)

    async def unload(self, model_id: str, *, wait: bool = True) -> bool:
        """Stop the model's process, letting its requests finish within the stop timeout. False: it had none."""
        running = self._schedule.state(model_id) is not None or self._schedule.waiting(model_id) > 0
        self._perform(self._schedule.unload(model_id, _now()))
        if wait:
            await self.wait_gone(model_id)
        return running

    def keep(self, model: Model, seconds: float) -> None:
        """Let the model's process stay so long without a request, instead of its ``ttl``; infinity: for ever.

        It counts from the model's last use, and until the process ends. 0 ends an idle process now.
        """
        if self._schedule.state(model.id) is not None or self._schedule.waiting(model.id):
            self._state.kept[model.id] = seconds
            self._perform(self._schedule.retune(model.id, self._terms(model), _now()))

    def see_gpus(self, samples: Mapping[str, GpuMemory]) -> None:
        """GPUs were looked at, by what budgets call them. Where others have taken their memory, idle models go."""
        self._performer.see_gpus(samples)

    def see_machine(self) -> None:
        """More may be known of the machine than before: its budgets apply, and idle models move to the best seat."""
        if (look := self.launches.look) is not None and look is not self._state.budgets.look:
            self._state.budgets.look = look
            self._performer.limit()
        self.reseat()

    def reseat(self) -> None:
        """Start idle models anew that run on another seat than would be chosen now: more is known than at their start.

        Models in use, or that requests wait for, stay as they are.
        """
        for model_id, run in list(self._runs.items()):
            if not self.is_ready(model_id) or self._schedule.leases(model_id) or self._schedule.waiting(model_id):
                continue
            engine, following = run.engine, self.launches.choose(run.model)
            if engine is None or following is None or same_start(engine, following):
                continue
            log.info("model '%s' moves from engine %s to %s", model_id, engine.seat, following.seat)
            # The model is loaded again at once, on the better seat, so that no request pays for the move. Only an idle
            # one is moved: no answer would be worth a break.
            moved = Cause(rule="moved", note=f"{following.seat} instead of {engine.seat}")
            self._perform(self._schedule.retire(model_id, self._terms(run.model), _now(), moved))
            self._nursery.start_soon(self._load_quietly, run.model)

    def condemn(self, model_id: str, why: str, *, crashed: bool = False) -> bool:
        """End a process that is of no use any more (it hangs), at once and under its leases; ``why`` is logged.

        Requests that wait for the model get the next process; those that used this one find their connection broken.
        ``crashed``: its seat is to blame, and its requests go to the next one. False: there is none, or it is being
        stopped already.
        """
        run = self._runs.get(model_id)
        if run is None or self._schedule.state(model_id) is ProcessState.STOPPING:
            return False
        # `retire` moves the waiting requests to the next process, and `expire` then stops this one under its leases.
        # `unload` would be simpler and wrong: it refuses the requests that wait.
        run.condemn(why, crashed=crashed)
        cause = Cause(rule="hung" if crashed else "condemned", note=why)
        retired = self._schedule.retire(model_id, self._terms(run.model), _now(), cause)
        self._perform([*retired, *self._schedule.expire(model_id, cause)])
        return True

    async def keep_time(self) -> None:
        """Tell the schedule of the time, and end processes that hang, until all has ended; run by `open_fleet`."""
        state = self._state
        hangs = Hangs(self._failures, lambda: (state.config or state.settings).hangs)
        async with beside(partial(hangs.watch, self)):
            await self._performer.keep_time()

    def _terms(self, model: Model) -> Terms:
        engine = self.launches.engine_for(model)
        return self._state.budgets.terms(model, engine, self._state.kept.get(model.id))

    async def _load_quietly(self, model: Model) -> None:
        """Load in the background: a failure is kept in `status`."""
        with suppress(ApplianceError):
            await self.load(model)

    async def _load_soon(self, model: Model) -> None:
        pause = LOAD_PAUSE
        with suppress(ApplianceError):
            await self.load(model)
            pause = 0.0
        self._no_load_before[model.id] = _now() + pause

    def close(self) -> float:
        """Take no new work and ask every process to end; the result is how many seconds they may take."""
        self._state.closing = True
        grace = max((run.last_grace for run in self._runs.values()), default=0.0)
        self._perform(self._schedule.close())
        for model_id in list(self._schedule.models()):
            self._perform(self._schedule.unload(model_id, _now(), Cause(rule="shutdown")))
        return grace + REAP_TIME


@asynccontextmanager
async def open_fleet(
    settings: FleetSettings,
    engines: Chooser | Engine | None,
    *,
    supply: Supply | None = None,
    echo: Echo | None = None,
    gpus: Gpus | None = None,
    tell: Tell = told_to_nobody,
    hold: SlotHold | None = None,
    estimate: Estimate | None = None,
) -> AsyncGenerator[Fleet]:
    """Own every model process. Leaving the block stops them all, politely at first; cancelling kills.

    Without engines only configured models can be started. ``supply`` fetches what a model lacks before it is started;
    without one its engine has to. ``echo`` is called with every line that a process prints; ``gpus`` is how memory of
    NVIDIA's GPUs is measured; ``tell`` is called with every decision; ``hold`` gives requests their slots; ``estimate``
    knows what models take (`PlainEstimate`).
    """
    chooser = OneEngine(engines) if isinstance(engines, Engine) else engines
    async with open_children() as children, trio.open_nursery() as nursery:
        state = FleetState(settings, Logs(echo), tell, estimate or PlainEstimate())
        fleet = Fleet(state, chooser, Means(children, nursery, gpus or NoGpus()), supply, hold or SlotHold())
        nursery.start_soon(fleet.keep_time)
        yield fleet
        # The nursery ends by itself: every `_own` returns with its process, and `keep_time` after the last of them. The
        # deadline is for a process that hangs.
        nursery.cancel_scope.deadline = _now() + fleet.close()
