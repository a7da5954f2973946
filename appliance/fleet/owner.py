"""The owner of all model processes: carries out what `core.scheduling.schedule` decides."""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial

import trio
from msgspec import structs

from appliance.catalog.identities import made_of
from appliance.core.bodies.head import ODD_SLOT
from appliance.core.config.types import Config
from appliance.core.fit.budget import GpuMemory, gpu_memory
from appliance.core.models.model import Model
from appliance.core.records.cache_misses import CacheRoom
from appliance.core.records.history import Happening, Kind, Tell, happenings, refusal, told_to_nobody
from appliance.core.scheduling.effects import (
    EVICTING,
    GOING,
    Cause,
    Drain,
    Effect,
    Grant,
    ProcessState,
    Refuse,
    Start,
    Stop,
    Terms,
)
from appliance.core.scheduling.policy import FreePolicy
from appliance.core.scheduling.schedule import Schedule
from appliance.core.scheduling.waiting import LoadTimes
from appliance.core.settings import FleetSettings
from appliance.engines.found import NO_GPUS, Engine, same_start
from appliance.engines.owner import Chooser, OneEngine
from appliance.errors import (
    ApplianceError,
    KillsEngines,
    ModelFailedToStart,
    ModelNotFound,
    ModelUnloaded,
    ShuttingDown,
)
from appliance.fleet.budgets import Budgets, keep_measuring, policy_for
from appliance.fleet.contexts import Contexts
from appliance.fleet.failures import Failures, Hangs
from appliance.fleet.launch import Launch, same_launch
from appliance.fleet.launches import Launches
from appliance.fleet.lease import Lease, QueuePlace, Supply
from appliance.fleet.logs import Echo, Logs
from appliance.fleet.outlook import Outlook
from appliance.fleet.run import END_NOTICED, ModelRun, RunEnd
from appliance.fleet.status import Broken, ChildStatus, Ends, Observer, progress_of, status_of
from appliance.platform.children import REAP_TIME, Children, open_children
from appliance.platform.drivers import Gpus
from appliance.store.kept_contexts import KeptContexts
from appliance.trio_parts import Changed, beside, persist
from appliance.upstream.client import Address

LOAD_PAUSE = 60.0
"""Seconds after a failed `Fleet.load_soon` in which it begins no load of the same model."""

_now = trio.current_time
log = logging.getLogger(__name__)


