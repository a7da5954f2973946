"""The questions about a fleet: each is answered from its state at once, and changes nothing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import trio

from appliance.catalog.identities import made_of
from appliance.core.bodies.head import ODD_SLOT
from appliance.core.memory import DeviceUse
from appliance.core.models.model import Model
from appliance.core.scheduling.effects import GOING
from appliance.errors import KillsEngines, ModelUnloaded, ShuttingDown
from appliance.fleet.chooser import Chooser
from appliance.fleet.failures import Failures
from appliance.fleet.hold import SlotHold
from appliance.fleet.launch import NO_USE, Launch, same_launch
from appliance.fleet.launches import Launches
from appliance.fleet.outlook import Outlook
from appliance.fleet.run import END_NOTICED
from appliance.fleet.state import FleetState
from appliance.fleet.status import Broken, ChildStatus, status_of
from appliance.upstream.client import Address


class FleetView:
    """The half of a `Fleet` that only tells: its state, and the parts that are asked about it."""

    def __init__(self, state: FleetState, chooser: Chooser | None, hold: SlotHold) -> None:
        self.logs = state.logs
        self.cache_rooms, self.follow_waits = state.cache_rooms, state.waits.follow
        self.estimate = state.budgets.estimate
        self.hold = hold
        self._state, self._schedule, self._runs = state, state.schedule, state.runs
        self.outlook = Outlook(state.schedule, state.runs, state.budgets, state.load_times)
        self.launches = Launches(
            chooser, state.settings, state.logs, self._staying, self.outlook.plan, state.budgets.check
        )
        self._failures = Failures(state.runs, state.asked, self.launches)

    @property
    def busy(self) -> bool:
        """True while any request is under way, or a model starts."""
        return bool(self._state.asked)

    @property
    def capacity(self) -> int:
        """How many model processes may run at once, 0 for any number."""
        return self._schedule.limits.capacity

    @property
    def queued(self) -> int:
        """How many requests are in the queue."""
        return self._schedule.queued()

    @property
    def queue_timeout(self) -> float:
        """See `Lender`."""
        return self._state.settings.queue_timeout if self._state.config is None else self._state.config.queue_timeout

    def status(self) -> list[ChildStatus]:
        """Every model that has a process, waits for one, or had one before; sorted by id."""
        ids = sorted({*self._schedule.models(), *self._state.ends.last})
        return [status for model_id in ids if (status := self.known(model_id)) is not None]

    def known(self, model_id: str) -> ChildStatus | None:
        """The status of one model, None when it never ran."""
        run, last = self._runs.get(model_id), self._state.ends.last.get(model_id)
        there = last is not None or run is not None or self._schedule.waiting(model_id)
        slots = self.hold.of(model_id)
        held = slots.needed() if slots is not None else None
        return status_of(model_id, self._schedule, run, last, held) if there else None

    def outdated(self, models: Iterable[Model]) -> list[str]:
        """The ids of models whose process would be out of date if these were the models; nothing changes."""
        known = {model.id: model for model in models}
        return [m for m, run in self._runs.items() if not same_launch(run.model, known.get(m))]

    def is_as_started(self, model: Model) -> bool:
        """Return whether the process of a configured model, if there is one, runs what the model is now."""
        launch = self._launch(model.id) if model.config is not None else None
        return launch is None or launch.made_of == made_of(model)

    def is_ready(self, model_id: str) -> bool:
        """True if a request for it would be served at once."""
        return self._state.is_ready(model_id)

    def takes(self, model_id: str) -> bool:
        """True if a request for it would be leased at once: it is ready, not full, and makes room for no other."""
        return self._schedule.takes(model_id)

    def address(self, model_id: str) -> Address | None:
        """The model's address, if it is loaded now. Asking for it does not count as a use."""
        return self._runs[model_id].address if self._state.is_ready(model_id) else None

    def latest_used(self) -> str:
        """See `Schedule.latest_used`."""
        return self._schedule.latest_used()

    def stays_for(self, model_id: str) -> float:
        """Seconds until an idle process of the model stops; infinity if it stays."""
        return self._schedule.stays_for(model_id, trio.current_time())

    def memory(self, model_id: str) -> Mapping[str, int]:
        """Bytes by device that the model's process takes, as it was measured or is expected."""
        return self._schedule.memory(model_id)

    def planned_memory(self, model_id: str) -> Mapping[str, DeviceUse]:
        """The parts of what the model's process takes, as they were planned; empty where nothing is known of them."""
        launch = self._launch(model_id)
        return launch.memory if launch is not None else NO_USE

    def room(self) -> Mapping[str, int]:
        """Return the bytes that are free now for a model that is not here yet, by device."""
        return self._state.budgets.room(self.launches.engine)

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
        launch = self._launch(model_id)
        return launch is not None and launch.owns_slot_files

    def may_name_slot(self, model_id: str, slot: int) -> bool:
        """True if a request with a lease may name this slot: its server is not ours, or bears it, or it is alone."""
        launch = self._launch(model_id)
        if launch is None or launch.engine is None:
            return True
        return slot != ODD_SLOT and (launch.may_name_slots or self._schedule.leases(model_id) <= 1)

    def has_fallback(self, model_id: str) -> bool:
        """True if there is another seat to go to, should the process of this model die."""
        model, seat, launch = self._state.models.get(model_id), self.seat_of(model_id), self._launch(model_id)
        if model is None or seat is None:
            return False
        return bool(launch and launch.crew.workers) or self.launches.choose(model, (seat,)) is not None

    async def broke(self, model_id: str, address: Address, request: int = 0) -> Broken:
        """A connection to this process of the model broke; this waits for a moment until its end is known."""
        # Two tasks see a crash, in any order: the request finds a broken connection, and the owner sees the exit.
        # Judged too early, a crash looks like an engine that closed one connection, and the request does not go to the
        # next seat. All comparisons are by the identity of the address: another process of the model may run by now,
        # and its state says nothing about this connection.
        state = self._state
        with trio.move_on_after(END_NOTICED):
            while (run := self._runs.get(model_id)) is not None and run.address is address and not run.stop_requested:
                await self.wait_changed()
        run, ended, model = self._runs.get(model_id), state.ends.last.get(model_id), state.models.get(model_id)
        unloaded = ShuttingDown() if state.closing else ModelUnloaded(model_id)
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
        if ended.launch.made_of != made_of(state.current.get(model_id, model) if model.config is not None else model):
            return Broken(
                f"{ended.why}; the model's files or command have changed meanwhile, so nothing goes on with it"
            )
        following = self.launches.choose(model)
        elsewhere = following is not None and (following.seat != ended.engine.seat or ended.lost_worker)
        return Broken(ended.why, following.seat if following is not None and elsewhere else None)

    async def wait_changed(self) -> None:
        """Wait until anything in `status` has changed; every lease is a change."""
        await self._state.changed.wait()

    async def wait_gone(self, model_id: str) -> None:
        """Wait until the process that the model has now is gone; at once where it has none."""
        if (run := self._runs.get(model_id)) is not None:
            await run.gone.wait()

    async def wait_quiet(self, model_id: str) -> None:
        """Wait, before asking a process about itself, until it has noticed that a client has left.

        llama-server (b11434) looks for that only after a second without a result for anybody, and the answer to a
        question about its slots is such a result: asked every 20 ms, it went on generating for a client long gone.
        """
        await trio.sleep_until(max(trio.current_time(), self._failures.quiet_at.get(model_id, -math.inf)))

    def _launch(self, model_id: str) -> Launch | None:
        """The launch of the model's process; None without one."""
        run = self._runs.get(model_id)
        return run.process.launch if run is not None and run.process is not None else None

    def _staying(self) -> Mapping[str, Address]:
        """The addresses of the ready models that were not asked to stop."""
        staying = (m for m in self._runs if self._schedule.state(m) not in GOING)
        return {m: address for m in staying if (address := self._runs[m].address) is not None}
