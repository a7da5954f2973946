"""The news of a fleet: each decision and event goes to the timeline, and what is counted to the metrics."""

from __future__ import annotations

import time
from collections.abc import Iterable

from msgspec import structs

from appliance.core.records.cache_misses import CacheRoom
from appliance.core.records.history import Happening, Kind, Tell, happenings
from appliance.core.scheduling.effects import Effect, Rule
from appliance.errors import ModelFailedToStart
from appliance.fleet.logs import Logs
from appliance.fleet.run import ModelRun, RunEnd
from appliance.fleet.status import Observer


class News:
    """``logs`` have what processes print, ``tell`` is called with every decision. ``rooms`` gets the room for prompts
    of the latest process of each model.
    """

    def __init__(self, logs: Logs, tell: Tell, rooms: dict[str, CacheRoom]) -> None:
        self.logs = logs
        self.tell = tell
        self.observer: Observer | None = None
        self.waited = _uncounted
        """A request has its model, after a wait of so many seconds. Every request says so, hence without a way here."""
        self._rooms = rooms

    def observe(self, observer: Observer | None) -> None:
        """Notify this observer from now on."""
        self.observer = observer
        self.waited = observer.waited if observer is not None else _uncounted

    def decided(self, effects: Iterable[Effect]) -> None:
        """The schedule has decided this."""
        for happening in happenings(effects):
            self.tell(happening)

    def evicted(self, model_id: str, rule: Rule) -> None:
        """A model goes for another one."""
        if self.observer is not None:
            self.observer.evicted(model_id, rule)

    def fell_back(self, model_id: str, failure: RunEnd, seat: str) -> None:
        """A model has started on this seat, behind a failed start on another."""
        self.tell(structs.replace(_fallen(model_id, failure), kind="fallback", following=seat, reason="started"))

    def loaded(self, run: ModelRun, seat: str, seconds: float) -> None:
        """A model is ready."""
        model_id = run.model.id
        self.tell(Happening(kind="loaded", model=model_id, seconds=seconds, engine=seat))
        launch = run.process.launch if run.process is not None else None
        room = (launch.slots, launch.prompt_cache) if launch is not None else ()
        self._rooms[model_id] = CacheRoom(time.time(), *room)
        if self.observer is not None:
            self.observer.loaded(model_id, seconds)

    def ended(self, run: ModelRun, ended: RunEnd) -> None:
        """A process is gone. The end of one that was stopped was a decision, and is in the timeline already."""
        if ended.how != "stopped" and not run.is_condemned:
            self.tell(_fallen(run.model.id, ended))


def _uncounted(model_id: str, seconds: float) -> None:
    """Nobody counts."""


def _fallen(model_id: str, ended: RunEnd) -> Happening:
    """The entry for a process that did not start, or died."""
    seat = ended.engine.seat if ended.engine is not None else ""
    why = ended.error.why if isinstance(ended.error, ModelFailedToStart) else str(ended.error)
    kind: Kind = "failed" if ended.how == "failed" else "crashed"
    return Happening(kind=kind, model=model_id, engine=seat, error=why.partition("\n")[0])