class Fleet:
    """Gives out leases on running models; starts, stops and restarts their processes as needed.

    Made by `open_fleet`. Every method that is not async is atomic.
    """

    def __init__(
        self,
        settings: FleetSettings,
        chooser: Chooser | None,
        children: Children,
        nursery: trio.Nursery,
        *,
        supply: Supply | None,
        observer: Observer | None,
        echo: Echo | None,
        gpus: Gpus,
        tell: Tell,
        contexts: KeptContexts | None = None,
    ) -> None:
        self.logs = Logs(echo)
        self.logs.catch_up = self._catch_up
        self.tell = tell
        self.closing = False
        self.observer = observer
        self._supply, self._gpus = supply, gpus
        self._config: Config | None = None
        self._settings, self._budgets = settings, Budgets(settings)
        self.children, self._nursery = children, nursery
        self._schedule = Schedule(self._budgets.limits(None), FreePolicy())
        self._runs: dict[str, ModelRun] = {}
        self._load_times = LoadTimes()
        self.outlook = Outlook(self._schedule, self._runs, self._budgets, self._load_times)
        self.launches = Launches(chooser, settings, self.logs, self._staying, self.outlook.plan, self._budgets.check)
        self.contexts = Contexts(contexts, chooser)
        self._alarm = trio.CancelScope()
        self._alarm_at = -math.inf
        """Its deadline, which is never later than the schedule's, and may be earlier: a tick too many does nothing."""
        self._tickets = itertools.count()
        self._asked: dict[int, Lease] = {}
        """Every lease that is not over, by its ticket."""
        self._current: dict[str, Model] = {}
        self._models: dict[str, Model] = {}
        self._ends = Ends()
        self._kept: dict[str, float] = {}
        """Seconds that clients wish idle models to stay; each wish ends with the process."""
        self._no_load_before: dict[str, float] = {}
        """For `load_soon`: infinity while its load is under way."""
        self._failures = Failures(self._runs, self._asked, self.launches)
        self._changed = Changed()

    @property
    def busy(self) -> bool:
        """True while any request is under way, or a model starts."""
        return bool(self._asked)

    @property
    def capacity(self) -> int:
        """How many model processes may run at once, 0 for any number."""
        return self._schedule.limits.capacity

    @property
    def queued(self) -> int:
        """How many requests are in the queue."""
        return self._schedule.queued()

    # ---- what applies ------------------------------------------------------------------------------------------------

    def adopt(self, config: Config | None, models: Iterable[Model]) -> list[str]:
        """Follow this configuration from now on; the result are the ids of models whose process is out of date.

        Unchanged models continue to run. An outdated process is stopped when its requests under way have ended, and
        requests that wait for its model get the new one.
        """
        self._config = config
        self._no_load_before.clear()  # the mistake that made a load fail may be corrected
        self._current = {model.id: model for model in models}
        outdated = self.outdated(self._current.values())
        self._load_times.forget(outdated)
        # Only models that somebody has asked for are renewed here, so this does not grow with the catalogue.
        self._models |= {model_id: model for model_id, model in self._current.items() if model_id in self._models}
        for model_id in [m for m in self._schedule.models() if m not in self._current]:
            self._perform(self._schedule.remove(model_id, _now()))
        self._limit()
        for model_id in [m for m in self._schedule.models() if m in self._current]:
            self._follow(self._current[model_id], outdated=model_id in outdated)
        return outdated

    def outdated(self, models: Iterable[Model]) -> list[str]:
        """The ids of models whose process would be out of date if these were the models; nothing changes."""
        known = {model.id: model for model in models}
        return [m for m, run in self._runs.items() if not same_launch(run.model, known.get(m))]

    def _limit(self) -> None:
        """Budgets or policy may be others than before."""
        self._perform(self._schedule.adopt(self._budgets.limits(self._config), policy_for(self._config), _now()))

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
        self._models[model.id] = model
        self._asked[lease.ticket] = lease
        self._changed.wake()  # the alarm stays: a lease makes no deadline earlier
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
                lease.model = await self._supply(model, lease.place.fetches if lease.place is not None else None)
            await self.launches.check_alone(lease.model)
        except ApplianceError as error:
            if not isinstance(error, ModelUnloaded):
                self._ends.add_unfetched(model.id, error)
                self._changed.wake()
            raise
        self._ends.forget_unfetched(model.id)

    def ask(self, lease: Lease) -> None:
        """See `Lender`."""
        model, ticket = lease.model, lease.ticket
        self._asked[ticket] = lease
        self._models[model.id] = model
        self._perform(self._schedule.request(ticket, model.id, self._terms(model), _now()))
        if lease.place is not None and lease.address is None:
            lease.place.take(
                lambda: self._schedule.position(ticket, _now()),
                lambda: progress_of(self._runs.get(model.id)),
                lambda: self.outlook.wait_of(ticket),
            )

    def waited(self, lease: Lease, seconds: float) -> None:
        """See `Lender`."""
        run, now = self._runs.get(lease.model.id), _now()
        if lease.place is not None and run is not None and run.ready_at is not None and run.ready_at > now - seconds:
            lease.place.load = min(now - run.began, seconds), now - run.ready_at
        if self.observer is not None:
            self.observer.waited(lease.model.id, seconds)

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
        self._asked.pop(lease.ticket, None)
        self._failures.over(lease, error, now)
        if lease.address is None and lease.refusal is None and isinstance(error, ApplianceError):
            self.tell(refusal(lease.model.id, error))  # not by the schedule: it waited too long, or may not be asked
        effects = self._schedule.release(lease.ticket, now)
        if effects or not self._schedule.leases(lease.model.id):
            self._perform(effects)
        else:
            self._changed.wake()  # with other leases on the model, its end makes no deadline earlier

    def _in_force(self, model: Model) -> Model:
        """Return the model in the present configuration, which may be newer than the caller's. Raises ModelNotFound."""
        if self._config is None or model.config is None:
            return model
        current = self._current.get(model.id)
        if current is None or current.config is None:
            raise ModelNotFound(model.id)
        return current

    @property
    def queue_timeout(self) -> float:
        """See `Lender`."""
        return self._settings.queue_timeout if self._config is None else self._config.queue_timeout

    def is_ready(self, model_id: str) -> bool:
        """True if a request for it would be served at once."""
        return self._schedule.state(model_id) is ProcessState.READY

    def takes(self, model_id: str) -> bool:
        """True if a request for it would be leased at once: it is ready, not full, and makes room for no other."""
        return self._schedule.takes(model_id)

    def address(self, model_id: str) -> Address | None:
        """The model's address, if it is loaded now. Asking for it does not count as a use."""
        return self._runs[model_id].address if self.is_ready(model_id) else None

    async def wait_quiet(self, model_id: str) -> None:
        """Wait, before asking a process about itself, until it has noticed that a client has left.

        llama-server (b11434) looks for that only after a second without a result for anybody, and the answer to a
        question about its slots is such a result: asked every 20 ms, it went on generating for a client long gone.
        """
        await trio.sleep_until(max(_now(), self._failures.quiet_at.get(model_id, -math.inf)))

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
            self._kept[model.id] = seconds
            self._perform(self._schedule.retune(model.id, self._terms(model), _now()))

    def stays_for(self, model_id: str) -> float:
        """Seconds until an idle process of the model stops; infinity if it stays."""
        return self._schedule.stays_for(model_id, _now())

    def memory(self, model_id: str) -> Mapping[str, int]:
        """Bytes by device that the model's process takes, as it was measured or is expected."""
        return self._schedule.memory(model_id)

    def room(self) -> Mapping[str, int]:
        """Return the bytes that are free now for a model that is not here yet, by device."""
        return self._budgets.room(self.launches.engine)

    def see_gpus(self, samples: Mapping[str, GpuMemory]) -> None:
        """GPUs were looked at, by what budgets call them. Where others have taken their memory, idle models go."""
        if self._budgets.sampled(samples, self._schedule.taken()):
            self._limit()
            self._perform(self._schedule.squeeze(_now()))

    async def _prepare(self, model: Model, tried: Collection[str]) -> Launch | None:
        """See `Prepare`. A plan counts the memory that is free on the cards now, and not at the last sample."""
        await self.contexts.give_way()
        # The first sample comes a second after the start. What is remembered until then may be days old.
        engine = self.launches.engine_for(model, tried)
        if engine is not None and engine.gpus and (seen := gpu_memory(await self._gpus.samples())):
            self.see_gpus(seen)
        launch = await self.launches.prepare(model, tried)
        return await self.contexts.prepared(model, launch) if launch is not None else None

    def see_machine(self) -> None:
        """More may be known of the machine than before: its budgets apply, and idle models move to the best seat."""
        if (look := self.launches.look) is not None and look is not self._budgets.look:
            self._budgets.look = look
            self._limit()
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

    # ---- looking -----------------------------------------------------------------------------------------------------

    def status(self) -> list[ChildStatus]:
        """Every model that has a process, waits for one, or had one before; sorted by id."""
        ids = sorted({*self._schedule.models(), *self._ends.last})
        return [status for model_id in ids if (status := self.known(model_id)) is not None]

    def latest_used(self) -> str:
        """See `Schedule.latest_used`."""
        return self._schedule.latest_used()

    def known(self, model_id: str) -> ChildStatus | None:
        """The status of one model, None when it never ran."""
        run, last = self._runs.get(model_id), self._ends.last.get(model_id)
        there = last is not None or run is not None or self._schedule.waiting(model_id)
        process = self.contexts.of(model_id)
        held = process.table.needed() if process is not None else None
        return status_of(model_id, self._schedule, run, last, held) if there else None

    def said(self, model_id: str) -> list[str]:
        """The lines of the log of the model's process that are held; none without one."""
        run = self._runs.get(model_id)
        return run.said() if run is not None else []

    def seat_of(self, model_id: str) -> str | None:
        """The seat of the engine that the model's process runs on; None without one."""
        run = self._runs.get(model_id)
        return run.engine.seat if run is not None and run.engine is not None else None

    def engine_of(self, model_id: str) -> str | None:
        """The id of the engine that the model's process runs on; None without one."""
        run = self._runs.get(model_id)
        return run.engine.id if run is not None and run.engine is not None else None

    def owns_slot_files(self, model_id: str) -> bool:
        """True if the files of the model's slots lie in the program's own folder, whether it uses them or not."""
        run = self._runs.get(model_id)
        return run is not None and run.process is not None and run.process.launch.context_origin is not None

    def may_name_slot(self, model_id: str, slot: int) -> bool:
        """True if a request with a lease may name this slot: its server is not ours, or bears it, or it is alone."""
        run = self._runs.get(model_id)
        launch = run.process.launch if run is not None and run.process is not None else None
        if launch is None or launch.engine is None:
            return True
        return slot != ODD_SLOT and (launch.may_name_slots or self._schedule.leases(model_id) <= 1)

    def has_fallback(self, model_id: str) -> bool:
        """True if there is another seat to go to, should the process of this model die."""
        model, seat = self._models.get(model_id), self.seat_of(model_id)
        if model is None or seat is None:
            return False
        process = self._runs[model_id].process
        return bool(process and process.launch.crew.workers) or self.launches.choose(model, (seat,)) is not None

    async def broke(self, model_id: str, address: Address, request: int = 0) -> Broken:
        """A connection to this process of the model broke; this waits for a moment until its end is known."""
        # Two tasks see a crash, in any order: the request finds a broken connection, and the owner sees the exit.
        # Judged too early, a crash looks like an engine that closed one connection, and the request does not go to the
        # next seat. All comparisons are by the identity of the address: another process of the model may run by now,
        # and its state says nothing about this connection.
        with trio.move_on_after(END_NOTICED):
            while (run := self._runs.get(model_id)) is not None and run.address is address and not run.stop_requested:
                await self.wait_changed()
        run, ended, model = self._runs.get(model_id), self._ends.last.get(model_id), self._models.get(model_id)
        unloaded = ShuttingDown() if self.closing else ModelUnloaded(model_id)
        if run is not None and run.address is address:
            return Broken(error=unloaded if run.stop_requested else None)
        if ended is None or ended.launch is None or ended.launch.address is not address:
            return Broken()
        if ended.how == "stopped":
            return Broken(error=unloaded)
        if request and self._failures.suspects.convicted(request):
            return Broken(error=KillsEngines(model_id, ended.why or "it crashed"))
        if model is None or not ended.crashed or ended.engine is None:
            return Broken(ended.why)
        if ended.launch.made_of != made_of(self._current.get(model_id, model) if model.config is not None else model):
            return Broken(
                f"{ended.why}; the model's files or command have changed meanwhile, so nothing goes on with it"
            )
        following = self.launches.choose(model)
        elsewhere = following is not None and (following.seat != ended.engine.seat or ended.lost_worker)
        return Broken(ended.why, following.seat if following is not None and elsewhere else None)

    def is_as_started(self, model: Model) -> bool:
        """Return whether the process of a configured model, if there is one, runs what the model is now."""
        run = self._runs.get(model.id) if model.config is not None else None
        return run is None or run.process is None or run.process.launch.made_of == made_of(model)

    async def wait_changed(self) -> None:
        """Wait until anything in `status` has changed; every lease is a change."""
        await self._changed.wait()

    async def wait_gone(self, model_id: str) -> None:
        """Wait until the process that the model has now is gone; at once where it has none."""
        if (run := self._runs.get(model_id)) is not None:
            await run.gone.wait()

    # ---- carrying out ------------------------------------------------------------------------------------------------

    def _perform(self, effects: Sequence[Effect]) -> None:
        if effects:  # the end of a plain request has none
            for happening in happenings(effects):
                self.tell(happening)
        for effect in effects:
            match effect:
                case Start(model_id):
                    log.info("loading model '%s'", model_id)
                    run = self._runs[model_id] = ModelRun(self._models[model_id], self._prepare, self.logs)
                    self._nursery.start_soon(self._own, run)
                case Stop(model_id, cause):
                    log.info("stopping model '%s' (%s)", model_id, cause.rule)
                    if cause.rule in EVICTING and self.observer is not None:
                        self.observer.evicted(model_id, cause.rule)
                    self._runs[model_id].stop()
                case Drain(model_id):
                    self._nursery.start_soon(self._expire_later, self._runs[model_id])
                case Grant(ticket, model_id):
                    address = self._runs[model_id].address
                    assert address is not None, "what is ready has a process"
                    self._asked[ticket].answer(address)
                case Refuse(ticket, _, error):
                    self._asked[ticket].answer(error)
        # The alarm only ever moves forward to an earlier time. `keep_time` sets the later ones when it wakes. To set it
        # after every event would cost each release a change of Trio's deadlines, to no effect. At the end it is minus
        # infinity, which wakes `keep_time` for the last time.
        deadline = -math.inf if self._ended else self._schedule.deadline(_now())
        if deadline < self._alarm_at:
            self._alarm.deadline = self._alarm_at = deadline
        self._changed.wake()

    async def keep_time(self) -> None:
        """Tell the schedule of the time, and end processes that hang, until all has ended; run by `open_fleet`."""
        hangs = Hangs(self._failures, lambda: self._settings.hangs if self._config is None else self._config.hangs)
        async with beside(partial(hangs.watch, self)):
            while not self._ended:
                self._alarm_at = self._schedule.deadline(_now())
                # One scope, whose deadline `_perform` moves to an earlier time, instead of a timer for each model and
                # entry. A wake-up too many does nothing: `tick` looks at the time itself.
                with trio.CancelScope(deadline=self._alarm_at) as self._alarm:
                    await trio.sleep_forever()
                self._perform(self._schedule.tick(_now()))

    def _terms(self, model: Model) -> Terms:
        engine = self.launches.engine_for(model)
        return self._budgets.terms(model, engine, self._kept.get(model.id))

    def _staying(self) -> Mapping[str, Address]:
        """The addresses of the ready models that were not asked to stop."""
        staying = (m for m in self._runs if self._schedule.state(m) not in GOING)
        return {m: address for m in staying if (address := self._runs[m].address) is not None}

    async def _own(self, run: ModelRun) -> None:
        """The one task that owns a model's process, from its start to the schedule's knowledge of its end."""
        model_id = run.model.id
        error: ApplianceError = ModelUnloaded(model_id)
        try:
            async with beside(
                partial(persist, f"measuring model '{model_id}'", partial(self._measure, run)),
                partial(persist, f"keeping the contexts of model '{model_id}'", partial(self._keep_contexts, run)),
            ):
                ended = await run.run(self.children, on_ready=partial(self._on_ready, run))
                if ended.crashed:
                    self._failures.judge(run, ended, _now())
                error = ended.error
                self._ends.add(model_id, ended, self.observer)
                if ended.how != "stopped" and not run.is_condemned:  # the decision is in the timeline already
                    self.tell(_fallen(model_id, ended))
        finally:
            # The order matters. `exited` may start the same model again at once, and that start puts a new run in this
            # place: a later ``del`` would remove the new one. ``gone`` comes last, because those that wait for it rely
            # on the schedule.
            del self._runs[model_id]
            self.contexts.end(model_id)
            self._kept.pop(model_id, None)
            self.launches.release_workers(model_id)
            self._perform(self._schedule.exited(model_id, error, _now()))
            run.gone.set()

    def _on_ready(self, run: ModelRun) -> None:
        model_id, run.ready_at = run.model.id, _now()
        seconds = run.ready_at - run.began
        # Only now are the earlier seats to blame: the model starts here and did not start there. If it starts nowhere,
        # the model is at fault, and no engine is blamed.
        seat = run.engine.seat if run.engine is not None else ""
        for failure in run.failures:
            self.launches.blame(model_id, failure)
            self.tell(structs.replace(_fallen(model_id, failure), kind="fallback", following=seat, reason="started"))
        log.info("model '%s' is ready after %.2f s", model_id, seconds)
        self._load_times.note(model_id, seconds)
        self.tell(Happening(kind="loaded", model=model_id, seconds=seconds, engine=seat))
        if self.observer is not None:
            launch = run.process.launch if run.process is not None else None
            room = (launch.slots, launch.prompt_cache) if launch is not None else ()
            self.observer.loaded(model_id, seconds, CacheRoom(time.time(), *room))
        if run.process is not None:
            self.contexts.begin(run.model, run.process.launch)
        self._perform(self._schedule.ready(model_id, _now()))

    async def _measure(self, run: ModelRun) -> None:
        model = run.model
        while not self.is_ready(model.id) or (process := run.process) is None or process.pid is None:
            await self._changed.wait()

        def tell(taken: Mapping[str, int]) -> None:
            if self.is_ready(model.id):
                buffers = process.buffers.by_device(run.engine.gpus if run.engine is not None else NO_GPUS)
                self._schedule.measured(model.id, self._budgets.taken(model, run.engine, taken, buffers))
                self._perform(self._schedule.tick(_now()))  # there may be room now for somebody who waits

        await keep_measuring(process.pid, lambda: self._schedule.limits.memory.keys(), self._gpus, tell)

    async def _keep_contexts(self, run: ModelRun) -> None:
        while not self.is_ready(run.model.id):
            await self._changed.wait()
        await self.contexts.keep(run.model.id)

    async def _expire_later(self, run: ModelRun) -> None:
        """Stop a model under its leases when they have had their time."""
        with trio.move_on_after(run.stop_timeout):
            await run.gone.wait()
            return
        run.stop(politely=False)
        self._perform(self._schedule.expire(run.model.id))

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

    @property
    def _ended(self) -> bool:
        return self.closing and not self._schedule.models()

    def close(self) -> float:
        """Take no new work and ask every process to end; the result is how many seconds they may take."""
        self.closing = True
        grace = max((run.last_grace for run in self._runs.values()), default=0.0)
        self._perform(self._schedule.close())
        for model_id in list(self._schedule.models()):
            self._perform(self._schedule.unload(model_id, _now(), Cause(rule="shutdown")))
        return grace + REAP_TIME


