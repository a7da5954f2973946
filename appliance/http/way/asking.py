"""A request asked of a model's process, and of the next one where the engine dies; or of a peer, and of the next one
where that cannot be reached.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext

import trio
from msgspec import Raw, Struct

from appliance.core.bodies.sse import Dialect
from appliance.core.llama.older_bodies import has_images, says_nothing, with_images
from appliance.core.llama.schemas import has_schema, kept
from appliance.core.models.model import Model
from appliance.core.parts import decoded, fields, without
from appliance.core.settings import HttpSettings
from appliance.engines.found import EMBEDDED
from appliance.errors import ModelLoading, ModelNotLoaded, PeerFailed, UpstreamFailed
from appliance.fleet.lease import Lease, Place
from appliance.fleet.owner import Fleet
from appliance.http.way.fallback import Course
from appliance.http.way.guard import Guard
from appliance.http.way.older import METRICS, Silent, media_marker, send_metrics
from appliance.http.way.outgoing import CONVERSATION, edited, reached, renamed, sent_headers
from appliance.http.way.pings import Pings, queue_headers
from appliance.http.way.relay import Relay
from appliance.http.way.telling import LoadingStream, told_meanwhile
from appliance.http.way.visit import Job
from appliance.peers.owner import Peers
from appliance.traffic.record import aside
from appliance.traffic.request import Request, Sink
from appliance.traffic.targets import Target, Targets
from appliance.upstream.address import Address
from appliance.upstream.client import Begun, ConnectFailed, Exchange, Headers, Progress, forwardable_to_peer, split_head
from appliance.upstream.pool import Pool


class Standing:
    """How far a request has come that no task has answered so far."""

    __slots__ = ("begun", "course", "lease", "relay")

    def __init__(self, lease: Lease, begun: Begun) -> None:
        self.lease = lease
        self.begun = begun
        self.relay: Relay | None = None
        """There once the answer's head is."""
        self.course: Course | None = None
        """The same, for a stream."""


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
        self.pings = pings

    def course(self, job: Job, model: Model, body: bytes | None = None) -> Course:
        return Course(self._fleet, model, job, job.body if body is None else body)

    def plain_head(
        self, request: Request, path: str, target: Target, model: Model, address: Address
    ) -> tuple[bytes, bytes] | None:
        """The head that the model's process gets with every body, in two parts: before and behind the body's length.

        None where bodies are edited, or asking takes more than sending that and reading the answer.
        """
        timeouts = address.tls or address.header_timeout is not None
        if timeouts or self._targets.edits(model).touches(target.requested, model=self._targets.sent_name(target)):
            return None
        headers = sent_headers(request, model, keys_are_ours=self._guard.asks_for_key)
        return split_head(reached(address, model, request), request.method, path, headers)

    async def ask(self, job: Job, target: Target, model: Model, carried: Standing | None = None) -> None:
        """Pass the model's answer on to its end. Raises what `Fleet.lease` does, UpstreamFailed and BadRequest.

        ``carried`` has begun; it is taken over where it stands.
        """
        body, path, request = job.body, job.path, job.request
        pictures = wordless = False
        if job.edits:
            pictures, wordless = has_images(job.route.name, body), says_nothing(job.route.name, body)
            name = self._targets.sent_name(target)
            body = edited(job.format, body, self._targets.edits(model), target.requested, name)
            path = renamed(path, name)
        headers = sent_headers(request, model, keys_are_ours=self._guard.asks_for_key)
        course = (carried and carried.course) or self.course(job, model, body)
        waits = job.streams and job.told and not request.inward
        watch = job.record.watch
        while True:
            place = Place()
            lease = self._fleet.lease(model, place) if carried is None else carried.lease
            lease.asks = path, job.body
            if job.record.entry is not None:
                job.record.entry.place = place
            first = waits and course.falls == 0 and carried is None
            loading = self._loading_stream(job, model, place) if first else None
            silent = waits and loading is None and (carried is None or carried.relay is None)
            ping = self.pings.begin(aside(job.sink), place) if silent else None
            try:
                async with (
                    told_meanwhile(loading) if loading is not None else nullcontext() as told,
                    lease as address,
                ):
                    waited = queue_headers(place) if not request.inward else ()
                    job.record.loaded = place.loaded
                    model = lease.model  # what was named on the hub has its whole name by now
                    if loading is not None:
                        loading.ready()
                    watch.granted(model.id)
                    if self._settings.held_for:
                        await trio.sleep(self._settings.held_for)
                    if carried is None or carried.course is None:
                        course.begin(lease, address)
                    there = reached(address, model, request)
                    begun = carried.begun if carried is not None else None
                    body = course.body
                    if job.edits and has_schema(job.route.name, body) and self._fleet.engine_of(model.id) == EMBEDDED:
                        body = kept(body)
                    if pictures:
                        body = with_images(job.route.name, body, await media_marker(there, self._pool))
                    async with Exchange(
                        there, request.method, path, headers, body, progress=watch, pool=self._pool, begun=begun
                    ) as response:
                        lease.answer_under_way = response
                        if carried is not None:
                            await trio.lowlevel.checkpoint_if_cancelled()
                        if told is not None:
                            await told()
                        elif ping is not None:
                            ping.stop()
                        if course.continues:
                            await course.go_on(response)
                        elif carried is not None and carried.relay is not None:
                            await carried.relay.run()
                        else:
                            sink = Silent(job.sink) if wordless else job.sink
                            told_too = (*course.headers, *waited)
                            await Relay(response, sink, job.route.dialect, course.trail, told_too).run()
                return
            except UpstreamFailed as error:
                failure = error
            finally:
                if ping is not None:
                    ping.stop()
            carried = None
            if not await course.fall(failure):
                return

    async def ask_running(self, model: Model, job: Job) -> None:
        """Ask a model as it runs now. Never loads one, never counts as a use of it.

        Raises ModelNotLoaded, or ModelLoading where there is only one, and UpstreamFailed.
        """
        address = self._fleet.address(model.id)
        if address is None:
            raise ModelLoading if self._settings.single else ModelNotLoaded(model.id)
        await self._fleet.wait_quiet(model.id)
        request = job.request
        headers = sent_headers(request, model, keys_are_ours=self._guard.asks_for_key)
        there = reached(address, model, request)
        async with Exchange(there, request.method, job.path, headers, job.body, pool=self._pool) as response:
            if request.method == "GET" and request.path == METRICS and response.status == 200:
                await send_metrics(response, there, self._pool, job.sink, self._fleet.known(model.id))
            else:
                await Relay(response, job.sink).run()

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
            fetched=place.fetched,
            expected=place.expected,
            headers=lambda: queue_headers(place),
        )


