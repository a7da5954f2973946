"""The outlook of a fleet: how a model would start now, what would go for it, and how long loads take."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import trio

from appliance.core.engine import Engine
from appliance.core.machine_look import MachineLook
from appliance.core.memory import RAM, FitPlan, GpuMemory, Sizes
from appliance.core.models.model import Model
from appliance.core.scheduling.effects import Foresight, ProcessState
from appliance.core.scheduling.policy import NO_MEMORY
from appliance.core.scheduling.schedule import Schedule
from appliance.core.scheduling.waiting import LoadTimes
from appliance.fleet.budgets import Budgets
from appliance.fleet.run import ModelRun


class Outlook:
    """Owned by the fleet, whose schedule, processes and budgets these are. It changes none of them."""

    def __init__(
        self, schedule: Schedule, runs: Mapping[str, ModelRun], budgets: Budgets, load_times: LoadTimes
    ) -> None:
        self._schedule = schedule
        self._runs = runs
        self._budgets = budgets
        self._load_times = load_times

    @property
    def look(self) -> MachineLook | None:
        """The machine that the budgets are for; None before the first look."""
        return self._budgets.look

    def plan(
        self, model: Model, engine: Engine | None, further: Sizes = NO_MEMORY, going: Collection[str] = ()
    ) -> FitPlan | None:
        """Plan the model's next start on this engine, in the memory that is free now and in ``further`` elsewhere.

        None where its file does not say enough. Asks the system, for a millisecond. The plan counts the models that
        have a process now, but not those that are ``going``. Without an engine there is nothing to plan: a configured
        model has its own command.
        """
        if engine is None:
            return None
        # The model's own share is left out: the plan is for its next start, when its present process is gone.
        gone = (model.id, *going)
        staying = [run for name, run in self._runs.items() if name not in gone]
        cached = sum(run.process.launch.prompt_cache for run in staying if run.process is not None)
        taken = self._schedule.taken().get(RAM, 0) - sum(self._schedule.memory(each).get(RAM, 0) for each in gone)
        room = self._budgets.room(engine)
        for each in going:
            room = {device: size + self._schedule.memory(each).get(device, 0) for device, size in room.items()}
        return self._budgets.plan(model, engine, {**room, **further}, taken, cached)

    def takes(self, model: Model, engine: Engine | None) -> Sizes:
        """Return the bytes by device that count for the model's process, or would if it had one on this engine."""
        return self._schedule.memory(model.id) or self._budgets.terms(model, engine).memory

    def foresee(self, model: Model, engine: Engine | None) -> Foresight:
        """Return the effect that a request for the model would have now. Asks the system."""
        return self._schedule.foresee(model.id, self._budgets.terms(model, engine), trio.current_time())

    def devices(self) -> Mapping[str, GpuMemory]:
        """Return main memory and the cards, with what is used of each by anybody. Asks the system."""
        return self._budgets.devices()

    def budgets(self) -> Sizes:
        """The most that all models may take of each device that has a limit, in bytes."""
        return self._schedule.limits.memory

    def wait_of(self, ticket: int) -> float | None:
        """Seconds until all is loaded that this ticket waits for; None where that was not measured before."""
        awaited = self._schedule.awaited(ticket, trio.current_time())
        return self.time_to_load(awaited) if awaited else None

    def time_to_load(self, models: Sequence[str]) -> float | None:
        """Seconds until all of these have loaded, those that load now included; None as for `wait_of`."""
        now = trio.current_time()
        loading = {m: now - self._runs[m].began for m in models if self._schedule.state(m) is ProcessState.STARTING}
        return self._load_times.expected(models, loading)
