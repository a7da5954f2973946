"""Websockets: those of models and peers are joined with their servers', one is the link between two appliances.

Messages, closing codes and refusals are passed on in both directions.

``/v1/stream/ws`` carries any number of streams. Its messages are JSON texts. The client says ``{"type": "subscribe",
"id", "from"}``, ``{"type": "unsubscribe", "id"}`` and ``{"type": "stop", "id"}``; it receives ``{"type": "data", "id",
"from", "to", "data"}``, where ``to`` is what it resumes at, ``{"type": "end", "id", "at"}`` and ``{"type": "error",
"id", "error"}``.
"""

from __future__ import annotations

import codecs
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Literal

import msgspec
import trio
from msgspec import Struct

from appliance.core.bodies.http_request import HttpHead
from appliance.core.headers import without
from appliance.core.lenient_json import UNREADABLE
from appliance.core.models.model import Model
from appliance.errors import (
    ApplianceError,
    BadRequest,
    Conflict,
    ModelNotLoaded,
    RouteNotFound,
    ShuttingDown,
    UpstreamFailed,
)
from appliance.http.bytes.body import Bodies
from appliance.http.bytes.connection import Connection
from appliance.http.errors import describe
from appliance.http.owners import Owners, model_states
from appliance.http.sockets.handshake import INTERNAL, Handshake, answer_handshake, websocket_context
from appliance.http.way.at_peers import first_reached, for_peers
from appliance.http.way.context import RequestContext
from appliance.http.way.guard import Guard
from appliance.http.way.outgoing import reached, renamed, sent_headers
from appliance.http.way.pipeline import Pipeline
from appliance.http.way.resumable import BROKE_OFF, find_stream
from appliance.http.way.routes import SOCKET, is_passed
from appliance.peers.link import LINK_PATH, MAX_MESSAGE, LocalState, ModelState, WaitChanged, exchange_states
from appliance.peers.owner import Peers
from appliance.streams.generation import Generation
from appliance.streams.owner import Streams, name_of
from appliance.traffic.request import Request
from appliance.traffic.targets import Target
from appliance.traffic.traffic import Traffic
from appliance.trio_parts import beside, wait_any
from appliance.upstream.address import Address, Headers
from appliance.upstream.client import HttpAnswer
from appliance.upstream.websocket import BROKEN, NORMAL, Close, Websocket, open_upstream_websocket

MAX_SUBSCRIPTIONS = 64
MAX_ORDER = 1 << 16
"""Bytes of a client's message, which is one id and an offset."""
MAX_REFUSAL = 1 << 20
"""Bytes of a server's answer that there is no websocket."""
OF_THE_SERVER = (b"server", b"date", b"content-length")
CORS = b"access-control-"


class _Message(Struct):
    type: Literal["subscribe", "unsubscribe", "stop"]
    id: str
    offset: int = msgspec.field(default=0, name="from")


_MESSAGE = msgspec.json.Decoder(_Message)


async def serve_stream_socket(handshake: Handshake, streams: Streams, holder: str) -> None:
    """Accept the websocket and keep it until the client ends it. The caller has checked the key; see `name_of`."""
    websocket = await handshake.accept(most=MAX_ORDER)
    async with beside() as nursery:
        await _Subscriptions(websocket, streams, nursery, holder).serve()


class _Subscription:
    """Ends between two messages: one that is cut off would be the end of the whole websocket."""

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self._saying = False
        self._over = False

    def end(self) -> None:
        self._over = True
        if not self._saying:
            self.scope.cancel()

    @contextmanager
    def saying(self) -> Generator[None]:
        self._saying = True
        yield
        self._saying = False
        if self._over:
            self.scope.cancel()


