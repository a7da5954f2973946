"""The owner of all model processes: carries out what `core.schedule` decides."""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from functools import partial

import msgspec
import trio
from msgspec import Struct

from appliance.core.config.types import Config
from appliance.core.effects import Drain, Effect, Grant, Refuse, Start, State, Stop
from appliance.core.model import Model
from appliance.core.policy import FreePolicy
from appliance.core.schedule import Schedule
from appliance.core.settings import FleetSettings
from appliance.engines.found import Engine
from appliance.errors import ApplianceError, Busy, ModelFailedToStart, ModelUnloaded
from appliance.fleet.child import Exited, ModelProcess
from appliance.fleet.launch import configured_launch, engine_launch, port_conflict, same_launch
from appliance.fleet.logs import Logs
from appliance.fleet.place import Place
from appliance.fleet.status import ChildStatus, Observer
from appliance.fleet.terms import limits_of, policy_for, terms_of
from appliance.platform.children import REAP_TIME, Children, describe_status, open_children
from appliance.platform.cpu import engine_threads
from appliance.platform.memory import process_memory
from appliance.upstream.client import Address

NOTICE_TIME = 1.1
"""llama-server's second between two looks, and a little."""
LAST_GRACE = 3.0
"""Seconds that engines get to end by themselves when the program ends; their requests are over by then."""
TAIL = 12
"""Log lines that a failed start shows."""
PORT_ATTEMPTS = 3
PORT_TAKEN = ("couldn't bind", "address already in use")
"""What llama-server prints (lower-cased) when somebody took its port between our look and its bind."""
PORT_RELEASE = 2.0
"""Seconds that a configured port gets to become free: what a container published goes a moment after its client."""
PORT_LOOK = 0.05
MEASURE_AFTER = 1.0
MEASURE_EVERY = 30.0

log = logging.getLogger(__name__)


class _Waiter:
    """The holder of one ticket, until the schedule has an answer."""

    def __init__(self) -> None:
        self.answered = trio.Event()
        self.address: Address | None = None
        self.error: ApplianceError | None = None


class _Last(Struct, frozen=True):
    """How a model's last process ended."""

    argv: tuple[str, ...]
    exit_code: int | None
    error: str | None


