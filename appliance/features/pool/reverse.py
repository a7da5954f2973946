"""Boxes that only dial out: they make connections to the doors of the others, and are asked on these.

Such a box keeps `SPARE` connections at every door, each with one request whose answer is the first sign that the other
box wants something (see `doors`). From then on the roles of HTTP are turned round: the box that has dialled serves
the connection as one of its own door, and dials another one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import trio
from msgspec.structs import replace

from appliance.core.bodies.http_message import HeadError, write_request
from appliance.core.bodies.http_request import HttpHead
from appliance.core.exchange import SWITCHING
from appliance.core.headers import field
from appliance.errors import ApplianceError, BadRequest, BoxFailed, ShuttingDown
from appliance.features.pool.doors import DIAL_TIME, REVERSE, UPGRADE
from appliance.features.pool.membership import Membership
from appliance.http.bytes.answer import HttpSink
from appliance.http.bytes.connection import Connection
from appliance.http.way.context import RequestContext
from appliance.platform.tls_socket import TlsSocket
from appliance.trio_parts import AGAIN, beside, wait_any
from appliance.upstream.address import Address
from appliance.upstream.client import own_headers, read_head
from appliance.upstream.connect import SocketWire, keep_alive, open_socket, secure

NAME = b"X-Appliance-Box-Name"
SPARE = 4  # Connections that wait at each door. So many requests at once begin without the time that it takes to dial.
KEEPALIVE = 20  # seconds between probes: a router in between forgets a silent connection, often after some minutes

log = logging.getLogger(__name__)

Adopt = Callable[[TlsSocket, bytes], None]  # serves a connection that was turned round, with what has come on it


async def wait_to_ask(
    membership: Membership,
    shutdown: trio.Event,
    context: RequestContext,
    own: HttpSink,
    at: tuple[Connection, HttpHead],
) -> None:
    """Keep the connection of a box that dials out until this box asks on it. Raises BadRequest and ShuttingDown."""
    connection, head = at
    name = (field(head.headers, NAME.lower()) or b"").decode("latin-1")
    if head.upgrade != UPGRADE or head.length != 0:
        raise BadRequest(f"GET {REVERSE} needs the header Upgrade: {UPGRADE.decode()}, and no body")
    dialled, taken = membership.dialled_by(name), trio.Event()

    def hand_over() -> TlsSocket | None:
        if context.why is not None or connection.gone:
            return None
        own.status = SWITCHING
        taken.set()
        return connection.hand_over()

    with suppress(OSError):  # the box has left, which `stay` notices
        keep_alive(connection.socket, KEEPALIVE)
    context.stay()
    with dialled.waiting(hand_over):
        await wait_any(taken.wait, shutdown.wait)
    if not taken.is_set():
        raise ShuttingDown


async def dial_out(membership: Membership, adopt: Adopt) -> None:
    """Keep connections at the doors of the others for as long as this box dials out. Runs until it is cancelled."""
    while True:
        names = _doors(membership)
        async with beside(*[partial(_keep_one, membership, name, adopt) for name in names for _ in range(SPARE)]):
            while _doors(membership) == names:
                await membership.changed.wait()


def _doors(membership: Membership) -> list[str]:
    me = membership.roster.box(membership.me)
    return [box.name for box in membership.others if box.can_be_dialled] if me is not None and me.dials_out else []


async def _keep_one(membership: Membership, name: str, adopt: Adopt) -> None:
    told = False
    while (box := membership.roster.box(name)) is not None:
        try:
            adopt(*await dial(membership.ways.guess(box), membership.me))
            told = False
        except (ApplianceError, OSError, HeadError) as error:
            log.log(logging.DEBUG if told else logging.INFO, "box '%s' cannot ask this one: %s", name, error)
            told = True
            await trio.sleep(AGAIN)


async def dial(address: Address, me: str) -> tuple[TlsSocket, bytes]:
    """Return a connection on which the other box asks, once it does. Raises ApplianceError, OSError and HeadError."""
    assert address.tls_context is not None
    offer = ((NAME, me.encode()), (b"Connection", b"upgrade"), (b"Upgrade", UPGRADE))
    there = replace(address, keepalive=KEEPALIVE)
    sock = await secure(await open_socket(there), there)
    wire = SocketWire(sock)
    try:
        with trio.move_on_after(DIAL_TIME) as limit:
            await wire.send(write_request("GET", REVERSE, [*own_headers(address), *offer]))
        if limit.cancelled_caught:
            raise BoxFailed(address.label, f"it took nothing within {DIAL_TIME:g} s")
        found = await read_head(wire, upgrade=True)
        if found is None:
            raise BoxFailed(address.label, "it closed the connection")
        if found.head.status != SWITCHING:
            raise BoxFailed(address.label, f"it answered {found.head.status} to GET {REVERSE}")
    except BaseException:
        wire.close()
        raise
    return sock, found.rest
