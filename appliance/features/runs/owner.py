"""The owner of all agent runs: one task each, slots per model, restarts of engines that hang, results that stay."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec
import trio
from msgspec import structs

from appliance.core.config.additions import RunsConfig
from appliance.core.lenient_json import decoded
from appliance.core.runs.inward import Asker
from appliance.core.tools.box import Toolbox
from appliance.errors import BadRequest, Conflict, NotFound, ShuttingDown, WorkerFailed
from appliance.features.runs.record import ModelRuns, PastRun, RunRecord, WorkerState, WorkerStatus, given_up
from appliance.fleet.owner import Fleet
from appliance.trio_parts import beside, every

if TYPE_CHECKING:
    from appliance.features.runs.record import Clocks
    from appliance.features.runs.run import AgentRun, RequestedRun
    from appliance.features.runs.store import RunStore

SAVE_EVERY = 1.0  # seconds between two looks for runs whose output has grown
MAX_KEPT = 256 << 20  # bytes of all results that are kept, not counting the newest one
TAIL = 12  # number of log lines that a locked-out model shows
PROGRAM_ENDED = "the program ended while the run was under way"
STATES: dict[str, WorkerState] = {"loading": "running", "loaded": "ready", "sleeping": "ready"}

log = logging.getLogger(__name__)


class Agents:
    """Made by `open_agents`. Every method is atomic."""

    def __init__(
        self,
        settings: RunsConfig,
        asker: Asker,
        toolbox: Toolbox,
        fleet: Fleet,
        store: RunStore | None,
        nursery: trio.Nursery,
    ) -> None:
        self.settings = settings
        self.toolbox = toolbox
        self._fleet = fleet
        self._store = store
        self._nursery = nursery
        self._asker = asker
        self._runs: dict[str, AgentRun] = {}
        self._past: dict[str, PastRun] = {}  # oldest end first
        self._workers: dict[str, ModelRuns] = {}
        self._submitted = trio.Event()

    def submit(self, asked: RequestedRun) -> AgentRun:
        """Begin a run, or let it wait for its slot. Raises NoSlotAvailable, WorkerFailed and ShuttingDown."""
        if self._nursery.cancel_scope.cancel_called:
            raise ShuttingDown
        self._prune()
        from appliance.features.runs.run import AgentRun  # with the loop of runs: most servers save fifteen modules

        run = AgentRun(f"run_{secrets.token_hex(8)}", asked, self.settings.event_bytes)
        begins = self._worker(asked.worker).enter(run.id, self.settings)
        self._runs[run.id] = run
        self._submitted.set()
        self._save(run)
        if begins:
            self._nursery.start_soon(self._own, run)
        return run

    def list(self) -> list[RunRecord]:
        """Return all known runs, newest first."""
        self._prune()
        records = [run.record() for run in (*self._runs.values(), *self._past.values())]
        return sorted(records, key=lambda record: record.created_at, reverse=True)

    def find(self, run_id: str) -> AgentRun | PastRun:
        """Return one run. Raises NotFound."""
        self._prune()
        found = self._runs.get(run_id) or self._past.get(run_id)
        if found is None:
            raise NotFound(f"there is no run '{run_id}'; ended ones are kept for {self.settings.keep} s (runs.keep)")
        return found

    def cancel(self, run_id: str) -> None:
        """Cancel a run. A run that has ended stays as it is. Raises NotFound."""
        run = self.find(run_id)
        if not isinstance(run, PastRun):
            run.cancel()
            if run.id in self._worker(run.asked.worker).waiting:
                self._ended(run)

    def answer(self, run_id: str, results: dict[str, tuple[str, str | None]]) -> AgentRun:
        """Take results of pending calls: by id, the text for the model and the reason why a tool could not be used.

        Raises NotFound, Conflict for a run that waits for nothing, and BadRequest for a call that is not pending.
        """
        run = self.find(run_id)
        pending = [call.id for call in run.pending()] if not isinstance(run, PastRun) else []
        if isinstance(run, PastRun) or not pending:
            raise Conflict(f"run {run_id} does not wait for tool results; see 'pending_tool_calls' in GET /api/runs/ID")
        if unknown := [call_id for call_id in results if call_id not in pending]:
            raise BadRequest(
                f"call '{unknown[0]}' is not pending; run {run_id} waits for {', '.join(pending)}", param="results"
            )
        for call_id, (content, failure) in results.items():
            if not run.over:
                run.answer(call_id, content, failure)
        return run

    def workers(self) -> list[WorkerStatus]:
        """Return every model that has had a run, by name."""
        return [self._status(worker) for _, worker in sorted(self._workers.items())]

    def reset(self, model: str) -> WorkerStatus:
        """Accept runs on the model again, whatever happened. Raises NotFound for a model that has had none."""
        worker = self._workers.get(model)
        if worker is None:
            raise NotFound(f"no run has used a model '{model}'; GET /api/workers lists those that were")
        worker.reset()
        return self._status(worker)

    async def wait_ended(self) -> None:
        """Wait until no run is under way but those that wait for their caller, for when nobody can reach them."""
        while going := [run for run in self._runs.values() if not run.over and not run.pending()]:
            await going[0].feed.wait_said()

    def adopt(self, settings: RunsConfig) -> None:
        """Follow another configuration: it may have fixed what failed."""
        self.settings = settings
        for worker in self._workers.values():
            worker.reset()
            self._go_on(worker)

    def _status(self, worker: ModelRuns) -> WorkerStatus:
        status = self._fleet.known(worker.model)
        state: WorkerState = "failed" if worker.failure is not None else "stopped"
        if worker.failure is None and status is not None:
            state = STATES.get(status.state, "stopped")
        restarts = worker.restarts(trio.current_time(), self.settings.restart_window)
        detail = str(worker.failure) if worker.failure is not None else None
        running, waiting = len(worker.running), len(worker.waiting)
        return WorkerStatus(worker.model, state, self.settings.slots, running, waiting, restarts, detail)

    async def _own(self, run: AgentRun) -> None:
        """The single task of a run."""
        from appliance.features.runs.run import Execution  # as in `submit`

        execution = Execution(self._asker, self.toolbox, self._fleet, self)
        settings = self.settings
        try:
            with run.scope:
                await execution.execute(run, settings.tool_timeout, settings.caller_timeout)
        except Exception:
            bug = secrets.token_hex(4)
            log.exception("internal error %s in run %s; this is a bug", bug, run.id)
            run.give_up("unknown_error", f"internal error {bug}; the log says more")
        finally:
            run.give_up("worker_restarted", PROGRAM_ENDED)
            self._ended(run)

    def _ended(self, run: AgentRun) -> None:
        del self._runs[run.id]
        past = self._past[run.id] = PastRun(run.record(), run.feed, self.settings.event_bytes)
        self._save(past)
        worker = self._worker(run.asked.worker)
        worker.leave(run.id)
        self._go_on(worker)
        self._prune()

    def _go_on(self, worker: ModelRuns) -> None:
        while (waiting := worker.next(self.settings.slots)) is not None:
            self._nursery.start_soon(self._own, self._runs[waiting])

    def _worker(self, model: str) -> ModelRuns:
        return self._workers.setdefault(model, ModelRuns(model))

    def admit(self, model: str | None) -> int | None:
        """A turn is about to use this model: the id of its process. Raises WorkerFailed."""
        if model is None:
            return None
        self._worker(model).check()
        status = self._fleet.known(model)
        return status.pid if status is not None else None

    def trouble(self, clocks: Clocks, model: str | None, process: object, why: str, useless: bool) -> None:
        """A turn failed because of its engine, which is dead, or is ended now if it is ``useless``."""
        if model is None:
            return
        known = self._fleet.known(model)
        if useless and known is not None and known.pid == clocks.pid:  # else it is gone: another one is not to blame
            for run in self._runs.values():
                if run.clocks is not None and run.clocks.model == model and run.clocks.pid == clocks.pid:
                    run.clocks.condemned = why
            self._fleet.condemn(model, why)
        worker, settings = self._worker(model), self.settings
        if worker.restarted(process, trio.current_time(), settings) and worker.failure is None:
            count = worker.restarts(trio.current_time(), settings.restart_window)
            told = f"its engine failed {count} times within {settings.restart_window} s, the last time: {why}"
            worker.failure = WorkerFailed(model, told, self._fleet.logs.tail(model, TAIL))
            log.warning("%s", worker.failure)

    def judge(self, clocks: Clocks, why: str | None) -> None:
        """A living engine has answered: of use, or ``why`` not. After a few such answers in a row it is restarted."""
        if clocks.model is None or clocks.pid is None:
            return
        worker, settings = self._worker(clocks.model), self.settings
        if why is None:
            worker.answered()
        elif worker.faulted(clocks.pid, settings):
            told = f"{settings.max_faults} answers in a row were of no use, the last time: {why}"
            self.trouble(clocks, clocks.model, clocks.pid, told, True)

    def _save(self, run: AgentRun | PastRun) -> None:
        if self._store is not None:
            record = run.record()
            self._store.save(record.id, record.created_at, msgspec.json.encode(record))

    def _prune(self) -> None:
        """Forget the oldest results beyond their number or their size, and those whose time is over."""
        before = time.time() - self.settings.keep
        gone = [run for run in self._past.values() if (run.record().finished_at or 0) < before]
        kept = [run for run in self._past.values() if run not in gone]
        size = sum(run.size for run in kept)
        while len(kept) > self.settings.keep_max or (len(kept) > 1 and size > MAX_KEPT):
            size -= kept[0].size
            gone.append(kept.pop(0))
        for run in gone:
            del self._past[run.id]
            if self._store is not None:
                self._store.forget(run.id)

    def take_over(self, stored: list[bytes]) -> None:
        """Load the runs of an earlier program; its running ones ended with it, and their text so far is kept."""
        read = [decoded(RunRecord, raw) for raw in stored]
        records = [_closed(record) for record in read if record is not None]
        for _ in range(len(read) - len(records)):
            log.warning("a stored run cannot be read, and is not shown")
        for record in sorted(records, key=lambda each: each.finished_at or 0):
            past = self._past[record.id] = PastRun(record, None, self.settings.event_bytes)
            self._save(past)
        self._prune()

    async def keep_saving(self) -> None:
        """Save the text of running runs so far; never returns."""

        def save() -> None:
            for run in self._runs.values():
                if run.changed:
                    run.changed = False
                    self._save(run)

        await every(SAVE_EVERY, save)

    async def keep_awake(self, interval: float) -> None:
        """Let every run send something within ``interval`` seconds, so that no proxy cuts its readers."""
        while True:
            if not self._runs:
                self._submitted = trio.Event()
                await self._submitted.wait()
            before = {run.id: run.feed.ring.total for run in self._runs.values()}
            await trio.sleep(interval / 2)
            for run in self._runs.values():
                if before.get(run.id) == run.feed.ring.total:
                    run.feed.ping()


def _closed(record: RunRecord) -> RunRecord:
    if record.ended:
        return record
    outcome = given_up(record.outcome, "worker_restarted", PROGRAM_ENDED)
    return structs.replace(record, outcome=outcome, finished_at=time.time())


@asynccontextmanager
async def open_agents(
    settings: RunsConfig, asker: Asker, toolbox: Toolbox, fleet: Fleet, store: RunStore | None, *, ping_after: float = 0
) -> AsyncGenerator[Agents]:
    """Own all runs; leaving the block ends those under way, and their text stays in ``store``.

    ``ping_after``: seconds of silence before a comment appears among the events of a run, 0 for none.
    """
    async with beside() as nursery:
        agents = Agents(settings, asker, toolbox, fleet, store, nursery)
        if store is not None:
            agents.take_over(store.stored)
            store.stored = []
            nursery.start_soon(agents.keep_saving)
        if ping_after:
            nursery.start_soon(agents.keep_awake, ping_after)
        yield agents
