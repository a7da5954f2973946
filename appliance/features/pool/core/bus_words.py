"""The place of a bus, the way into it, and the words for what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from appliance.core.findings import Trouble
from appliance.core.settings import in_url
from appliance.errors import UsageError

DEFAULT_PORT = 4222

Tls = Literal["first", "late", "off"]
"""first: the handshake begins the connection, as the pool's own servers want it. late: it follows the server's INFO,
as nats-server before 2.10 does it. off: only if the server does not ask for it.
"""
Fault = Literal["unreachable", "authority", "certificate", "key", "garbage", "silent", "stopping", "ended", "no-quorum"]
"""The reason for which there is no connection. The second to the fourth each mean a wrong code, the last: no puts."""


class BusPlace(Struct, frozen=True, kw_only=True):
    """A server of the bus. ``name`` is the one that its certificate holds; empty: its host."""

    host: str
    port: int
    name: str = ""

    def __str__(self) -> str:
        return f"{in_url(self.host)}:{self.port}"


class BusAccess(Struct, frozen=True, kw_only=True):
    """The way of one client into a bus. ``seed`` is the secret of the NKey ``nkey`` ("U..."), 32 bytes."""

    places: tuple[BusPlace, ...]  # servers in the order in which they are tried: the own one first
    client: str  # the name of this box, which shows in the server's list of its clients
    tls: Tls = "first"
    nkey: str = ""
    seed: bytes = b""
    login: Mapping[str, str] = {}  # the proof without a seed, for CONNECT: ``user`` and ``pass``, or ``auth_token``


class BusState(Struct, frozen=True, kw_only=True):
    """The state of one client. no-quorum: connected to a server that accepts no puts."""

    state: Literal["connected", "no-quorum", "lost"] = "lost"
    server: str = ""  # the server that it is connected to, or was last
    problem: Trouble | None = None


def external_access(url: str, client: str) -> BusAccess:
    """Understand ``nats://[user:password@|token@]host[:port][,host...]``, or ``tls://``. Raises UsageError."""
    shape = "it has the form nats://user:password@host:4222 or tls://token@host:4222"
    scheme, _, rest = url.partition("://")
    login, _, hosts = rest.rpartition("@")
    try:
        parts = [urlsplit(f"//{each}") for each in hosts.rstrip("/").split(",")]
        places = tuple(BusPlace(host=part.hostname or "", port=part.port or DEFAULT_PORT) for part in parts)
        if scheme not in ("nats", "tls") or not all(place.host for place in places) or any(p.path for p in parts):
            raise ValueError(f"its scheme is '{scheme}'" if scheme not in ("nats", "tls") else "it names no host")
    except ValueError as cause:
        raise UsageError(f"the URL of the bus cannot be used: {cause}; {shape}") from None  # without its password
    user, colon, password = login.partition(":")
    proof = {"user": unquote(user), "pass": unquote(password)} if colon else {"auth_token": unquote(user)}
    return BusAccess(
        places=places, client=client, tls="late" if scheme == "tls" else "off", login=proof if login else {}
    )


_FAULTS: Mapping[Fault, tuple[str, str]] = {
    "unreachable": (
        "{place} does not take connections: {why}",
        "start the program on that box, and let its firewall pass this port",
    ),
    "authority": (
        "the certificate of {place} is not of this pool: {why}",
        "this box and that one have different secrets; 'llama-appliance pool join CODE' with a new code of one pool",
    ),
    "certificate": (
        "{place} does not accept this box's certificate: {why}",
        "this box has an old secret, or none; let it join again with a new code",
    ),
    "key": (
        "{place} refuses this box's key: {why}",
        "the pool's secret was changed without this box, or the user and password of the bus are wrong; "
        "let this box join again, or correct the bus's URL",
    ),
    "garbage": ("{place} does not speak NATS: {why}", "correct the address, or end the other program on that port"),
    "silent": ("{place} does not answer: {why}", "look whether that box hangs, or the network between the boxes"),
    "stopping": ("{place} is about to stop", "nothing is to be done: this box moves to another server"),
    "ended": ("{place} ended the connection: {why}", "see the log of the program on that box"),
    "no-quorum": (
        "{place} accepts no changes: {why}",
        "models are answered as before, but placed without the others; bring back the boxes that serve the bus, "
        "of which more than half must see each other",
    ),
}


def bus_problem(place: str, fault: Fault, why: str) -> Trouble:
    """Say what is wrong with this server, or with the connection to it, and what to do."""
    text, fix = _FAULTS[fault]
    return Trouble(id=f"bus-{fault}", text=f"the bus at {text.format(place=place, why=why)}", fix=fix)
