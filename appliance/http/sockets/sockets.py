"""Websockets: those of models and peers are joined with their servers', one is the link between two appliances."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING

from appliance.core.http_request import Head
from appliance.core.model import Model
from appliance.errors import Conflict, ModelNotLoaded, RouteNotFound
from appliance.http.bytes.connection import Connection
from appliance.http.feeds.stream_socket import serve_stream_socket
from appliance.http.sockets.link import serve_link
from appliance.http.sockets.websocket import Receive, Send, relay_websocket, waiting_client
from appliance.http.way.front import Front
from appliance.http.way.outgoing import reached, renamed, sent_headers
from appliance.http.way.peer_relay import join_peers
from appliance.http.way.pipeline import Pipeline
from appliance.http.way.resumable import SOCKET
from appliance.http.way.routes import is_passed
from appliance.peers.link import LINK_PATH
from appliance.traffic.request import Request
from appliance.traffic.targets import Target
from appliance.upstream.client import Address

if TYPE_CHECKING:
    from hypercorn.typing import WebsocketScope


GOING_AWAY = 1001
"""RFC 6455, section 7.4.1."""


class Sockets:
    """Answers websocket handshakes."""

    def __init__(self, front: Front, pipeline: Pipeline) -> None:
        self._front = front
        self._pipeline = pipeline

    async def answer(self, request: Request, connection: Connection, head: Head) -> None:
        raise RouteNotFound("WEBSOCKET", request.path)

    async def _answer(self, request: Request, scope: WebsocketScope, receive: Receive, send: Send) -> None:
        self._front.guard.check_place(request)
        self._front.guard.check_key(request)
        if request.path == LINK_PATH:
            await self._link(request, scope, receive, send)
            return
        if request.path == SOCKET:
            await serve_stream_socket(receive, send, self._front.streams)
            return
        async with self._target(request) as (target, path):
            if target.model is not None and not self._pipeline.may_load(target.model, request):
                raise ModelNotLoaded(target.model.id)
            if target.model is not None and _is_no_use(target.model):
                await self._join_model(target.model, path, request, scope, receive, send)
                return
            with self._front.inflight.begin(request, target.label, cancel=lambda _: None):
                if target.model is not None:
                    await self._join_model(target.model, path, request, scope, receive, send)
                else:
                    await self._join_peers(target, path, request, scope, receive, send)

    @asynccontextmanager
    async def _target(self, request: Request) -> AsyncGenerator[tuple[Target, str]]:
        if is_passed(request.path):
            target, path = await self._pipeline.passed_target(request)
            yield target, path if path.startswith("/") else f"/{path}"
        elif name := request.query.get("model"):
            async with self._front.targets.chosen(name) as target:
                yield target, renamed(request.target, self._front.targets.sent_name(target))
        else:
            raise RouteNotFound("WEBSOCKET", request.path)

    async def _join_model(
        self, model: Model, path: str, request: Request, scope: WebsocketScope, receive: Receive, send: Send
    ) -> None:
        headers = sent_headers(request, model, keys_are_ours=self._front.guard.asks_for_key)
        async with waiting_client(receive) as answering, self._lease(model) as address:
            there = reached(address, model, request)
            await relay_websocket(scope, receive, send, there, path, headers, answering=answering)

    def _lease(self, model: Model) -> AbstractAsyncContextManager[Address]:
        """Raises Conflict for a model whose websockets are no use of it, and that does not run."""
        return self._borrow(model) if _is_no_use(model) else self._front.fleet.lease(model)

    @asynccontextmanager
    async def _borrow(self, model: Model) -> AsyncGenerator[Address]:
        ready = self._front.fleet.lease_nowait(model.id)
        if ready is None:
            raise Conflict(f"model '{model.id}' is not ready, and its websockets do not start it (ignoreWebsockets)")
        with ready as address:
            yield address

    async def _join_peers(
        self, target: Target, path: str, request: Request, scope: WebsocketScope, receive: Receive, send: Send
    ) -> None:
        async with waiting_client(receive) as answering:
            await join_peers(
                self._front.peers, target.peers, scope, receive, send, path, request.headers, answering=answering
            )

    async def _link(self, request: Request, scope: WebsocketScope, receive: Receive, send: Send) -> None:
        with self._front.peers.guest(request.client) as heard, self._front.lifetime.follower():
            await serve_link(
                scope, receive, send, self._front.owners.model_states, self._front.fleet.wait_changed, heard
            )


def _is_no_use(model: Model) -> bool:
    """Its websockets neither start it nor keep it (``compat.ignoreWebsockets``): a page left open is nobody at work."""
    return model.config is not None and model.config.compat.ignore_websockets
