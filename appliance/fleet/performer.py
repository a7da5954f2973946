"""Carries out what a fleet's schedule decides: the effects, the time, and one task for each process."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping, Sequence
from functools import partial

import trio
from msgspec import Struct, structs

from appliance.core.engine import NO_GPUS
from appliance.core.memory import GpuMemory, gpu_memory
from appliance.core.models.model import Model
from appliance.core.records.cache_misses import CacheRoom
from appliance.core.records.history import Happening, happenings
from appliance.core.scheduling.effects import Drain, Effect, Grant, Refuse, Start, Stop
from appliance.errors import ApplianceError, ModelUnloaded
from appliance.fleet.budgets import keep_measuring, policy_for
from appliance.fleet.failures import Failures
from appliance.fleet.hold import SlotHold
from appliance.fleet.launch import Launch
from appliance.fleet.launches import Launches
from appliance.fleet.run import ModelRun
from appliance.fleet.state import FleetState, log
from appliance.platform.children import Children
from appliance.platform.gpus import Gpus
from appliance.trio_parts import beside, persist

_now = trio.current_time


class Means(Struct, frozen=True):
    """The means of a fleet: it starts processes as ``children`` in tasks of ``nursery``, and measures ``gpus``."""

    children: Children
    nursery: trio.Nursery
    gpus: Gpus


class Performer:
    """Owned by the fleet, which runs `keep_time`. Every method that is not async is atomic."""

    def __init__(self, state: FleetState, means: Means, launches: Launches, hold: SlotHold, failures: Failures) -> None:
        self._state, self._means = state, means
        self._launches, self._hold, self._failures = launches, hold, failures
        self._alarm = trio.CancelScope()
        self._alarm_at = -math.inf
        """Its deadline, which is never later than the schedule's, and may be earlier: a tick too many does nothing."""

    def perform(self, effects: Sequence[Effect]) -> None:
        """Carry these out, in their order."""
        state = self._state
        if effects:  # the end of a plain request has none
            for happening in happenings(effects):
                state.tell(happening)
        for effect in effects:
            match effect:
                case Start(model_id):
                    log.info("loading model '%s'", model_id)
                    run = state.runs[model_id] = ModelRun(state.models[model_id], self._prepare, state.logs)
                    self._means.nursery.start_soon(self._own, run)
                case Stop(model_id, cause):
                    log.info("stopping model '%s' (%s)", model_id, cause.rule)
                    state.runs[model_id].stop()
                case Drain(model_id):
                    self._means.nursery.start_soon(self._expire_later, state.runs[model_id])
                case Grant(ticket, model_id):
                    address = state.runs[model_id].address
                    assert address is not None, "what is ready has a process"
                    state.asked[ticket].answer(address)
                case Refuse(ticket, _, error):
                    state.asked[ticket].answer(error)
        # The alarm only ever moves forward to an earlier time. `keep_time` sets the later ones when it wakes. To set it
        # after every event would cost each release a change of Trio's deadlines, to no effect. At the end it is minus
        # infinity, which wakes `keep_time` for the last time.
        deadline = -math.inf if state.ended else state.schedule.deadline(_now())
        if deadline < self._alarm_at:
            self._alarm.deadline = self._alarm_at = deadline
        state.changed.wake()

    async def keep_time(self) -> None:
        """Tell the schedule of the time, until all has ended."""
        schedule = self._state.schedule
        while not self._state.ended:
            self._alarm_at = schedule.deadline(_now())
            # One scope, whose deadline `perform` moves to an earlier time, instead of a timer for each model and
            # entry. A wake-up too many does nothing: `tick` looks at the time itself.
            with trio.CancelScope(deadline=self._alarm_at) as self._alarm:
                await trio.sleep_forever()
            self.perform(schedule.tick(_now()))

    def limit(self) -> None:
        """Budgets or policy may be others than before."""
        state = self._state
        self.perform(state.schedule.adopt(state.budgets.limits(state.config), policy_for(state.config), _now()))

    def see_gpus(self, samples: Mapping[str, GpuMemory]) -> None:
        """See `Fleet.see_gpus`."""
        schedule = self._state.schedule
        if self._state.budgets.sampled(samples, schedule.taken()):
            self.limit()
            self.perform(schedule.squeeze(_now()))

    async def _prepare(self, model: Model, tried: Collection[str]) -> Launch | None:
        """See `Prepare`. A plan counts the memory that is free on the cards now, and not at the last sample."""
        await self._hold.give_way()
        # The first sample comes a second after the start. What is remembered until then may be days old.
        engine = self._launches.engine_for(model, tried)
        if engine is not None and engine.gpus and (seen := gpu_memory(await self._means.gpus.samples())):
            self.see_gpus(seen)
        launch = await self._launches.prepare(model, tried)
        return await self._hold.prepared(model, launch) if launch is not None else None

    async def _own(self, run: ModelRun) -> None:
        """The one task that owns a model's process, from its start to the schedule's knowledge of its end."""
        state, model_id = self._state, run.model.id
        error: ApplianceError = ModelUnloaded(model_id)
        try:
            async with beside(
                partial(persist, f"measuring model '{model_id}'", partial(self._measure, run)),
                partial(persist, f"keeping the contexts of model '{model_id}'", partial(self._keep_contexts, run)),
            ):
                ended = await run.run(self._means.children, on_ready=partial(self._on_ready, run))
                if ended.crashed:
                    self._failures.judge(run, ended, _now())
                error = ended.error
                state.ends.add(model_id, ended)
                if ended.how != "stopped" and not run.is_condemned:  # those are in the timeline already
                    state.tell(ended.happening(model_id))
        finally:
            # The order matters. `exited` may start the same model again at once, and that start puts a new run in this
            # place: a later ``del`` would remove the new one. ``gone`` comes last, because those that wait for it rely
            # on the schedule.
            del state.runs[model_id]
            self._hold.end(model_id)
            state.kept.pop(model_id, None)
            self._launches.release_workers(model_id)
            self.perform(state.schedule.exited(model_id, error, _now()))
            run.gone.set()

    def _on_ready(self, run: ModelRun) -> None:
        state, model_id, run.ready_at = self._state, run.model.id, _now()
        seconds = run.ready_at - run.began
        # Only now are the earlier seats to blame: the model starts here and did not start there. If it starts nowhere,
        # the model is at fault, and no engine is blamed.
        seat = run.engine.seat if run.engine is not None else ""
        for failure in run.failures:
            self._launches.blame(model_id, failure)
            fallen = failure.happening(model_id)
            state.tell(structs.replace(fallen, kind="fallback", following=seat, reason="started"))
        log.info("model '%s' is ready after %.2f s", model_id, seconds)
        state.load_times.note(model_id, seconds)
        state.tell(Happening(kind="loaded", model=model_id, seconds=seconds, engine=seat))
        if run.process is not None:
            launch = run.process.launch
            state.cache_rooms[model_id] = CacheRoom(time.time(), launch.slots, launch.prompt_cache)
            self._hold.begin(run.model, launch)
        self.perform(state.schedule.ready(model_id, _now()))

    async def _measure(self, run: ModelRun) -> None:
        state, model = self._state, run.model
        while not state.is_ready(model.id) or (process := run.process) is None or process.pid is None:
            await state.changed.wait()

        def tell(taken: Mapping[str, int]) -> None:
            if state.is_ready(model.id):
                buffers = process.buffers.by_device(run.engine.gpus if run.engine is not None else NO_GPUS)
                state.schedule.measured(model.id, state.budgets.taken(model, run.engine, taken, buffers))
                self.perform(state.schedule.tick(_now()))  # there may be room now for somebody who waits

        await keep_measuring(process.pid, lambda: state.schedule.limits.memory.keys(), self._means.gpus, tell)

    async def _keep_contexts(self, run: ModelRun) -> None:
        while not self._state.is_ready(run.model.id):
            await self._state.changed.wait()
        await self._hold.keep(run.model.id)

    async def _expire_later(self, run: ModelRun) -> None:
        """Stop a model under its leases when they have had their time."""
        with trio.move_on_after(run.stop_timeout):
            await run.gone.wait()
            return
        run.stop(politely=False)
        self.perform(self._state.schedule.expire(run.model.id))
