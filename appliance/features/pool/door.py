"""The door of a box of a pool: the one port where other boxes ask, over TLS, with the pool's key.

They ask for models that are here, their listing, the link, the pool's own. A caller without the key learns nothing, not
even which paths there are: every request is 401 but the one that joins. Refuses people: no page, no tools, no change of
the program.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import ClassVar, TypeVar

import msgspec
import trio
from msgspec import structs

from appliance.core.bodies.head import check_json
from appliance.core.bodies.http_request import HttpHead
from appliance.core.settings import HttpSettings, UnixSocket
from appliance.errors import BadRequest, RouteNotFound, Unauthorized, UsageError
from appliance.feature import Assembled
from appliance.features.pool.at_boxes import admit
from appliance.features.pool.core.keys import DOMAIN, BoxCertificate
from appliance.features.pool.core.roster import Roster
from appliance.features.pool.doors import JOIN, MAX_MESSAGE, REVERSE, ROSTER, SECRET, JoinRequest, NewSecret
from appliance.features.pool.link import LINK_PATH, PeerLink
from appliance.features.pool.membership import Membership
from appliance.features.pool.peers import Peers
from appliance.features.pool.pool_file import certificate_files
from appliance.features.pool.reverse import dial_out, wait_to_ask
from appliance.http import errors
from appliance.http.bytes.answer import HttpSink
from appliance.http.bytes.body import Body
from appliance.http.bytes.connection import Connection
from appliance.http.bytes.listening import Listener, open_listeners, public_places
from appliance.http.bytes.server import Clients
from appliance.http.bytes.tls import load_context
from appliance.http.control.listing import View, tell_models
from appliance.http.errors import JSON_TYPE
from appliance.http.kernel import EdgeRoute
from appliance.http.sockets.sockets import WebSockets
from appliance.http.way.ask import Ask
from appliance.http.way.context import RequestContext
from appliance.http.way.edge import Edge
from appliance.http.way.fast_path import FastPath
from appliance.http.way.gateway import Gateway
from appliance.http.way.guard import Guard
from appliance.http.way.pipeline import Hooks, Pipeline
from appliance.traffic.request import Request, read_request, send_whole
from appliance.traffic.targets import refresh
from appliance.traffic.traffic import Lifetime
from appliance.trio_parts import beside, wait_any

CLIENTS = 1000  # connections at once: other boxes keep few, and an attack must not take files from clients
MAX_JOIN = 1 << 14  # bytes of a body that comes without the key
UPGRADES = (LINK_PATH, REVERSE)

T = TypeVar("T")


class BoxDoor:
    """The place of a door: clients that connect wait until it is served. Made by `claim_door`."""

    def __init__(self, listeners: Sequence[Listener], program: Assembled, peers: Peers) -> None:
        self._listeners, self._program, self._peers = listeners, program, peers
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
        """Show this certificate, and let in this key alone. Requests with another key end. Raises StoreFailed."""
        with certificate_files(certificate) as files:
            self._context = load_context(*files)
        self._key = key
        self._adopt(key)

    async def serve(self, membership: Membership, shutdown: trio.Event) -> None:
        """Answer members until ``shutdown``, or until the program ends, which sets it."""
        kernel = self._program.kernel
        main, lifetime = kernel.edge, kernel.traffic.lifetime
        ours = main.settings
        settings = HttpSettings(  # the limits of the program's own server, and nothing else of it
            api_keys=(self._key,),
            allow_hosts=(f"*.{DOMAIN}",),
            clients=min(CLIENTS, ours.clients),
            ping_after=ours.ping_after,
            page=False,
            max_body=ours.max_body,
            max_bodies=ours.max_bodies,
            body_stall=ours.body_stall,
            write_stall=ours.write_stall,
            grace=ours.grace,
        )
        bound = public_places(self._listeners)
        guard = DoorGuard(settings, bound)
        edge = Edge(settings, bound, guard, main.traffic, main.bodies)

        def adopt(key: str) -> None:
            is_revoked = guard.adopt((key,))
            # The request that brings the new key has to get its answer.
            lifetime.requests.revoke(lambda request: request.path != SECRET and is_revoked(request))

        async def end_with_program() -> None:
            with lifetime.follower():
                await trio.sleep_forever()
            shutdown.set()

        self._adopt = adopt
        clients = Clients(self._answers(edge, membership, shutdown), kernel.ask.pool.poller, settings, self)
        dialling = partial(wait_any, partial(dial_out, membership, clients.adopt), shutdown.wait)
        async with beside(end_with_program, dialling):
            # The program's own server ends the requests of both at the end of the grace. Here nothing is to end them,
            # or a box that leaves its pool would end those of its clients.
            await clients.serve(
                self._listeners, Lifetime(), shutdown=shutdown, grace=settings.grace, others=trio.lowlevel.checkpoint
            )

    def _answers(self, edge: Edge, membership: Membership, shutdown: trio.Event) -> DoorGateway:
        kernel, hold = self._program.kernel, self._program.hold
        owners = kernel.owners
        ask = Ask(edge, owners.fleet, kernel.ask.pool, kernel.ask.pings, continues=kernel.ask.continues)
        pipeline = Pipeline(edge, owners.catalog, ask, Hooks(hold=hold, admits=partial(admit, owners.fleet)))
        view = View(owners.fleet, owners.catalog, self._peers, edge.traffic.profile)
        return DoorGateway(
            edge,
            pipeline,
            DoorRoutes(view, membership, self._program.door(), shutdown),
            partial(WebSockets, edge, (PeerLink(owners.fleet, self._peers.guest, edge.traffic.lifetime),)),
            partial(FastPath, edge, pipeline, ask, hold),
        )

    def close(self) -> None:
        for listener in self._listeners:
            listener.close()


async def claim_door(program: Assembled, peers: Peers, port: int) -> BoxDoor:
    """Take a port of every address of this machine; 0 is any free one. Raises UsageError."""
    try:
        listeners = await open_listeners([("0.0.0.0", port)])
    except UsageError as error:
        fault = str(error).partition(";")[0]  # behind it stands advice about another option
        raise UsageError(f"{fault}; choose another port for the pool with --port") from None
    door = BoxDoor(listeners, program, peers)
    with suppress(UsageError):  # a machine without IPv6
        listeners += await open_listeners([("::", door.port)])
    return door


class DoorGuard(Guard):
    """Lets in the pool's key, and the request that joins, which has a token instead."""

    def knows(self, request: Request) -> bool:
        return (request.method, request.path) == ("POST", JOIN) or super().knows(request)


