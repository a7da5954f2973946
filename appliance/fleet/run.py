"""One model's time as a process: from the decision to start it until it is gone."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import Literal

import trio
from msgspec import Struct

from appliance.core.config.types import ModelConfig
from appliance.core.engine import Engine
from appliance.core.models.model import Model
from appliance.core.records.history import Happening
from appliance.core.rpc_workers import lost_worker
from appliance.core.secrets import secret_variables, secrets_of_command
from appliance.errors import ApplianceError, Busy, ModelFailedToStart, ModelUnloaded
from appliance.fleet.child import Exited, ModelProcess
from appliance.fleet.launch import Launch, is_taken, will_listen, with_ending
from appliance.fleet.lease import Lease
from appliance.fleet.logs import Logs
from appliance.platform.children import Children, describe_status
from appliance.trio_parts import AGAIN, lacking
from appliance.upstream.client import Address

HEALTH = "/health"
LAST_GRACE = 3.0
END_NOTICED = 0.25
"""Seconds that are given to notice why a connection broke; a child's exit is seen within milliseconds."""
RPC_TAIL = 200
"""Lines in which a process says that it lost a worker; a backtrace may follow."""
TAIL = 12
"""Log lines that a failed start shows."""
PORT_ATTEMPTS = 3
PORT_TAKEN = ("couldn't bind", "address already in use")
"""The words that llama-server prints (lower-cased) when another process took its port between our look and its bind."""
PORT_RELEASE = 2.0
"""Seconds that a configured port gets to become free: a container's port is released a moment after its client ends."""
PORT_LOOK = 0.02

How = Literal["stopped", "died", "failed"]

Prepare = Callable[[Model, Collection[str]], Awaitable[Launch | None]]
"""Prepares the launch of a model on another seat than these; None when there is no other. Raises ApplianceError."""


class RunEnd(Struct, frozen=True, kw_only=True):
    """The end of a run: on request, by itself when it was ready, or before."""

    how: How
    error: ApplianceError
    """The error for the requests that waited for its start."""
    argv: tuple[str, ...] = ()
    exit_code: int | None = None
    why: str | None = None
    """The reason of its end, for later questions; None when it was stopped."""
    launch: Launch | None = None
    """The launch that was started; None if there was none."""
    useless: bool = False
    """True if it was condemned as useless and stopped for that, which does not count as a crash."""
    lost_worker: bool = False
    """It aborted for want of a worker: its engine is not to blame, and starts again without that."""

    @property
    def engine(self) -> Engine | None:
        """The engine that it ran on, or should have; None for a configured model."""
        return self.launch.engine if self.launch is not None else None

    @property
    def crashed(self) -> bool:
        """It ended at work, by itself and badly."""
        return self.how == "died" and not self.useless and self.exit_code != 0

    def happening(self, model_id: str) -> Happening:
        """Return the timeline's entry for a process that did not start, or died."""
        why = self.error.why if isinstance(self.error, ModelFailedToStart) else str(self.error)
        return Happening(
            kind="failed" if self.how == "failed" else "crashed",
            model=model_id,
            engine=self.engine.seat if self.engine is not None else "",
            error=why.partition("\n")[0],
        )