class Fleet:
    """Gives out leases on running models; starts, stops and restarts their processes as needed.

    Made by `open_fleet`. Every method that is not async is atomic.
    """

    def __init__(
        self, settings: FleetSettings, engine: Engine | None, children: Children, nursery: trio.Nursery
    ) -> None:
        self.engine = engine
        self.logs = Logs()
        self.closing = False
        self.observer: Observer | None = None
        self._config: Config | None = None
        self._settings = settings
        self._threads = settings.threads or engine_threads()
        self._children = children
        self._nursery = nursery
        self._schedule = Schedule(limits_of(None, settings), FreePolicy())
        self._alarm = trio.CancelScope()
        self._tickets = itertools.count()
        self._waiters: dict[int, _Waiter] = {}
        self._models: dict[str, Model] = {}
        self._processes: dict[str, ModelProcess] = {}
        self._started_at: dict[str, float] = {}
        self._last: dict[str, _Last] = {}
        self._left_at: dict[str, float] = {}
        self._changed = trio.Event()

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

        What has not changed goes on running. Such a process is stopped when its requests under way have ended, and who
        waits for its model gets the new one.
        """
        self._config = config
        current = {model.id: model for model in models}
        outdated = [m for m in self._processes if not same_launch(self._models[m], current.get(m))]
        self._models |= {model_id: model for model_id, model in current.items() if model_id in self._models}
        self._perform(self._schedule.adopt(limits_of(config, self._settings), policy_for(config), _now()))
        for model_id in outdated:
            terms = terms_of(self._models[model_id], config, self._settings)
            self._perform(self._schedule.retire(model_id, terms, _now()))
        return outdated

    # ---- using models ------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def lease(self, model: Model, place: Place | None = None) -> AsyncGenerator[Address]:
        """Hold the model loaded for the length of the block; queues, loads and evicts first as needed.

        ``place`` tells meanwhile how far it is. Raises ModelFailedToStart, ModelUnloaded, TooManyRequests, Busy (no
        room in the queue, or waited longer than the queue timeout) and ShuttingDown. Leaving, for whatever reason and
        at whatever moment, gives the lease back.
        """
        ticket = next(self._tickets)
        waiter = self._waiters[ticket] = _Waiter()
        asked_at = _now()
        try:
            self._models[model.id] = model
            terms = terms_of(model, self._config, self._settings)
            self._perform(self._schedule.request(ticket, model.id, terms, asked_at))
            if place is not None:
                place.take(lambda: self._schedule.position(ticket, _now()), lambda: self._progress(model.id))
            with trio.move_on_after(self._queue_timeout):
                await waiter.answered.wait()
            if waiter.error is not None:
                raise waiter.error.with_traceback(None)
            if waiter.address is None:
                raise Busy(f"model '{model.id}' waited {self._queue_timeout:g} s for its turn", retry_after=5)
            if self.observer is not None:
                self.observer.waited(model.id, _now() - asked_at)
            yield waiter.address
        except trio.Cancelled:
            self._left_at[model.id] = _now()
            raise
        finally:
            if place is not None:
                place.leave()
            del self._waiters[ticket]
            self._perform(self._schedule.release(ticket, _now()))

    @property
    def _queue_timeout(self) -> float:
        return self._settings.queue_timeout if self._config is None else self._config.queue_timeout

    def _progress(self, model_id: str) -> msgspec.Raw | None:
        process = self._processes.get(model_id)
        return process.state.payload if process is not None and process.state.state == "loading" else None

    def is_ready(self, model_id: str) -> bool:
        """Whether a request for it would be served at once."""
        return self._schedule.state(model_id) is State.READY

    def lease_nowait(self, model_id: str) -> AbstractContextManager[Address] | None:
        """The address of a model that is loaded now, without counting as a use: for introspection. Never loads."""
        if self._schedule.state(model_id) is not State.READY:
            return None
        return nullcontext(self._processes[model_id].launch.address)

    async def wait_quiet(self, model_id: str) -> None:
        """Wait, before asking a process about itself, until it has noticed that a client has left.

        llama-server (b11434) looks for that only after a second without a result for anybody, and the answer to a
        question about its slots is such a result: asked every 20 ms, it went on generating for a client long gone.
        """
        left_at = self._left_at.get(model_id, -math.inf)
        await trio.sleep_until(max(trio.current_time(), left_at + NOTICE_TIME))

    async def load(self, model: Model, *, wait: bool = True) -> None:
        """Load the model as a request for it would. Without ``wait``, return when the request for it is placed."""
        if wait:
            async with self.lease(model):
                return
        self._nursery.start_soon(self._load_quietly, model)
        await trio.lowlevel.checkpoint()

    async def unload(self, model_id: str, *, wait: bool = True) -> bool:
        """Stop the model's process, letting its requests finish within the stop timeout. False: it had none."""
        running = self._schedule.state(model_id) is not None or self._schedule.waiting(model_id) > 0
        process = self._processes.get(model_id)
        self._perform(self._schedule.unload(model_id, _now()))
        while wait and process is not None and self._processes.get(model_id) is process:
            await self._changed.wait()
        return running

    # ---- looking -----------------------------------------------------------------------------------------------------

    def status(self) -> list[ChildStatus]:
        """Every model that has a process, waits for one, or had one before; sorted by id."""
        return [self._status(model_id) for model_id in sorted({*self._schedule.models(), *self._last})]

    def known(self, model_id: str) -> ChildStatus | None:
        """The status of one model, None when it never ran."""
        if model_id in self._last or model_id in self._processes or self._schedule.waiting(model_id):
            return self._status(model_id)
        return None

    async def wait_changed(self) -> None:
        """Wait until any model's state has changed."""
        await self._changed.wait()

    def _status(self, model_id: str) -> ChildStatus:
        state, process, last = (
            self._schedule.state(model_id),
            self._processes.get(model_id),
            self._last.get(model_id),
        )
        if state is None or process is None:
            return ChildStatus(
                model=model_id,
                state="queued" if self._schedule.waiting(model_id) else "unloaded",
                waiting=self._schedule.waiting(model_id),
                argv=last.argv if last else (),
                exit_code=last.exit_code if last else None,
                error=last.error if last else None,
            )
        asleep = state is State.READY and process.state.state == "sleeping"
        return ChildStatus(
            model=model_id,
            state="sleeping" if asleep else "loaded" if state is State.READY else _SHOWN[state],
            pid=process.pid,
            port=process.launch.address.port,
            leases=self._schedule.leases(model_id),
            waiting=self._schedule.waiting(model_id),
            argv=process.launch.argv,
            started_at=self._started_at.get(model_id),
            progress=self._progress(model_id),
            ready_info=process.ready_info,
        )

    # ---- carrying out ------------------------------------------------------------------------------------------------

    def _perform(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Start(model_id):
                    log.info("loading model '%s'", model_id)
                    self._nursery.start_soon(self._own_process, self._models[model_id])
                case Stop(model_id, why):
                    log.info("stopping model '%s' (%s)", model_id, why)
                    if why == "evicted" and self.observer is not None:
                        self.observer.evicted(model_id)
                    if process := self._processes.get(model_id):
                        process.stop()
                case Drain(model_id):
                    self._nursery.start_soon(self._expire_later, model_id)
                case Grant(ticket, model_id):
                    waiter = self._waiters[ticket]
                    waiter.address = self._processes[model_id].launch.address
                    waiter.answered.set()
                case Refuse(ticket, error):
                    self._waiters[ticket].error = error
                    self._waiters[ticket].answered.set()
        self._alarm.deadline = -math.inf if self._ended else self._schedule.deadline(_now())
        self._changed.set()
        self._changed = trio.Event()

    async def keep_time(self) -> None:
        """Tell the schedule of the time until all has ended; run by `open_fleet`."""
        while not self._ended:
            with trio.CancelScope(deadline=self._schedule.deadline(_now())) as self._alarm:
                await trio.sleep_forever()
            self._perform(self._schedule.tick(_now()))

    async def _own_process(self, model: Model) -> None:
        """The one task that owns the model's process, from its start to the schedule's knowledge of its end."""
        error: ApplianceError = ModelUnloaded(model.id)
        try:
            exited = await self._run_process(model)
            for _ in range(PORT_ATTEMPTS - 1):
                if exited.was_ready or model.config is not None or not self._port_was_taken(model.id):
                    break
                exited = await self._run_process(model)
            error = self._note_end(model.id, exited)
        except OSError as cause:
            error = ModelFailedToStart(model.id, f"its command cannot be executed: {cause.strerror or cause}")
            self._note_failure(model.id, error)
        except ApplianceError as cause:
            error = cause
            self._note_failure(model.id, error)
        finally:
            self._processes.pop(model.id, None)
            self._perform(self._schedule.exited(model.id, error, _now()))

    async def _run_process(self, model: Model) -> Exited:
        """Raises OSError, and ApplianceError for what is wrong before the process exists."""
        if model.config is None:
            launch = engine_launch(model, self.engine, self._settings, self._threads)
        else:
            launch = configured_launch(model.id, model.config)
        process = ModelProcess(launch, lambda line: self.logs.append(model.id, line))
        if self._schedule.state(model.id) is State.STOPPING:
            process.stop()  # unloaded before this task's first step
        self._processes[model.id] = process
        self._started_at[model.id] = time.time()
        began = _now()
        if model.config is not None:
            await self._wait_for_port(model, launch.address)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._measure, model.id, process)
            exited = await process.run(self._children, on_ready=partial(self._on_ready, model.id, began))
            nursery.cancel_scope.cancel()
        return exited

    def _on_ready(self, model_id: str, began: float) -> None:
        seconds = _now() - began
        log.info("model '%s' is ready after %.2f s", model_id, seconds)
        if self.observer is not None:
            self.observer.loaded(model_id, seconds)
        self._perform(self._schedule.ready(model_id, _now()))

    async def _wait_for_port(self, model: Model, address: Address) -> None:
        """Raises ModelFailedToStart when somebody else keeps the port that the command is about to take."""
        assert model.config is not None
        until = _now() + PORT_RELEASE
        while conflict := port_conflict(model.config, address):
            if _now() >= until:
                raise ModelFailedToStart(model.id, conflict)
            await trio.sleep(PORT_LOOK)

    async def _measure(self, model_id: str, process: ModelProcess) -> None:
        """Find out what the process takes, where it matters."""
        while not self.is_ready(model_id):
            await self._changed.wait()
        await trio.sleep(MEASURE_AFTER)
        while True:
            if process.pid is not None and (devices := self._schedule.limits.memory):
                taken = await trio.to_thread.run_sync(process_memory, process.pid, tuple(devices))
                self._schedule.measured(model_id, taken)
            await trio.sleep(MEASURE_EVERY)

    def _note_end(self, model_id: str, exited: Exited) -> ApplianceError:
        """Remember how the process ended; the error is for those who waited for its start."""
        wanted = self._schedule.state(model_id) is State.STOPPING
        launch = self._processes[model_id].launch
        if wanted:
            self._last[model_id] = _Last(launch.argv, None, None)
            return ModelUnloaded(model_id)
        why = (
            f"it was not ready within {launch.load_timeout:g} s" if exited.timed_out else describe_status(exited.status)
        )
        error = ModelFailedToStart(model_id, why, self.logs.tail(model_id, TAIL))
        self._last[model_id] = _Last(launch.argv, exited.status, f"it died: {why}" if exited.was_ready else str(error))
        if exited.was_ready:
            log.warning("model '%s' died: %s", model_id, why)
            if self.observer is not None:
                self.observer.died(model_id)
        else:
            self._tell_failure(error, model_id)
        return error

    def _note_failure(self, model_id: str, error: ApplianceError) -> None:
        self._last[model_id] = _Last((), None, str(error))
        self._tell_failure(error, model_id)

    def _tell_failure(self, error: ApplianceError, model_id: str) -> None:
        log.warning("%s", error)
        if self.observer is not None:
            self.observer.load_failed(model_id)

    def _port_was_taken(self, model_id: str) -> bool:
        if self._schedule.state(model_id) is not State.STARTING:
            return False
        text = "\n".join(self.logs.tail(model_id, TAIL)).lower()
        return any(phrase in text for phrase in PORT_TAKEN)

    async def _expire_later(self, model_id: str) -> None:
        process = self._processes.get(model_id)
        with trio.move_on_after(process.launch.stop_timeout if process else self._settings.stop_timeout):
            while process is not None and self._processes.get(model_id) is process:
                await self._changed.wait()
            return
        if process is not None:
            process.stop(politely=False)
        self._perform(self._schedule.expire(model_id))

    async def _load_quietly(self, model: Model) -> None:
        """A load that nobody waits for: its failure is kept in `status`."""
        try:
            async with self.lease(model):
                pass
        except ApplianceError:
            pass  # noted where `status` shows it

    @property
    def _ended(self) -> bool:
        return self.closing and not self._schedule.models()

    def close(self) -> float:
        """Take no new work and ask every process to end; the result is how many seconds they may take."""
        self.closing = True
        launches = [process.launch for process in self._processes.values()]
        grace = max(
            (min(one.stop_timeout, LAST_GRACE) if one.protocol else one.stop_timeout for one in launches), default=0.0
        )
        self._perform(self._schedule.close())
        for model_id in list(self._schedule.models()):
            self._perform(self._schedule.unload(model_id, _now()))
        return grace + REAP_TIME


def _now() -> float:
    return trio.current_time()


_SHOWN = {State.STARTING: "loading", State.DRAINING: "stopping", State.STOPPING: "stopping"}


@asynccontextmanager
async def open_fleet(settings: FleetSettings, engine: Engine | None) -> AsyncGenerator[Fleet]:
    """Own every model process. Leaving the block stops them all, politely at first; cancelling kills."""
    async with open_children() as children, trio.open_nursery() as nursery:
        fleet = Fleet(settings, engine, children, nursery)
        nursery.start_soon(fleet.keep_time)
        yield fleet
        nursery.cancel_scope.deadline = _now() + fleet.close()