class DoorGateway(Gateway):
    """Looks at the key before anything else does. The fast path knows no head but with a good key: there is one."""

    async def answer(self, connection: Connection, head: HttpHead) -> bool:
        """See `Answers`."""
        request = read_request(head, "", connection.peer)
        if self._guard.knows(request):
            if head.upgrade and request.path not in UPGRADES:  # websockets of models are for the entry box alone
                head = structs.replace(head, upgrade=b"")
            return await super().answer(connection, head)
        connection.stranger = True
        refused, body = Unauthorized(), Body(self._bodies, head.length, connection)
        sink = HttpSink(connection, head, body, ())
        sink.stays = False
        if not body.complete:
            connection.mark_unread()
        content = errors.body(errors.describe(refused))
        await send_whole(sink, 401, errors.headers(refused, close=True), content)
        return False


class DoorRoutes:
    """The `ModellessRoutes` of a door."""

    def __init__(self, view: View, membership: Membership, edges: Sequence[EdgeRoute], shutdown: trio.Event) -> None:
        """``edges`` are those of features."""
        self._view, self._membership, self._edges, self._shutdown = view, membership, edges, shutdown

    async def answer(self, context: RequestContext, own: HttpSink, connection: Connection, head: HttpHead) -> None:
        """Raises ApplianceError and ClientLeft."""
        request = context.request
        if (request.method, request.path) == ("GET", REVERSE):
            await wait_to_ask(self._membership, self._shutdown, context, own, (connection, head))
            return
        if (edge := next((each for each in self._edges if each.answers(request)), None)) is not None:
            await edge.answer(context)
            return
        reading = "GET" if request.method == "HEAD" else request.method
        if (answer := self.ROUTES.get((reading, request.path))) is None:
            raise RouteNotFound(request.method, request.path)
        content = await context.body.read(MAX_JOIN if request.path == JOIN else MAX_MESSAGE)
        await send_whole(context.sink, 200, (JSON_TYPE,), msgspec.json.encode(await answer(self, content)))

    async def answer_with_file(self, context: RequestContext) -> bool:
        """See `ModellessRoutes`. There are none."""
        return False

    async def _models(self, _: bytes) -> object:
        await refresh(self._view.catalog)
        return await tell_models(self._view, identities=True)

    async def _health(self, _: bytes) -> object:
        return {"status": "ok"}

    async def _roster(self, _: bytes) -> object:
        return self._membership.roster

    ROUTES: ClassVar[dict[tuple[str, str], Callable[[DoorRoutes, bytes], Awaitable[object]]]] = {
        ("GET", "/v1/models"): _models,
        ("GET", "/models"): _models,
        ("GET", "/health"): _health,
        ("GET", ROSTER): _roster,
        ("PUT", ROSTER): lambda door, body: door._membership.learn(_read(body, Roster)),
        ("POST", ROSTER): lambda door, body: door._membership.propose(_read(body, Roster)),
        ("POST", JOIN): lambda door, body: door._membership.admit(_read(body, JoinRequest)),
        ("POST", SECRET): lambda door, body: door._membership.learn_secret(_read(body, NewSecret)),
    }


def _read(body: bytes, kind: type[T]) -> T:
    """Raises BadRequest."""
    check_json(body)
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise BadRequest(f"the request body cannot be used: {error}; are the versions of the boxes the same?") from None
