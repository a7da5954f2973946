"""A request asked of the peers that have a model, and of the next one where one cannot be reached."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from appliance.core.answers.families import family_of
from appliance.core.exchange import Exchange, RelayOptions
from appliance.core.headers import fields, without
from appliance.core.models.model import Model
from appliance.errors import PeerFailed, UpstreamFailed
from appliance.fleet.status import Broken
from appliance.http.way.ask import Ask
from appliance.http.way.context import ModelRequest
from appliance.http.way.course import Course, NotTaken
from appliance.http.way.outgoing import CONVERSATION, IDENTITY, edited, renamed
from appliance.peers.owner import Peers
from appliance.traffic.targets import Target
from appliance.upstream.client import ConnectFailed, Headers, Outgoing, forwardable_to_peer, relay

VIA = (b"Via", b"1.1 llama-appliance")
MAX_HOPS = 4
"""Appliances that one request may pass; two that name each other for a model would pass it on for ever."""


class AtPeers:
    """The `Placing` of a request whose model is at peers alone."""

    def __init__(self, ask: Ask, peers: Peers) -> None:
        self._ask = ask
        self._peers = peers

    async def course(self, job: ModelRequest, target: Target, wanted: Model | None) -> Course | None:
        """See `Placing`. Raises PeerFailed for a request that goes in circles."""
        if target.model is not None:
            return None
        if wanted is not None:
            self._ask.fleet.load_soon(wanted)
        headers, path = for_peers(job.request.headers, target.peers), job.path
        if job.edits:
            path = renamed(path, self._ask.targets.sent_name(target))
        order = self._peers.order(target.peers)
        if not order:
            raise _all_failed(target.peers, ())
        places = [_AtPeer(id, model, self._ask, self._peers, target, path, headers) for id, model in order]
        return Course(places, self._ask.fleet.tell, Model(id=order[0][1], source="config"), job, job.body)


class _AtPeer:
    """A peer, as a `Place`. Its engines are its own: nothing else goes on where it broke."""

    is_followed = False

    def __init__(
        self, name: str, model: str, ask: Ask, peers: Peers, target: Target, path: str, headers: Headers
    ) -> None:
        self.name = name
        self._model = model
        self._ask = ask
        self._peers = peers
        self._target = target
        self._path = path
        self._headers = headers

    async def answer(self, course: Course) -> None:
        """See `Place`. Raises Busy."""
        job, address, body = course.job, self._peers.address(self.name), course.body
        course.begin(course.model)
        if job.edits:
            edits = self._ask.targets.peer_edits(self.name)
            body = edited(job.format, body, edits, self._target.requested, self._model)
        watch = job.record.watch
        watch.granted(None)

        def answers() -> None:
            self._peers.answered(self.name)
            job.record.metadata["peer"] = self.name

        options = RelayOptions(
            label=address.label, method=job.request.method, dialect=job.route.dialect, family=family_of(job.route.name)
        )
        outgoing = Outgoing(address, job.request.method, self._path, self._headers, body, self._ask.pool, watch)
        try:
            with self._peers.using(self.name):
                await relay(outgoing, options, job.sink, AnswersHooks(answers))
        # Only this failure proves that no byte has left. Behind any other one the peer may be at work on the request,
        # and a second peer would do the same work again.
        except ConnectFailed as error:
            self._peers.failed(self.name, error.why)
            raise NotTaken(PeerFailed(self.name, error.why)) from None

    async def broke(self, course: Course) -> Broken:
        """See `Place`."""
        return Broken()

    def seat(self, model: Model) -> None:
        """See `Place`."""

    def build(self, model: Model) -> str:
        """See `Place`."""
        return ""

    def has_fallback(self, model: Model) -> bool:
        """See `Place`."""
        return False

    def failure(self, error: UpstreamFailed) -> PeerFailed:
        """See `Place`."""
        return PeerFailed(self.name, error.why)


class AnswersHooks:
    """The hooks of a relay to another server. ``answers`` is called when its answer begins."""

    def __init__(self, answers: Callable[[], None]) -> None:
        self._answers = answers

    def began(self, exchange: Exchange) -> None:
        pass

    def answered(self) -> None:
        pass

    async def answering(self) -> None:
        self._answers()


async def first_reached(
    peers: Peers, candidates: Sequence[tuple[str, str]], ask: Callable[[str, str], Awaitable[None]]
) -> None:
    """Call ``ask`` with a peer id and its model, best first, until one is reached.

    Raises PeerFailed when all failed, or the one that took the request did.
    """
    failures: list[tuple[str, str]] = []
    for peer_id, model in peers.order(candidates):
        try:
            with peers.using(peer_id):
                await ask(peer_id, model)
                return
        # Only this failure proves that no byte has left. Behind any other one the peer may be at work on the request,
        # and a second peer would do the same work again.
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
    return [*without(forwardable_to_peer(headers), (CONVERSATION, IDENTITY)), VIA]


def _all_failed(candidates: Sequence[tuple[str, str]], failures: Sequence[tuple[str, str]]) -> PeerFailed:
    if not failures:
        return PeerFailed(_names(candidates), "not in the configuration any more")
    if len(failures) == 1:
        return PeerFailed(*failures[0])
    return PeerFailed(_names(failures), "; ".join(f"{peer_id}: {why}" for peer_id, why in failures))


def _names(pairs: Sequence[tuple[str, str]]) -> str:
    return ", ".join(peer_id for peer_id, _ in pairs)