class ModelRun:
    """Owned by the fleet, which makes it at once when it decides and then calls `run` in a task of its own."""

    def __init__(self, model: Model, prepare: Prepare, logs: Logs) -> None:
        self.model = model
        self.started_at = time.time()
        self.began = trio.current_time()
        self.ready_at: float | None = None
        """The time when its process was ready, on the clock of ``began``."""
        self.reused = False
        """A request has found it ready."""
        self.process: ModelProcess | None = None
        self.gone = trio.Event()
        """Set by the fleet, when its schedule knows of the end."""
        self.failures: list[RunEnd] = []
        """The failed starts on the seats that were tried before this one."""
        self.passed = 0
        """Bytes that came to the leases that have ended."""
        self.leases_ended = 0
        self.broken: list[tuple[Lease, float]] = []
        """Leases that ended with a broken connection, and when."""
        self.answered_at_work = False
        """It has answered its check endpoint while requests were under way."""
        self._prepare = prepare
        self._logs = logs
        self._first_line = logs.count(model.id)
        self._stop = trio.Event()
        self._condemned: str | None = None
        self._crashed = False

    @property
    def address(self) -> Address | None:
        """The address of the process; None before there is one."""
        return self.process.launch.address if self.process is not None else None

    @property
    def stop_timeout(self) -> float:
        """Seconds that it is given to end when it is asked to."""
        return self.process.launch.stop_timeout if self.process is not None else 0

    @property
    def engine(self) -> Engine | None:
        """The engine that it runs on; None before there is a process, and for a configured model."""
        return self.process.launch.engine if self.process is not None else None

    @property
    def last_grace(self) -> float:
        """Seconds that it is given to end when the program ends; the requests of an engine are over by then."""
        is_engine = self.process is not None and self.process.launch.protocol
        return min(self.stop_timeout, LAST_GRACE) if is_engine else self.stop_timeout

    @property
    def question(self) -> str | None:
        """The path of a question that shows whether it lives; None where there is none."""
        if self.process is None:
            return None
        return HEALTH if self.process.launch.protocol else self.process.launch.probe

    @property
    def answers_at_work(self) -> bool:
        """True if it is known to answer `question` while it computes."""
        launch = self.process.launch if self.process is not None else None
        return self.answered_at_work or (launch is not None and (launch.protocol or launch.engine is not None))

    @property
    def stop_requested(self) -> bool:
        """True if it ends on request: it was not condemned, and has not died before it was asked."""
        asked = self.process is None or self.process.asked
        return self._stop.is_set() and asked and self._condemned is None

    @property
    def is_condemned(self) -> bool:
        return self._condemned is not None

    def stop(self, *, politely: bool = True) -> None:
        """Ask for the end, see `ModelProcess.stop`. If there is no process yet, none is started."""
        self._stop.set()
        if self.process is not None:
            # A process that dies breaks its connections first. With their leases gone the model is idle, and may be
            # evicted before the exit is noticed. Asked at once it would pass for one that ended on request, and the
            # requests whose answers broke would not go to the next seat.
            broke_at = self.broken[-1][1] if self.broken else -math.inf
            dying = trio.current_time() < broke_at + END_NOTICED
            self.process.stop(politely=politely, notice=END_NOTICED if dying else 0.0)

    def condemn(self, why: str, *, crashed: bool) -> None:
        """Stop it without asking: it would not answer. ``crashed``: that counts as its own end."""
        self._condemned, self._crashed = why, crashed
        self.stop(politely=False)

    def follow(self, config: ModelConfig) -> None:
        """The configuration has changed in ways that need no other process."""
        if self.process is not None:
            self.process.launch = with_ending(self.process.launch, config)

    async def run(self, children: Children, *, on_ready: Callable[[], None]) -> RunEnd:
        """Start it, see it to its end, and say how it ended. Raises nothing that is expected.

        A model that does not start on one seat is tried on the next: only if it starts there was the first seat to
        blame. Where all fail, the first failure is reported.
        """
        while True:
            ended = await self._run_on_next_seat(children, on_ready)
            if ended is None:
                return self.failures[0]
            if ended.how != "failed" or ended.engine is None or self._stop.is_set():
                return ended
            self.failures.append(ended)

    async def _run_on_next_seat(self, children: Children, on_ready: Callable[[], None]) -> RunEnd | None:
        """None when there is no seat that was not tried."""
        launch: Launch | None = None
        tried = [ended.engine.seat for ended in self.failures if ended.engine is not None]
        try:
            for attempt in range(1, PORT_ATTEMPTS + 1):
                # Each attempt prepares a new launch: the lost port, or the lost worker, is part of the old one.
                launch = await self._prepare(self.model, tried)
                if launch is None:
                    return None
                self._first_line = self._logs.count(self.model.id)
                exited = await self._run_once(launch, children, on_ready)
                if exited is None or attempt == PORT_ATTEMPTS or not self._had_bad_luck(launch, exited):
                    return self._ended(launch, exited)
            raise AssertionError("the last attempt returns")
        except ModelFailedToStart as cause:
            return self._not_started(launch, cause.why)
        except ApplianceError as cause:
            return self._refused(launch, cause)
        except Exception as cause:
            if why := lacking(cause):  # no seat is to blame, and it may work a moment later
                told = f"model '{self.model.id}' cannot be loaded now: {why}"
                return self._refused(launch, Busy(told, retry_after=AGAIN))
            if not isinstance(cause, OSError | ValueError):
                raise
            reason = cause.strerror if isinstance(cause, OSError) else None
            command = f"its command '{launch.argv[0]}'" if launch is not None else "its command"
            return self._not_started(launch, f"{command} cannot be executed: {reason or cause}")

    async def _run_once(self, launch: Launch, children: Children, on_ready: Callable[[], None]) -> Exited | None:
        """None when a stop came before there was a process."""
        if self.model.config is not None and will_listen(self.model.config, launch.address):
            await self._wait_for_port(launch.address)
        if launch.delay:
            with trio.move_on_after(launch.delay):
                await self._stop.wait()
        if self._stop.is_set():
            return None
        logs, model_id = self._logs, self.model.id
        logs.know(model_id, [*secrets_of_command(launch.argv), *secret_variables(launch.env)])
        self.process = ModelProcess(launch, partial(logs.append, model_id), partial(logs.lose, model_id))
        return await self.process.run(children, on_ready=on_ready)

    def said(self, most: int | None = None) -> list[str]:
        """The last lines of this process's log that are held, at most so many."""
        own = self._logs.count(self.model.id) - self._first_line
        return self._logs.tail(self.model.id, own if most is None else min(most, own))

    async def _wait_for_port(self, address: Address) -> None:
        """Wait until the command's port is free. Raises ModelFailedToStart when another program keeps it."""
        until = trio.current_time() + PORT_RELEASE
        while is_taken(address) and not self._stop.is_set():
            if trio.current_time() >= until:
                why = f"port {address.port} is taken by another program; stop that, or change startPort or the port"
                raise ModelFailedToStart(self.model.id, why)
            with trio.move_on_after(PORT_LOOK):
                await self._stop.wait()

    def _had_bad_luck(self, launch: Launch, exited: Exited) -> bool:
        """True if the same engine may be started once more: its start failed through no fault of its own."""
        if exited.was_ready or self._stop.is_set():
            return False
        return self._lost_its_port(exited) or self._lost_worker(launch)

    def _lost_worker(self, launch: Launch) -> bool:
        return bool(launch.crew.workers) and lost_worker(self.said(RPC_TAIL))

    def _lost_its_port(self, exited: Exited) -> bool:
        """True if another program took the engine's port first; a new launch takes a new port."""
        if exited.was_ready or self._stop.is_set() or self.model.config is not None:
            return False
        # A port cannot be reserved for a child: it is found free, closed, and bound by the engine a moment later. Any
        # program may take it in between. No look beforehand can exclude that, so the engine's own words are read
        # afterwards.
        text = "\n".join(self._logs.tail(self.model.id, TAIL)).lower()
        return any(phrase in text for phrase in PORT_TAKEN)

    def _ended(self, launch: Launch, exited: Exited | None) -> RunEnd:
        model_id = self.model.id
        # Condemned comes first: `condemn` also sets ``_stop``, and the end of a hung process would pass for one on
        # request.
        if self._condemned is not None:
            error = ModelFailedToStart(model_id, self._condemned)
            why = f"it was stopped: {self._condemned}"
            return RunEnd(how="died", error=error, argv=launch.argv, launch=launch, why=why, useless=not self._crashed)
        if exited is None or (self._stop.is_set() and exited.asked):
            return RunEnd(how="stopped", error=ModelUnloaded(model_id), argv=launch.argv, launch=launch)
        why = describe_status(exited.status)
        if exited.timed_out:
            seen = f" ({exited.last_look})" if exited.last_look and not launch.protocol else ""
            why = f"it was not ready within {launch.load_timeout:g} s{seen}"
        elif exited.status == 0 and not exited.was_ready:
            why += " before it was ready; its cmd must run as long as the server does"
        if lost := self._lost_worker(launch):
            workers = ", ".join(worker.endpoint for worker in launch.crew.workers)
            why = f"it lost a worker ({workers}); the next start goes without those that are away"
        error = ModelFailedToStart(model_id, why, self.said(TAIL))
        how, shown = ("died", f"it died: {why}") if exited.was_ready else ("failed", str(error))
        return RunEnd(
            how=how,
            error=error,
            argv=launch.argv,
            launch=launch,
            exit_code=exited.status,
            why=shown,
            lost_worker=lost,
        )

    def _refused(self, launch: Launch | None, error: ApplianceError) -> RunEnd:
        return RunEnd(how="failed", error=error, argv=launch.argv if launch else (), why=str(error))

    def _not_started(self, launch: Launch | None, why: str) -> RunEnd:
        error = ModelFailedToStart(self.model.id, self._logs.secrets.hidden(why))
        return RunEnd(how="failed", error=error, argv=launch.argv if launch else (), why=str(error), launch=launch)
