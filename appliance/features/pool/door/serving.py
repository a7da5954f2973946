"""The door as a server: its port, its certificate, and the way of a request that came through it."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import trio

from appliance.core.settings import HttpSettings, UnixSocket
from appliance.errors import UsageError
from appliance.feature import Assembled
from appliance.features.pool.at_boxes import admit
from appliance.features.pool.core.keys import DOMAIN, BoxCertificate
from appliance.features.pool.door.gateway import DoorAnswers, DoorGuard, DoorRoutes
from appliance.features.pool.door.reverse import dial_out
from appliance.features.pool.doors import SECRET
from appliance.features.pool.link import PeerLink
from appliance.features.pool.membership import Membership
from appliance.features.pool.model_blobs import ModelFilesHere
from appliance.features.pool.peers import Peers
from appliance.features.pool.pool_file import certificate_files
from appliance.http.bytes.listening import Listener, open_listeners, public_places
from appliance.http.bytes.server import Clients
from appliance.http.bytes.tls import load_context
from appliance.http.control.listing import View
from appliance.http.sockets.sockets import WebSockets
from appliance.http.way.ask import Ask
from appliance.http.way.edge import Edge
from appliance.http.way.fast_path import FastPath
from appliance.http.way.gateway import Gateway
from appliance.http.way.pipeline import Hooks, Pipeline
from appliance.traffic.request import Request
from appliance.traffic.traffic import Lifetime
from appliance.trio_parts import beside

CLIENTS = 1000  # connections at once: other boxes keep few, and an attack must not take files from clients


class BoxDoor:
    """The place of a door: clients that connect wait until it is served. Made by `claim_door`."""

    def __init__(self, listeners: Sequence[Listener], program: Assembled, peers: Peers, files: ModelFilesHere) -> None:
        self._listeners, self._program, self._peers, self._files = listeners, program, peers, files
        self._context: ssl.SSLContext | None = None
        self._key = ""
        self._adopt: Callable[[str], None] = lambda _: None

    @property
    def port(self) -> int:
        bound = self._listeners[0].bound
        assert not isinstance(bound, UnixSocket)
        return bound[1]

    def context(self) -> ssl.SSLContext:
        assert self._context is not None
        return self._context

    def renew(self, certificate: BoxCertificate, key: str) -> None:
        """Show this certificate, and let in requests with this key alone. Requests with another key end.

        Raises StoreFailed.
        """
        with certificate_files(certificate) as files:
            self._context = load_context(*files)
        self._key = key
        self._adopt(key)

    async def serve(self, membership: Membership, shutdown: trio.Event) -> None:
        """Answer members until ``shutdown``, or until the program ends, which sets it."""
        kernel = self._program.kernel
        main, lifetime = kernel.edge, kernel.traffic.lifetime
        settings = _settings(main.settings, self._key)
        bound = public_places(self._listeners)
        guard = DoorGuard(settings, bound)
        edge = Edge(settings, bound, guard, main.traffic, main.bodies)

        def adopt(key: str) -> None:
            is_revoked = guard.adopt((key,))
            lifetime.requests.revoke(partial(_came_with, is_revoked))

        async def end_with_program() -> None:
            with lifetime.follower():
                await trio.sleep_forever()
            shutdown.set()

        async def dial_out_until_the_end() -> None:
            async with beside(partial(dial_out, membership, clients.adopt)):
                await shutdown.wait()

        self._adopt = adopt
        clients = Clients(self._answers(edge, membership, shutdown), kernel.ask.pool.poller, settings, self)
        async with beside(end_with_program, dial_out_until_the_end):
            # The program's own server ends the requests of both at the end of the grace. Here nothing is to end them,
            # or a box that leaves its pool would end those of its clients.
            await clients.serve(
                self._listeners, Lifetime(), shutdown=shutdown, grace=settings.grace, others=trio.lowlevel.checkpoint
            )

    def _answers(self, edge: Edge, membership: Membership, shutdown: trio.Event) -> DoorAnswers:
        kernel, hold = self._program.kernel, self._program.hold
        owners = kernel.owners
        ask = Ask(edge, owners.fleet, kernel.ask.pool, kernel.ask.pings)
        pipeline = Pipeline(edge, owners.catalog, ask, Hooks(hold=hold, admits=partial(admit, owners.fleet)))
        view = View(owners.fleet, owners.catalog, self._peers, edge.traffic.profile)
        gateway = Gateway(
            edge,
            pipeline,
            DoorRoutes(view, membership, self._files, self._program.door(), shutdown),
            partial(WebSockets, edge, (PeerLink(owners.fleet, self._peers.guest, edge.traffic.lifetime),)),
            partial(FastPath, edge, pipeline, ask, hold),
        )
        return DoorAnswers(edge, gateway)

    def close(self) -> None:
        for listener in self._listeners:
            listener.close()


async def claim_door(program: Assembled, peers: Peers, files: ModelFilesHere, port: int) -> BoxDoor:
    """Take a port of every address of this machine; 0 is any free one. Raises UsageError."""
    try:
        listeners = await open_listeners([("0.0.0.0", port)])
    except UsageError as error:
        fault = str(error).partition(";")[0]  # behind it stands advice about another option
        raise UsageError(f"{fault}; choose another port for the pool with --port") from None
    door = BoxDoor(listeners, program, peers, files)
    with suppress(UsageError):  # a machine without IPv6
        listeners += await open_listeners([("::", door.port)])
    return door


def _settings(main: HttpSettings, key: str) -> HttpSettings:
    """Return the settings of the door: the limits of the program's own server, and nothing else of it."""
    return HttpSettings(
        api_keys=(key,),
        allow_hosts=(f"*.{DOMAIN}",),
        clients=min(CLIENTS, main.clients),
        ping_after=main.ping_after,
        page=False,
        max_body=main.max_body,
        max_bodies=main.max_bodies,
        body_stall=main.body_stall,
        write_stall=main.write_stall,
        grace=main.grace,
    )


def _came_with(is_revoked: Callable[[Request], bool], request: Request) -> bool:
    """The request that brings the new key has to get its answer."""
    return request.path != SECRET and is_revoked(request)