class _Progress(Struct):
    """llama-server's progress of a load (its README): ``value`` is the part of the current stage that is done."""

    value: float | None = None


def _progress(raw: Raw | None) -> float | None:
    if raw is None:
        return None
    progress = decoded(_Progress, raw)
    return progress.value if progress is not None else None


VIA = (b"Via", b"1.1 llama-appliance")
MAX_HOPS = 4
"""Appliances that one request may pass; two that name each other for a model would pass it on for ever."""

BodyFor = Callable[[str, str], bytes]
"""Peer id and model to the body that this peer gets: its own name of the model, its own filters."""


def _nothing(peer_id: str) -> None:
    pass


async def answer_from_peers(
    peers: Peers,
    candidates: Sequence[tuple[str, str]],
    method: str,
    target: str,
    headers: Headers,
    body_for: BodyFor,
    sink: Sink,
    dialect: Dialect = Dialect.OPENAI,
    *,
    answering: Callable[[str], None] = _nothing,
    progress: Progress | None = None,
    pool: Pool | None = None,
) -> None:
    """Ask ``candidates``, pairs of peer id and model, best first, until one takes the request, and pass its answer on.

    Only a peer that no byte of the request reached is followed by the next one. ``headers`` are the client's: what
    belongs to it alone is dropped here. ``answering`` is called with the peer's id when its answer begins. Raises
    PeerFailed when all failed, or the one that took the request did; Busy.
    """
    passed = for_peers(headers, candidates)

    async def ask(peer_id: str, model: str) -> None:
        body = body_for(peer_id, model)
        address = peers.address(peer_id)
        async with Exchange(address, method, target, passed, body, progress=progress, pool=pool) as response:
            peers.answered(peer_id)
            answering(peer_id)
            await Relay(response, sink, dialect).run()

    await first_reached(peers, candidates, ask)


async def first_reached(
    peers: Peers, candidates: Sequence[tuple[str, str]], ask: Callable[[str, str], Awaitable[None]]
) -> None:
    """Call ``ask`` with a peer id and its model, best first, until one is reached. Raises as `answer_from_peers`."""
    failures: list[tuple[str, str]] = []
    for peer_id, model in peers.order(candidates):
        try:
            with peers.using(peer_id):
                await ask(peer_id, model)
                return
        except ConnectFailed as error:
            peers.failed(peer_id, error.why)
            failures.append((peer_id, error.why))
        except UpstreamFailed as error:
            raise PeerFailed(peer_id, error.why) from None
    raise _all_failed(candidates, failures)


def for_peers(headers: Headers, candidates: Sequence[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    """The client's headers as a peer gets them. Raises PeerFailed for a request that goes in circles."""
    hops = sum(value.count(VIA[1]) for value in fields(headers, b"via"))
    if hops >= MAX_HOPS:
        why = f"the request has passed {hops} appliances; some name each other as peers for its model"
        raise PeerFailed(_names(candidates), why)
    return [*without(forwardable_to_peer(headers), (CONVERSATION,)), VIA]


def _all_failed(candidates: Sequence[tuple[str, str]], failures: Sequence[tuple[str, str]]) -> PeerFailed:
    if not failures:
        return PeerFailed(_names(candidates), "not in the configuration any more")
    if len(failures) == 1:
        return PeerFailed(*failures[0])
    return PeerFailed(_names(failures), "; ".join(f"{peer_id}: {why}" for peer_id, why in failures))


def _names(pairs: Sequence[tuple[str, str]]) -> str:
    return ", ".join(peer_id for peer_id, _ in pairs)
