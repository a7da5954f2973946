"""The feed of models that come and go, as their files and as their processes (llama-server's router, b11434).

A record of ``GET /models/sse`` is made when its reader can take it, from what is true then: a slow reader sees fewer
states in between, and costs no memory. A process that came and went between two looks is reported as far as it can
still be seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec
import trio
from msgspec import Raw, Struct
from quart import Response, request

from appliance.core.bodies.sse import PING, SseEvent, encode
from appliance.core.models.download_status import DownloadEvent, DownloadStatus, events_between
from appliance.fleet.status import ChildStatus
from appliance.http.control.answers import EVENT_STREAM, Pieces, endless_answer
from appliance.http.control.routes import FOLLOWS, Routes
from appliance.http.owners import Owners
from appliance.traffic.traffic import Lifetime
from appliance.trio_parts import wait_any

PING_AFTER = 15.0
"""Seconds of silence after which a comment is sent, so that proxies keep the stream open."""
LOOK_EVERY = 0.2
"""Seconds between two looks at what wakes nobody: how far a load is, who sleeps; llama-server tells it as often."""
PAUSE = 0.005
"""Seconds between two looks at what does: the fleet reports every lease, which changes nothing here."""
MODEL_STATUS = "model_status"
"""A process begins; in llama-server's README every change of state, which its code and its page call otherwise."""
STATUS_CHANGE = "status_change"


class ModelEvent(Struct, frozen=True, omit_defaults=True):
    """One record of the feed."""

    model: str
    event: str
    data: object = None


class SeenProcess(Struct, frozen=True):
    """The state of a model's process as a listener knows it. ``started_at`` tells processes apart; None: no process."""

    state: str = "unloaded"
    progress: Raw | None = None
    started_at: float | None = None
    error: str | None = None


def seen_of(statuses: Iterable[ChildStatus]) -> dict[str, SeenProcess]:
    return {status.model: _seen(status) for status in statuses}


def _seen(status: ChildStatus) -> SeenProcess:
    """A model is loaded once it says with what: listeners get that once, with all of it."""
    state = "loading" if status.state == "loaded" and status.says_more else status.state
    progress = status.progress if state == "loading" else None
    return SeenProcess(state, progress, status.started_at, status.error)


def changes(before: Mapping[str, SeenProcess], now: Iterable[ChildStatus]) -> list[ModelEvent]:
    """Return the changes since ``before`` that listeners have to get, by model."""
    told = ((status, before.get(status.model, SeenProcess())) for status in now)
    return [event for status, known in told for event in _changes(known, status)]


def _changes(known: SeenProcess, status: ChildStatus) -> Iterator[ModelEvent]:
    seen, name = _seen(status), status.model
    another = seen.started_at != known.started_at
    never_seen = known.started_at is None and seen.started_at is None and seen.error not in (None, known.error)
    if never_seen:
        yield ModelEvent(name, MODEL_STATUS, {"status": "loading"})
    if never_seen or (another and known.started_at is not None):
        yield ModelEvent(name, STATUS_CHANGE, _ended(status))
    if another and seen.started_at is not None:
        yield ModelEvent(name, MODEL_STATUS, {"status": "loading"})
    if (another or (seen.state, seen.progress) != (known.state, known.progress)) and (
        data := _running(status, first=another or known.state != "sleeping")
    ):
        yield ModelEvent(name, STATUS_CHANGE, data)


def _running(status: ChildStatus, *, first: bool) -> dict[str, object] | None:
    """None where there is no process, or nothing to say of it. ``first``: it is not merely awake again."""
    match _seen(status).state:
        case "loading" if status.progress is not None:
            return {"status": "loading", "progress": status.progress}
        case "loaded" if first and status.ready_info is not None:
            return {"status": "loaded", "info": status.ready_info}
        case "loaded" | "sleeping":
            return {"status": status.state}
        case _:
            return None


def _ended(status: ChildStatus) -> dict[str, object]:
    """As in the list: a model that ended by itself has failed, whatever its exit status."""
    return {"status": "unloaded", "exit_code": (status.exit_code or 1) if status.error is not None else 0}


