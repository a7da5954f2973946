"""Asking other servers: the headers that they get, and the next one where one cannot be reached."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from appliance.core.headers import fields, without
from appliance.errors import PeerFailed, UpstreamFailed
from appliance.http.way.outgoing import CONVERSATION, IDENTITY
from appliance.traffic.other_servers import OtherServers
from appliance.upstream.address import Address
from appliance.upstream.client import ConnectFailed, Headers, forwardable_to_peer

VIA = (b"Via", b"1.1 llama-appliance")
MAX_HOPS = 4
"""Appliances that one request may pass; two that name each other for a model would pass it on for ever."""


async def first_reached(
    peers: OtherServers, candidates: Sequence[tuple[str, str]], ask: Callable[[Address], Awaitable[None]]
) -> None:
    """Call ``ask`` with the address of a peer, the best one first, until one is reached.

    Raises PeerFailed when all failed, or the one that took the request did.
    """
    failures: list[tuple[str, str]] = []
    for peer_id, _ in peers.order(candidates):
        try:
            with peers.using(peer_id):
                await ask(peers.address(peer_id))
                return
        # Only this failure proves that no byte has left. Behind any other one the peer may be at work on the request,
        # and a second peer would do the same work again.
        except ConnectFailed as error:
            peers.failed(peer_id, error.why)
            failures.append((peer_id, error.why))
        except UpstreamFailed as error:
            raise PeerFailed(peer_id, error.why) from None
    raise all_failed(candidates, failures)


def for_peers(headers: Headers, candidates: Sequence[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    """The client's headers as a peer gets them. Raises PeerFailed for a request that goes in circles."""
    hops = sum(value.count(VIA[1]) for value in fields(headers, b"via"))
    if hops >= MAX_HOPS:
        why = f"the request has passed {hops} appliances; some name each other as peers for its model"
        raise PeerFailed(_names(candidates), why)
    return [*without(forwardable_to_peer(headers), (CONVERSATION, IDENTITY)), VIA]


def all_failed(candidates: Sequence[tuple[str, str]], failures: Sequence[tuple[str, str]]) -> PeerFailed:
    """Return the error of servers that all failed: ``failures`` are pairs of id and reason, in the order of asking."""
    if not failures:
        return PeerFailed(_names(candidates), "not in the configuration any more")
    if len(failures) == 1:
        return PeerFailed(*failures[0])
    return PeerFailed(_names(failures), "; ".join(f"{peer_id}: {why}" for peer_id, why in failures))


def _names(pairs: Sequence[tuple[str, str]]) -> str:
    return ", ".join(peer_id for peer_id, _ in pairs)