class _Subscriptions:
    """The streams that one client reads."""

    def __init__(self, websocket: Websocket, streams: Streams, nursery: trio.Nursery, holder: str) -> None:
        self._websocket = websocket
        self._holder = holder
        self._streams = streams
        self._nursery = nursery
        self._followed: dict[str, _Subscription] = {}

    async def serve(self) -> None:
        while (message := await self._websocket.receive()) is not None:
            await self._obey(message)

    async def _obey(self, text: str | bytes) -> None:
        try:
            message = _MESSAGE.decode(text)
        except UNREADABLE as error:
            await self._refuse("", BadRequest(f"the message cannot be used: {error}"))
            return
        match message.type:
            case "subscribe":
                await self._subscribe(message.id, message.offset)
            case "unsubscribe":
                self._unsubscribe(message.id)
            case "stop":
                self._streams.stop(name_of(message.id, self._holder))

    async def _subscribe(self, conversation: str, offset: int) -> None:
        """In place of an earlier subscription of the same stream."""
        self._unsubscribe(conversation)
        if len(self._followed) >= MAX_SUBSCRIPTIONS:
            await self._refuse(conversation, BadRequest(f"{MAX_SUBSCRIPTIONS} streams are subscribed to already"))
            return
        subscription = self._followed[conversation] = _Subscription()
        self._nursery.start_soon(self._follow, conversation, max(offset, 0), subscription)

    def _unsubscribe(self, conversation: str) -> None:
        subscription = self._followed.pop(conversation, None)
        if subscription is not None:
            subscription.end()

    async def _follow(self, conversation: str, offset: int, subscription: _Subscription) -> None:
        with subscription.scope:
            try:
                generation = await find_stream(self._streams, name_of(conversation, self._holder))
                if offset < generation.ring.dropped:
                    raise BadRequest("Stream offset lost, please restart", param="from")
                await self._read(generation, offset, subscription)
            except ApplianceError as error:
                with subscription.saying():
                    await self._refuse(conversation, error)
        if self._followed.get(conversation) is subscription:
            del self._followed[conversation]

    async def _read(self, generation: Generation, offset: int, subscription: _Subscription) -> None:
        """A character whose bytes are not all there yet waits for the rest."""
        name, reader = generation.conversation, generation.reader(offset)
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        told = reader.offset
        while data := await reader.receive():
            text = decoder.decode(data)
            to = reader.offset - len(decoder.getstate()[0])
            if text:
                with subscription.saying():
                    await self._say({"type": "data", "id": name, "from": told, "to": to, "data": text})
            told = to
        if reader.overtaken:
            raise BadRequest("Stream offset lost, please restart", param="from")
        if reader.closing() is None:
            raise UpstreamFailed(name, BROKE_OFF)
        with subscription.saying():
            await self._say({"type": "end", "id": name, "at": reader.offset})

    async def _refuse(self, conversation: str, error: ApplianceError) -> None:
        await self._say({"type": "error", "id": conversation, "error": describe(error)})

    async def _say(self, message: dict[str, object]) -> None:
        await self._websocket.send(msgspec.json.encode(message).decode())


async def serve_link(
    handshake: Handshake,
    local_state: LocalState,
    wait_changed: WaitChanged,
    heard: Callable[[Sequence[ModelState]], None],
) -> None:
    """Accept the websocket and keep it until either side ends it. The caller has checked the key.

    ``heard`` gets the models that the other appliance has loaded.
    """
    websocket = await handshake.accept(most=MAX_MESSAGE)
    why = await exchange_states(websocket, local_state, wait_changed, heard)
    await websocket.close(Close(NORMAL, why))


async def relay_websocket(handshake: Handshake, address: Address, target: str, headers: Headers) -> None:
    """Join the client's websocket with one to ``address``; returns when both have ended.

    The client is accepted only after the server has accepted; a server's refusal becomes the client's. ``headers``: see
    `Outgoing`. Raises what `HttpCall` raises, and ClientLeft.
    """
    async with open_upstream_websocket(address, target, headers, handshake.subprotocols) as upstream:
        if isinstance(upstream, HttpAnswer):
            content = await upstream.read(MAX_REFUSAL)
            await handshake.refuse(upstream.status, _passed_on(upstream.headers), content)
            return
        client = await handshake.accept(upstream.subprotocol, _passed_on(upstream.headers))
        if await _first_to_end(client, upstream) is client:
            if client.closed.code != BROKEN:  # else the server's connection breaks as the client's did
                await upstream.close(client.closed)
            return
        end = upstream.closed
        await client.close(Close(INTERNAL, f"'{address.label}' broke the connection") if end.code == BROKEN else end)


async def join_peers(
    peers: Peers, candidates: Sequence[tuple[str, str]], handshake: Handshake, target: str, headers: Headers
) -> None:
    """The same with the best of ``candidates`` that can be reached; see `answer_from_peers`."""
    passed = for_peers(headers, candidates)

    async def join(peer_id: str, model: str) -> None:
        await relay_websocket(handshake, peers.address(peer_id), target, passed)

    await first_reached(peers, candidates, join)


