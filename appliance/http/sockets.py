"""Websockets: those of models and peers are joined with their servers', one is the link between two appliances."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from appliance.core.model import Model
from appliance.errors import Conflict, PeerFailed, RouteNotFound, ShuttingDown, UpstreamFailed
from appliance.http.front import Front
from appliance.http.link import serve_link
from appliance.http.outgoing import reached, sent_headers
from appliance.http.peer_relay import for_peers
from appliance.http.pipeline import Pipeline
from appliance.http.request import Request, read_request
from appliance.http.routes import COMFY, UPSTREAM
from appliance.http.targets import Target
from appliance.http.telling import outcome
from appliance.http.websocket import Receive, Send, refuse_websocket, relay_websocket
from appliance.peers.link import LINK_PATH
from appliance.upstream.client import Address

if TYPE_CHECKING:
    from hypercorn.typing import WebsocketScope


class Sockets:
    """Answers websocket handshakes."""

    def __init__(self, front: Front, pipeline: Pipeline) -> None:
        self._front = front
        self._pipeline = pipeline

    async def answer(self, scope: WebsocketScope, receive: Receive, send: Send) -> None:
        """The same checks as for any request come first; a refusal is the answer to the handshake."""
        request = read_request(scope, self._front.settings.api_prefix)
        with self._front.lifetime.request() as life:
            failure = await outcome(partial(self._answer, request, scope, receive, send))
            if failure is not None:
                await refuse_websocket(send, failure)
        if life.cancelled_caught:
            raise ShuttingDown

    async def _answer(self, request: Request, scope: WebsocketScope, receive: Receive, send: Send) -> None:
        self._front.guard.check_place(request)
        self._front.guard.check_key(request)
        if request.path == LINK_PATH:
            await self._link(request, scope, receive, send)
            return
        async with self._target(request) as (target, path):
            with self._front.inflight.begin(request, target.label, request.client):
                if target.model is not None:
                    await self._join_model(target.model, path, request, scope, receive, send)
                else:
                    await self._join_peer(target, path, request, scope, receive, send)

    @asynccontextmanager
    async def _target(self, request: Request) -> AsyncGenerator[tuple[Target, str]]:
        if request.path.startswith((UPSTREAM, COMFY)):
            yield await self._pipeline.passed_target(request)
        elif name := request.query.get("model"):
            async with self._front.targets.chosen(name) as target:
                yield target, request.target
        else:
            raise RouteNotFound("WEBSOCKET", request.path)

    async def _join_model(
        self, model: Model, path: str, request: Request, scope: WebsocketScope, receive: Receive, send: Send
    ) -> None:
        headers = sent_headers(request, model, keys_are_ours=self._front.guard.asks_for_key)
        async with self._lease(model) as address:
            await relay_websocket(scope, receive, send, reached(address, model, request), path, headers)

    def _lease(self, model: Model) -> AbstractAsyncContextManager[Address]:
        """Raises Conflict for a model whose websockets are no use of it (``compat.ignoreWebsockets``)."""
        if model.config is None or not model.config.compat.ignore_websockets:
            return self._front.fleet.lease(model)
        return self._borrow(model)

    @asynccontextmanager
    async def _borrow(self, model: Model) -> AsyncGenerator[Address]:
        ready = self._front.fleet.lease_nowait(model.id)
        if ready is None:
            raise Conflict(f"model '{model.id}' is not ready, and its websockets do not start it (ignoreWebsockets)")
        with ready as address:
            yield address

    async def _join_peer(
        self, target: Target, path: str, request: Request, scope: WebsocketScope, receive: Receive, send: Send
    ) -> None:
        peers = self._front.peers
        ordered = peers.order(target.peers)
        if not ordered:
            raise PeerFailed(target.label, "it is not in the configuration any more")
        peer_id, _ = ordered[0]
        with peers.using(peer_id):
            try:
                headers = for_peers(request.headers, target.peers)
                await relay_websocket(scope, receive, send, peers.address(peer_id), path, headers)
            except UpstreamFailed as error:
                raise PeerFailed(peer_id, error.why) from None

    async def _link(self, request: Request, scope: WebsocketScope, receive: Receive, send: Send) -> None:
        with self._front.peers.guest(request.client) as heard, self._front.lifetime.follower():
            await serve_link(
                scope, receive, send, self._front.owners.model_states, self._front.fleet.wait_changed, heard
            )
