"""Lets other boxes in, and answers what they may ask: models that are here, their listing, the link, the pool's own.

A caller without the key learns nothing, not even which paths there are: every request is 401 but the one that joins.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar, TypeVar

import msgspec
import trio
from msgspec import structs

from appliance.core.bodies.head import check_json
from appliance.core.bodies.http_request import HttpHead
from appliance.errors import BadRequest, RouteNotFound, Unauthorized
from appliance.features.pool.core.blobs import asks_for_blob
from appliance.features.pool.core.roster import Roster
from appliance.features.pool.door.reverse import wait_to_ask
from appliance.features.pool.doors import JOIN, MAX_MESSAGE, REVERSE, ROSTER, SECRET, JoinRequest, NewSecret
from appliance.features.pool.edges import answer_blob
from appliance.features.pool.link import LINK_PATH
from appliance.features.pool.membership import Membership
from appliance.features.pool.model_blobs import ModelFilesHere
from appliance.http import errors
from appliance.http.bytes.answer import HttpSink
from appliance.http.bytes.body import Body
from appliance.http.bytes.connection import Connection
from appliance.http.control.listing import View, tell_models
from appliance.http.errors import JSON_TYPE
from appliance.http.kernel import EdgeRoute
from appliance.http.way.context import RequestContext
from appliance.http.way.edge import Edge
from appliance.http.way.gateway import Gateway
from appliance.http.way.guard import Guard
from appliance.traffic.request import Request, read_request, send_whole
from appliance.traffic.targets import refresh

MAX_JOIN = 1 << 14  # bytes of a body that comes without the key
UPGRADES = (LINK_PATH, REVERSE)

T = TypeVar("T")


class DoorGuard(Guard):
    """Lets in the pool's key, and the request that joins, which has a token instead."""

    def knows(self, request: Request) -> bool:
        return (request.method, request.path) == ("POST", JOIN) or super().knows(request)


class DoorAnswers:
    """The `Answers` of a door: looks at the key before anything else does."""

    def __init__(self, edge: Edge, gateway: Gateway) -> None:
        self._guard = edge.guard
        self._bodies = edge.bodies
        self._gateway = gateway

    def begin(self, connection: Connection, data: bytes) -> bool:
        """See `Answers`. The fast path knows no head but with a good key, since there always is one."""
        return self._gateway.begin(connection, data)

    async def answer(self, connection: Connection, head: HttpHead) -> bool:
        """See `Answers`."""
        request = read_request(head, "", connection.peer)
        if self._guard.knows(request):
            if head.upgrade and request.path not in UPGRADES:  # websockets of models are for the entry box alone
                head = structs.replace(head, upgrade=b"")
            return await self._gateway.answer(connection, head)
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

    def __init__(
        self,
        view: View,
        membership: Membership,
        files: ModelFilesHere,
        edges: Sequence[EdgeRoute],
        shutdown: trio.Event,
    ) -> None:
        """``edges`` are those of features."""
        self._view, self._membership, self._files = view, membership, files
        self._edges, self._shutdown = edges, shutdown

    async def answer(self, context: RequestContext, own: HttpSink, connection: Connection, head: HttpHead) -> None:
        """Raises ApplianceError and ClientLeft."""
        request = context.request
        if asks_for_blob(request.method, request.path):
            await answer_blob(context, self._files)
            return
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