async def _first_to_end(client: Websocket, upstream: Websocket) -> Websocket:
    """Pass on messages both ways until one of the two ends. What is cut off goes to the one that has ended."""
    ended: list[Websocket] = []

    async def pass_on(sender: Websocket, receiver: Websocket) -> None:
        while (message := await sender.receive()) is not None:
            await receiver.send(message)
        ended.append(sender)

    await wait_any(partial(pass_on, client, upstream), partial(pass_on, upstream, client))
    return ended[0]


def _passed_on(found: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Without what speaks of the server's own place."""
    return [(name.lower(), value) for name, value in without(found, OF_THE_SERVER, (CORS,))]


class WebSockets:
    """Answers websocket handshakes."""

    def __init__(self, guard: Guard, traffic: Traffic, bodies: Bodies, owners: Owners, pipeline: Pipeline) -> None:
        self._guard = guard
        self._traffic = traffic
        self._bodies = bodies
        self._owners = owners
        self._pipeline = pipeline

    async def answer(self, request: Request, connection: Connection, head: HttpHead) -> None:
        """The same checks as for any request come first; a refusal is the answer to the handshake."""
        context = websocket_context(request, connection, head, self._bodies)
        self._traffic.lifetime.requests.begin(context.cancel, request)
        try:
            await answer_handshake(context, connection, head, partial(self._serve, context, connection))
        finally:
            self._traffic.lifetime.requests.end(context.cancel)

    async def _serve(self, context: RequestContext, connection: Connection, handshake: Handshake) -> None:
        request = context.request
        self._guard.check_place(request)
        self._guard.check_key(request)
        connection.stranger = False
        if request.path == LINK_PATH:
            await self._link(request, handshake)
            return
        if request.path == SOCKET:
            with self._traffic.lifetime.feeds.reading():
                await serve_stream_socket(handshake, self._owners.streams, self._guard.holder(request))
            return
        async with self._target(request) as (target, path):
            model = target.model
            if model is not None and not self._pipeline.may_load(model, request):
                raise ModelNotLoaded(model.id)
            if model is not None and _is_no_use(model):
                with self._traffic.lifetime.feeds.reading():
                    await self._join_model(model, path, request, handshake)
                return
            with self._traffic.inflight.begin(request, target.label, cancel=context.cancel):
                if model is not None:
                    await self._join_model(model, path, request, handshake)
                else:
                    await join_peers(self._owners.peers, target.peers, handshake, path, request.headers)

    @asynccontextmanager
    async def _target(self, request: Request) -> AsyncGenerator[tuple[Target, str]]:
        if is_passed(request.path):
            target, path = await self._pipeline.passed_target(request)
            yield target, path if path.startswith("/") else f"/{path}"
        elif name := request.query.get("model"):
            async with self._traffic.targets.chosen(name) as target:
                yield target, renamed(request.target, self._traffic.targets.sent_name(target))
        else:
            raise RouteNotFound("WEBSOCKET", request.path)

    async def _join_model(self, model: Model, path: str, request: Request, handshake: Handshake) -> None:
        headers = sent_headers(request, model, keys_are_ours=self._guard.asks_for_key)
        async with self._borrow(model) if _is_no_use(model) else self._owners.fleet.lease(model) as address:
            await relay_websocket(handshake, reached(address, model, request), path, headers)

    @asynccontextmanager
    async def _borrow(self, model: Model) -> AsyncGenerator[Address]:
        address = self._owners.fleet.address(model.id)
        if address is None:
            raise Conflict(f"model '{model.id}' is not ready, and its websockets do not start it (ignoreWebsockets)")
        yield address

    async def _link(self, request: Request, handshake: Handshake) -> None:
        owners, lifetime = self._owners, self._traffic.lifetime
        with lifetime.feeds.reading(), owners.peers.guest(request.client) as heard, lifetime.follower() as following:
            await serve_link(handshake, partial(model_states, owners.fleet), owners.fleet.wait_changed, heard)
        if following.cancelled_caught:
            raise ShuttingDown


def _is_no_use(model: Model) -> bool:
    """Its websockets neither start it nor keep it (``compat.ignoreWebsockets``): a page left open is nobody at work."""
    return model.config is not None and model.config.compat.ignore_websockets
