"""A request asked of a model's process, and of the next one where the engine dies."""

from __future__ import annotations

from contextlib import nullcontext

import msgspec
import trio
from msgspec import Raw, Struct

from appliance.core.models.model import Model
from appliance.core.settings import HttpSettings
from appliance.errors import ModelLoading, ModelNotLoaded, UpstreamFailed
from appliance.fleet.lease import Place
from appliance.fleet.owner import Fleet
from appliance.http.way.fallback import Course
from appliance.http.way.guard import Guard
from appliance.http.way.job import Job
from appliance.http.way.loading import LoadingStream
from appliance.http.way.outgoing import edited, reached, renamed, sent_headers
from appliance.http.way.peer_relay import answer_from_peers
from appliance.http.way.pings import Pings
from appliance.http.way.relay import relay
from appliance.http.way.telling import told_meanwhile
from appliance.peers.owner import Peers
from appliance.traffic.record import aside
from appliance.traffic.targets import Target, Targets
from appliance.upstream.client import Exchange
from appliance.upstream.pool import Pool


class Asking:
    """Asks the processes of one server's models, and its peers."""

    def __init__(
        self,
        settings: HttpSettings,
        guard: Guard,
        targets: Targets,
        fleet: Fleet,
        peers: Peers,
        pool: Pool,
        pings: Pings,
    ) -> None:
        self._settings = settings
        self._guard = guard
        self._targets = targets
        self._fleet = fleet
        self._peers = peers
        self._pool = pool
        self._pings = pings

    async def ask(self, job: Job, target: Target, model: Model) -> None:
        """Pass the model's answer on to its end. Raises what `Fleet.lease` does, UpstreamFailed and BadRequest."""
        body, path, request = job.body, job.path, job.request
        if job.edits:
            name = self._targets.sent_name(target)
            body = edited(job.format, body, self._targets.edits(model), target.requested, name)
            path = renamed(path, name)
        headers = sent_headers(request, model, keys_are_ours=self._guard.asks_for_key)
        course = Course(self._fleet, model, job, body)
        waits = job.streams and job.told and not request.inward
        watch = job.record.watch
        while True:
            place = Place()
            lease = self._fleet.lease(model, place)
            lease.asks = path, job.body
            loading = self._loading_stream(job, model, place) if waits and course.falls == 0 else None
            ping = self._pings.begin(aside(job.sink)) if waits and loading is None else None
            try:
                async with (
                    told_meanwhile(loading) if loading is not None else nullcontext() as told,
                    lease as address,
                ):
                    if loading is not None:
                        loading.ready()
                    watch.granted(model.id)
                    if self._settings.held_for:
                        await trio.sleep(self._settings.held_for)
                    course.begin(lease, address)
                    there = reached(address, model, request)
                    async with Exchange(
                        there, request.method, path, headers, course.body, progress=watch, pool=self._pool
                    ) as response:
                        lease.answer_under_way = response
                        if told is not None:
                            await told()
                        elif ping is not None:
                            ping.stop()
                        if course.continues:
                            await course.go_on(response)
                        else:
                            await relay(response, job.sink, job.route.dialect, course.trail, course.headers)
                return
            except UpstreamFailed as error:
                failure = error
            finally:
                if ping is not None:
                    ping.stop()
            if not await course.fall(failure):
                return

    async def ask_running(self, model: Model, job: Job) -> None:
        """Ask a model as it runs now. Never loads one, never counts as a use of it.

        Raises ModelNotLoaded, or ModelLoading where there is only one, and UpstreamFailed.
        """
        ready = self._fleet.lease_nowait(model.id)
        if ready is None:
            raise ModelLoading if self._settings.single else ModelNotLoaded(model.id)
        await self._fleet.wait_quiet(model.id)
        request = job.request
        headers = sent_headers(request, model, keys_are_ours=self._guard.asks_for_key)
        with ready as address:
            async with Exchange(
                reached(address, model, request),
                request.method,
                job.path,
                headers,
                job.body,
                pool=self._pool,
            ) as response:
                await relay(response, job.sink)

    async def ask_peers(self, job: Job, target: Target) -> None:
        """Ask the peers that have the model, and pass on the answer. Raises PeerFailed and Busy."""

        def body_for(peer_id: str, model: str) -> bytes:
            if not job.edits:
                return job.body
            return edited(job.format, job.body, self._targets.peer_edits(peer_id), target.requested, model)

        def answering(peer_id: str) -> None:
            job.record.metadata["peer"] = peer_id

        request, watch = job.request, job.record.watch
        watch.granted(None)
        await answer_from_peers(
            self._peers,
            target.peers,
            request.method,
            renamed(job.path, self._targets.sent_name(target)) if job.edits else job.path,
            request.headers,
            body_for,
            job.sink,
            job.route.dialect,
            answering=answering,
            progress=watch,
            pool=self._pool,
        )

    def _loading_stream(self, job: Job, model: Model, place: Place) -> LoadingStream | None:
        """Return the teller of the load's progress to a stream's client, where the configuration wants one."""
        config = self._targets.config
        own = model.config or config
        wanted = own is not None and own.send_loading_state is True and job.route.loading_state
        if config is None or not wanted or self._fleet.is_ready(model.id):
            return None
        return LoadingStream(
            aside(job.sink),
            model.id,
            place.position,
            lambda: _progress(place.progress()),
            jokes=config.loading_jokes,
            ping_after=self._settings.ping_after,
        )


class _Progress(Struct):
    """llama-server's progress of a load (its README): ``value`` is the part of the current stage that is done."""

    value: float | None = None


def _progress(raw: Raw | None) -> float | None:
    if raw is None:
        return None
    try:
        return msgspec.json.decode(raw, type=_Progress).value
    except msgspec.MsgspecError:
        return None