class ModelFeed(Pieces):
    """The records of one listener, who misses nothing from the moment in which this is made.

    ``everything``: begin with the state of every model. ``readme``: events as llama-server's README has them.
    """

    def __init__(self, owners: Owners, lifetime: Lifetime, *, everything: bool, readme: bool) -> None:
        self._fleet = fleet = owners.fleet
        self._catalog = owners.catalog
        self._supply = owners.supply
        self._lifetime = lifetime
        self._readme = readme
        self._seen = seen_of(fleet.status())
        self._downloading = self._downloads_now()
        self._snapshot = owners.catalog.snapshot
        self._due = self._everything() if everything else []

    async def __anext__(self) -> bytes:
        with self._lifetime.follower():
            await trio.lowlevel.checkpoint()
            silent_until = trio.current_time() + PING_AFTER
            while not (records := self._collect()):
                if trio.current_time() >= silent_until:
                    return PING
                await self._wait()
            return records
        raise StopAsyncIteration

    async def _wait(self) -> None:
        """Until something may have changed, and no longer than to the next look."""
        next_look = trio.current_time() + PAUSE
        with trio.move_on_after(LOOK_EVERY):
            await wait_any(self._fleet.wait_changed, self._supply.wait_changed)
        await trio.sleep_until(next_look)

    # ---- what there is to tell ---------------------------------------------------------------------------------------

    def _everything(self) -> list[ModelEvent | DownloadEvent]:
        statuses = {status.model: status for status in self._fleet.status()}
        shown = {model.id for model in self._snapshot.models if not model.hidden}
        running = {model for model, seen in self._seen.items() if seen.started_at is not None}
        events: list[ModelEvent | DownloadEvent] = []
        for name in sorted(shown | running):
            status = statuses.get(name, ChildStatus(model=name, state="unloaded"))
            loading = {"status": "loading"} if status.state in ("queued", "loading") else None
            events.append(ModelEvent(name, STATUS_CHANGE, _running(status, first=True) or loading or _ended(status)))
        return events + list(events_between({}, [each for each in self._downloading.values() if not each.ended]))

    def _collect(self) -> bytes:
        events, self._due = self._due, []
        statuses = self._fleet.status()
        events += changes(self._seen, statuses)
        self._seen = seen_of(statuses)
        events += self._changed_downloads()
        events += self._changed_list()
        return b"".join(self._record(event) for event in events)

    def _changed_downloads(self) -> list[ModelEvent | DownloadEvent]:
        before, now = self._downloading, self._downloads_now()
        self._downloading = now
        events: list[ModelEvent | DownloadEvent] = [*events_between(before, now.values())]
        for name, known in before.items():
            if name in now or known.state == "finished":
                continue
            if not known.ended:
                events.append(DownloadEvent(name, "download_failed"))
            if all(model.id != name for model in self._catalog.snapshot.models):
                events.append(ModelEvent(name, "model_remove"))
        return events

    def _changed_list(self) -> list[ModelEvent]:
        before, now = self._snapshot.models, self._catalog.snapshot.models
        self._snapshot = self._catalog.snapshot
        if before is now or before == now:
            return []
        gone = {model.id for model in before} - {model.id for model in now}
        return [*(ModelEvent(name, "model_remove") for name in sorted(gone)), ModelEvent("*", "models_reload")]

    def _downloads_now(self) -> dict[str, DownloadStatus]:
        return {status.model: status for status in self._supply.snapshot()}

    def _record(self, event: ModelEvent | DownloadEvent) -> bytes:
        told = as_in_readme(event) if self._readme else event
        return encode(SseEvent(msgspec.json.encode(told).decode()))


def as_in_readme(event: ModelEvent | DownloadEvent) -> ModelEvent | DownloadEvent:
    """There a change of state has the name of a process's beginning, and the progress of a download no name within."""
    if event.event == STATUS_CHANGE:
        return ModelEvent(event.model, MODEL_STATUS, event.data)
    if isinstance(event, DownloadEvent) and event.event == "download_progress" and event.data is not None:
        return ModelEvent(event.model, event.event, event.data["progress"])
    return event


def add_model_feed(app: Routes, owners: Owners, lifetime: Lifetime) -> None:
    @app.get("/models/sse", facts=FOLLOWS)
    async def model_events() -> Response:
        """``?snapshot=1`` begins with the state of every model, ``?names=readme`` has the events as in the README."""
        everything = request.args.get("snapshot") in ("true", "1")
        feed = ModelFeed(owners, lifetime, everything=everything, readme=request.args.get("names") == "readme")
        return endless_answer(feed, EVENT_STREAM, lifetime.feeds)