def _fallen(model_id: str, ended: RunEnd) -> Happening:
    """The entry for a process that did not start, or died."""
    seat = ended.engine.seat if ended.engine is not None else ""
    why = ended.error.why if isinstance(ended.error, ModelFailedToStart) else str(ended.error)
    kind: Kind = "failed" if ended.how == "failed" else "crashed"
    return Happening(kind=kind, model=model_id, engine=seat, error=why.partition("\n")[0])


@asynccontextmanager
async def open_fleet(
    settings: FleetSettings,
    engines: Chooser | Engine | None,
    *,
    supply: Supply | None = None,
    observer: Observer | None = None,
    echo: Echo | None = None,
    gpus: Gpus | None = None,
    tell: Tell = told_to_nobody,
    contexts: KeptContexts | None = None,
) -> AsyncGenerator[Fleet]:
    """Own every model process. Leaving the block stops them all, politely at first; cancelling kills.

    Without engines only configured models can be started. ``supply`` fetches what a model lacks before it is started;
    without one its engine has to. ``observer`` counts what happens; ``echo`` is called with every line that a process
    prints; ``gpus`` is how memory of NVIDIA's GPUs is measured; ``tell`` is called with every decision; ``contexts`` is
    where the contexts of models are kept.
    """
    chooser = OneEngine(engines) if isinstance(engines, Engine) else engines
    async with open_children() as children, trio.open_nursery() as nursery:
        own = gpus or Gpus(None)
        fleet = Fleet(
            settings,
            chooser,
            children,
            nursery,
            supply=supply,
            observer=observer,
            echo=echo,
            gpus=own,
            tell=tell,
            contexts=contexts,
        )
        nursery.start_soon(fleet.keep_time)
        yield fleet
        # The nursery ends by itself: every `_own` returns with its process, and `keep_time` after the last of them. The
        # deadline is for a process that hangs.
        nursery.cancel_scope.deadline = _now() + fleet.close()
