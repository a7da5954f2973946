"""The owner of all model processes: carries out what `core.schedule` decides."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext

import msgspec
import trio
from msgspec import Struct

from appliance.core.model import Model, engine_flags
from appliance.core.schedule import Drain, Effect, Grant, Refuse, Schedule, Start, State, Stop
from appliance.core.settings import FleetSettings
from appliance.engines.found import Engine
from appliance.errors import ApplianceError, Busy, ModelFailedToStart, ModelUnloaded
from appliance.fleet.child import Exited, ModelProcess
from appliance.fleet.command import model_command
from appliance.fleet.logs import Logs
from appliance.platform.children import Children, describe_status, open_children
from appliance.platform.cpu import engine_threads
from appliance.upstream.client import Address

NOTICE_TIME = 1.1
"""llama-server's second between two looks, and a little."""
LAST_GRACE = 3.0
"""Seconds that processes get to end by themselves when the program ends; their requests are over by then."""
TAIL = 12
"""Log lines that a failed start shows."""
PORT_ATTEMPTS = 3
PORT_TAKEN = ("couldn't bind", "address already in use")
"""What llama-server prints (lower-cased) when somebody took its port between our look and its bind."""


class ChildStatus(Struct, frozen=True, kw_only=True):
    """One model process, or the last one a model had, as others may see it. Times are unix seconds."""

    model: str
    state: str
    pid: int | None = None
    port: int | None = None
    leases: int = 0
    waiting: int = 0
    argv: tuple[str, ...] = ()
    exit_code: int | None = None
    error: str | None = None
    started_at: float | None = None
    progress: msgspec.Raw | None = None
    """llama-server's own loading progress, JSON."""
    ready_info: msgspec.Raw | None = None
    """llama-server's own description of the loaded model, JSON."""


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

    def __init__(self, settings: FleetSettings, engine: Engine, children: Children, nursery: trio.Nursery) -> None:
        self.engine = engine
        self.logs = Logs()
        self.closing = False
        self._settings = settings
        self._threads = settings.threads or engine_threads()
        self._children = children
        self._nursery = nursery
        self._schedule = Schedule(settings.models_max)
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
        return self._settings.models_max

    # ---- using models ------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def lease(self, model: Model) -> AsyncGenerator[Address]:
        """Hold the model loaded for the length of the block; queues, loads and evicts first as needed.

        Raises ModelFailedToStart, ModelUnloaded, Busy (waited longer than the queue timeout) and ShuttingDown.
        Leaving, for whatever reason and at whatever moment, gives the lease back.
        """
        ticket = next(self._tickets)
        waiter = self._waiters[ticket] = _Waiter()
        try:
            self._models[model.id] = model
            self._perform(self._schedule.request(ticket, model.id))
            with trio.move_on_after(self._settings.queue_timeout):
                await waiter.answered.wait()
            if waiter.error is not None:
                raise waiter.error.with_traceback(None)
            if waiter.address is None:
                raise Busy(
                    f"model '{model.id}' waited {self._settings.queue_timeout:g} s for a place; all "
                    f"{self.capacity} are in use",
                    retry_after=5,
                )
            yield waiter.address
        except trio.Cancelled:
            self._left_at[model.id] = trio.current_time()
            raise
        finally:
            del self._waiters[ticket]
            self._perform(self._schedule.release(ticket))

    def lease_nowait(self, model_id: str) -> AbstractContextManager[Address] | None:
        """The address of a model that is loaded now, without counting as a use: for introspection. Never loads."""
        if self._schedule.state(model_id) is not State.READY:
            return None
        return nullcontext(self._processes[model_id].address)

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
        self._perform(self._schedule.unload(model_id))
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
            port=process.port,
            leases=self._schedule.leases(model_id),
            waiting=self._schedule.waiting(model_id),
            argv=tuple(process.argv),
            started_at=self._started_at.get(model_id),
            progress=process.state.payload if process.state.state == "loading" else None,
            ready_info=process.ready_info,
        )

    # ---- carrying out ------------------------------------------------------------------------------------------------

    def _perform(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Start(model_id):
                    self._nursery.start_soon(self._own_process, self._models[model_id])
                case Stop(model_id):
                    if process := self._processes.get(model_id):
                        process.stop()
                case Drain(model_id):
                    self._nursery.start_soon(self._expire_later, model_id)
                case Grant(ticket, model_id):
                    waiter = self._waiters[ticket]
                    waiter.address = self._processes[model_id].address
                    waiter.answered.set()
                case Refuse(ticket, error):
                    self._waiters[ticket].error = error
                    self._waiters[ticket].answered.set()
        self._changed.set()
        self._changed = trio.Event()

    async def _own_process(self, model: Model) -> None:
        """The one task that owns the model's process, from its start to the schedule's knowledge of its end."""
        error: ApplianceError = ModelUnloaded(model.id)
        try:
            exited = await self._run_process(model)
            for _ in range(PORT_ATTEMPTS - 1):
                if exited.was_ready or not self._port_was_taken(model.id):
                    break
                exited = await self._run_process(model)
            error = self._note_end(model.id, exited)
        except OSError as cause:
            error = ModelFailedToStart(model.id, f"cannot execute {self.engine.command[0]}: {cause.strerror}")
            self._last[model.id] = _Last((), None, str(error))
        finally:
            self._processes.pop(model.id, None)
            self._perform(self._schedule.exited(model.id, error))

    async def _run_process(self, model: Model) -> Exited:
        def command(port: int) -> tuple[str, ...]:
            return model_command(
                self.engine.command,
                backend=self.engine.backend,
                model_id=model.id,
                path=str(model.path),
                port=port,
                threads=self._threads,
                metrics=self._settings.metrics,
                defaults=(*engine_flags(model), *model.args),
                overrides=self._settings.engine_args,
            )

        process = ModelProcess(
            model.id, command, lambda line: self.logs.append(model.id, line), self._settings.stop_timeout
        )
        if self._schedule.state(model.id) is State.STOPPING:
            process.stop()  # unloaded before this task's first step
        self._processes[model.id] = process
        self._started_at[model.id] = time.time()
        return await process.run(
            self._children,
            load_timeout=self._settings.load_timeout,
            on_ready=lambda: self._perform(self._schedule.ready(model.id)),
        )

    def _note_end(self, model_id: str, exited: Exited) -> ApplianceError:
        """Remember how the process ended; the error is for those who waited for its start."""
        wanted = self._schedule.state(model_id) is State.STOPPING
        argv = tuple(self._processes[model_id].argv)
        if wanted:
            self._last[model_id] = _Last(argv, None, None)
            return ModelUnloaded(model_id)
        why = (
            f"it was not ready within {self._settings.load_timeout:g} s"
            if exited.timed_out
            else describe_status(exited.status)
        )
        error = ModelFailedToStart(model_id, why, self.logs.tail(model_id, TAIL))
        self._last[model_id] = _Last(argv, exited.status, f"it died: {why}" if exited.was_ready else str(error))
        return error

    def _port_was_taken(self, model_id: str) -> bool:
        if self._schedule.state(model_id) is not State.STARTING:
            return False
        text = "\n".join(self.logs.tail(model_id, TAIL)).lower()
        return any(phrase in text for phrase in PORT_TAKEN)

    async def _expire_later(self, model_id: str) -> None:
        process = self._processes.get(model_id)
        with trio.move_on_after(self._settings.stop_timeout):
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

    def close(self) -> None:
        """Take no new work and ask every process to end; `open_fleet` waits for them."""
        self.closing = True
        self._perform(self._schedule.close())
        for model_id in list(self._schedule.models()):
            self._perform(self._schedule.unload(model_id))


_SHOWN = {State.STARTING: "loading", State.DRAINING: "stopping", State.STOPPING: "stopping"}


@asynccontextmanager
async def open_fleet(settings: FleetSettings, engine: Engine) -> AsyncGenerator[Fleet]:
    """Own every model process. Leaving the block stops them all, politely at first; cancelling kills."""
    async with open_children() as children, trio.open_nursery() as nursery:
        fleet = Fleet(settings, engine, children, nursery)
        yield fleet
        fleet.close()
        nursery.cancel_scope.deadline = trio.current_time() + min(settings.stop_timeout, LAST_GRACE)
