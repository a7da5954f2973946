"""The public state of a model process, and the ends of processes."""

from __future__ import annotations

import logging

import msgspec
from msgspec import Struct

from appliance.core.scheduling.effects import ProcessState
from appliance.core.scheduling.schedule import Schedule
from appliance.errors import ApplianceError
from appliance.fleet.run import ModelRun, RunEnd

log = logging.getLogger(__name__)

NOT_SAID = msgspec.Raw(b"null")
SHOWN = {
    ProcessState.STARTING: "loading",
    ProcessState.READY: "loaded",
    ProcessState.DRAINING: "stopping",
    ProcessState.STOPPING: "stopping",
}
UNFETCHED = 100
"""Models that could not be fetched and are remembered: their names come from clients."""
_IN_LLAMA_SERVERS_WORDS = {"queued": "loading", "stopping": "unloaded"}
"""States that llama-server has no word for: a request is what queues a model, and a stopping one takes no more."""


class ChildStatus(Struct, frozen=True, kw_only=True):
    """One model process, or the last one a model had, as others may see it. Times are unix seconds."""

    model: str
    state: str
    """``queued``, ``loading``, ``loaded``, ``sleeping``, ``stopping`` or ``unloaded``."""
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
    says_more: bool = False
    """It is loaded, and ``ready_info`` is still on its way."""
    seat: str | None = None
    """The engine and devices it runs on, or ran; None of a configured model."""
    slots: int = 0
    """Requests that its engine works on at once; 0: unknown."""
    context: int = 0
    """Tokens of all slots together; 0: unknown."""
    slot_context: int = 0
    """Tokens that one request can have; 0: unknown."""
    held: int | None = None
    """Tokens of the prompts of its running requests, as believed; None: unknown."""

    @property
    def running(self) -> int:
        """Requests that its engine works on. With more leases than slots, the others wait inside the engine."""
        return min(self.leases, self.slots or self.leases)

    @property
    def queued(self) -> int:
        """Requests that wait, for a lease or inside the engine."""
        return self.waiting + self.leases - self.running

    @property
    def kv_use(self) -> float | None:
        """The share of the context that running requests need, from 0 to 1; None: unknown.

        An idle slot keeps its tokens until another request takes it, and costs nothing until then. Counted as used,
        they would make a router avoid this server for ever after a few long prompts.
        """
        return min(1.0, self.held / self.context) if self.held is not None and self.context else None


class Broken(Struct, frozen=True):
    """The fate of a model process whose connection broke under a request."""

    ended: str | None = None
    """Its end, in words, if it ended by itself; None: it lives, or nothing is known."""
    following: str | None = None
    """The seat on which the model is started next; None: it did not crash, or there is no other."""
    error: ApplianceError | None = None
    """The reason if it was ended on purpose; it is reported instead of a fault."""
    gone: bool = False
    """It is another server's, which does not answer any more."""


class Ends:
    """The end of each model's last process, or the reason why it never had one. Owned by the fleet."""

    def __init__(self) -> None:
        self.last: dict[str, RunEnd] = {}
        self._unfetched: dict[str, None] = {}
        """The models in ``last`` that never had a process, the oldest first."""

    def add(self, model_id: str, ended: RunEnd) -> None:
        """Note it, and log it."""
        self.last[model_id] = ended
        if ended.how == "died":
            log.warning("model '%s': %s", model_id, ended.why)
        elif ended.how == "failed":
            log.warning("%s", ended.error)

    def add_unfetched(self, model_id: str, error: ApplianceError) -> None:
        """Its files could not be fetched."""
        self.forget_unfetched(model_id)
        self.last[model_id] = RunEnd(how="failed", error=error, why=str(error))
        self._unfetched[model_id] = None
        while len(self._unfetched) > UNFETCHED:
            self.forget_unfetched(next(iter(self._unfetched)))

    def forget_unfetched(self, model_id: str) -> None:
        """Its files are here, or it is to be forgotten."""
        if model_id in self._unfetched:
            del self._unfetched[model_id]
            self.last.pop(model_id, None)


def status_of(
    model_id: str, schedule: Schedule, run: ModelRun | None, last: RunEnd | None, held: int | None = None
) -> ChildStatus:
    """``run`` is the model's process, ``last`` how its last one ended; ``held`` is `ChildStatus.held`."""
    state, waiting = schedule.state(model_id), schedule.waiting(model_id)
    if state is None or run is None:
        return ChildStatus(
            model=model_id,
            state="queued" if waiting else "unloaded",
            waiting=waiting,
            argv=last.argv if last else (),
            exit_code=last.exit_code if last else None,
            error=last.why if last else None,
            seat=last.engine.seat if last is not None and last.engine is not None else None,
        )
    process = run.process
    asleep = state is ProcessState.READY and process is not None and process.state.state == "sleeping"
    return ChildStatus(
        model=model_id,
        state="sleeping" if asleep else SHOWN[state],
        pid=process.pid if process else None,
        port=run.address.port if run.address else None,
        leases=schedule.leases(model_id),
        waiting=waiting,
        argv=process.launch.argv if process else (),
        started_at=run.started_at,
        progress=progress_of(run),
        ready_info=process.ready_info if process else None,
        says_more=process.says_more if process else False,
        seat=run.engine.seat if run.engine is not None else None,
        slots=process.launch.slots if process else 0,
        context=process.launch.context if process else 0,
        slot_context=process.launch.slot_context if process else 0,
        held=held,
    )


def progress_of(run: ModelRun | None) -> msgspec.Raw | None:
    """The engine's progress report while it loads; None before the first."""
    process = run.process if run is not None else None
    if process is None or not process.launch.protocol or process.state.state != "loading":
        return None
    return process.state.payload if process.state.payload != NOT_SAID else None


def state_of(status: ChildStatus | None) -> str:
    """``unloaded``, ``loading``, ``loaded`` or ``sleeping``."""
    return "unloaded" if status is None else _IN_LLAMA_SERVERS_WORDS.get(status.state, status.state)
