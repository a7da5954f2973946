"""Asking a model's process: lease, exchange, what a waiting client is told, and the next engine where one dies."""

from __future__ import annotations

from functools import partial

import msgspec
import trio
from msgspec import Raw, Struct

from appliance.core.model import Model
from appliance.errors import UpstreamFailed
from appliance.fleet.place import Place
from appliance.http.way.fallback import Course
from appliance.http.way.front import Front
from appliance.http.way.job import Job
from appliance.http.way.loading import LoadingStream
from appliance.http.way.outgoing import edited, reached, renamed, sent_headers
from appliance.http.way.relay import Pinger
from appliance.http.way.telling import Telling, telling_while
from appliance.traffic.record import aside
from appliance.traffic.targets import Target
from appliance.upstream.client import Headers, exchange


class _Sent(Struct, frozen=True):
    """What of a request is the same for every process that it is sent to."""

    path: str
    headers: Headers


class Asking:
    """Asks the processes of one server's models."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._settings = front.settings

    async def ask(self, job: Job, target: Target, model: Model) -> None:
        """Pass the model's answer on to its end. Raises what `Fleet.lease` does, UpstreamFailed and BadRequest."""
        body, path = job.body, job.path
        if job.edits:
            name = self._front.targets.sent_name(target)
            body = edited(job.format, body, self._front.targets.edits(model), target.requested, name)
            path = renamed(path, name)
        sent = _Sent(path, self.headers(job, model))
        course = Course(self._front.fleet, model, job, body)
        asking = True
        while asking:
            place = Place()
            teller = self._teller(job, model, place, first=course.falls == 0)
            try:
                await telling_while(teller, partial(self._use, job, model, place, sent, course))
                return
            except UpstreamFailed as error:
                failure = error
            asking = await course.fall(failure)

    async def _use(
        self, job: Job, model: Model, place: Place, sent: _Sent, course: Course, telling: Telling | None
    ) -> None:
        watch = job.record.watch
        async with self._front.fleet.lease(model, place) as address:
            if telling is not None:
                telling.teller.ready()
            watch.granted(model.id)
            if self._settings.held_for:
                await trio.sleep(self._settings.held_for)
            course.begin(address)
            there = reached(address, model, job.request)
            method = job.request.method
            async with exchange(there, method, sent.path, sent.headers, course.body, progress=watch) as response:
                if telling is not None:
                    await telling.stop()
                await course.relay(response)

    def headers(self, job: Job, model: Model) -> list[tuple[bytes, bytes]]:
        """What its process is sent."""
        return sent_headers(job.request, model, keys_are_ours=self._front.guard.asks_for_key)

    def _teller(self, job: Job, model: Model, place: Place, *, first: bool) -> LoadingStream | Pinger | None:
        """Who tells a waiting client that something is under way."""
        if not job.streams or not job.told or job.request.inward:
            return None
        sink = aside(job.sink)
        after = self._settings.ping_after
        config = self._front.owners.config
        own = model.config or config
        wanted = own is not None and own.send_loading_state is True and job.route.loading_state
        if config is None or not wanted or not first or self._front.fleet.is_ready(model.id):
            return Pinger(sink, after) if after > 0 else None
        return LoadingStream(
            sink,
            model.id,
            place.position,
            lambda: _progress(place.progress()),
            jokes=config.loading_jokes,
            ping_after=after,
        )


class _Progress(Struct):
    """What llama-server says while it loads (its README): ``value`` is the part of the current stage."""

    value: float | None = None


def _progress(raw: Raw | None) -> float | None:
    if raw is None:
        return None
    try:
        return msgspec.json.decode(raw, type=_Progress).value
    except msgspec.MsgspecError:
        return None
