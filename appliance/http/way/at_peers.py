"""A request asked of the peers that have a model, and of the next one where one cannot be reached."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from appliance.core.answers.families import Family, family_of
from appliance.core.bodies.sse import Dialect
from appliance.core.exchange import Exchange, RelayOptions
from appliance.core.headers import fields, without
from appliance.errors import PeerFailed, UpstreamFailed
from appliance.http.way.context import ModelRequest
from appliance.http.way.outgoing import CONVERSATION, IDENTITY, edited, renamed
from appliance.traffic.other_servers import OtherServers as Peers
from appliance.traffic.request import Sink
from appliance.traffic.targets import Target, Targets
from appliance.upstream.client import ConnectFailed, Headers, Outgoing, Progress, forwardable_to_peer, relay
from appliance.upstream.pool import Pool

VIA = (b"Via", b"1.1 llama-appliance")
MAX_HOPS = 4
"""Appliances that one request may pass; two that name each other for a model would pass it on for ever."""

BodyFor = Callable[[str, str], bytes]
"""Peer id and model to the body that this peer gets: its own name of the model, its own filters."""


class AskPeers:
    """Asks the peers of one server."""

    def __init__(self, targets: Targets, peers: Peers, pool: Pool) -> None:
        self._targets = targets
        self._peers = peers
        self._pool = pool

    async def ask(self, job: ModelRequest, target: Target) -> None:
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
            family=family_of(job.route.name),
            answering=answering,
            progress=watch,
            pool=self._pool,
        )


class _PeerHooks:
    def __init__(self, answering: Callable[[], None]) -> None:
        self._answering = answering

    def began(self, exchange: Exchange) -> None:
        pass

    def answered(self) -> None:
        pass

    async def answering(self) -> None:
        self._answering()


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
    family: Family | None = None,
    answering: Callable[[str], None] = lambda _: None,
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
        def begins() -> None:
            peers.answered(peer_id)
            answering(peer_id)

        address = peers.address(peer_id)
        outgoing = Outgoing(address, method, target, passed, body_for(peer_id, model), pool, progress)
        options = RelayOptions(label=address.label, method=method, dialect=dialect, family=family)
        await relay(outgoing, options, sink, _PeerHooks(begins))

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
