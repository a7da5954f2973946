"""A request taken by another server, and by the next one where the first cannot be reached."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from appliance.core.bodies.sse import Dialect
from appliance.errors import PeerFailed, UpstreamFailed
from appliance.http.way.relay import Relay
from appliance.http.way.resumable import without_conversation
from appliance.peers.owner import Peers
from appliance.traffic.request import Sink
from appliance.upstream.client import ConnectFailed, Exchange, Headers, Progress, forwardable_to_peer
from appliance.upstream.pool import Pool

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
    hops = sum(value.count(VIA[1]) for name, value in headers if name.lower() == b"via")
    if hops >= MAX_HOPS:
        why = f"the request has passed {hops} appliances; some name each other as peers for its model"
        raise PeerFailed(_names(candidates), why)
    return [*without_conversation(forwardable_to_peer(headers)), VIA]


def _all_failed(candidates: Sequence[tuple[str, str]], failures: Sequence[tuple[str, str]]) -> PeerFailed:
    if not failures:
        return PeerFailed(_names(candidates), "not in the configuration any more")
    if len(failures) == 1:
        return PeerFailed(*failures[0])
    return PeerFailed(_names(failures), "; ".join(f"{peer_id}: {why}" for peer_id, why in failures))


def _names(pairs: Sequence[tuple[str, str]]) -> str:
    return ", ".join(peer_id for peer_id, _ in pairs)
