"""Websockets of models and peers: a client's is joined with its server's.

Messages, closing codes and refusals are passed on in both directions.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import partial

from appliance.core.headers import without
from appliance.core.models.model import Model
from appliance.errors import Conflict, ModelNotLoaded
from appliance.http.kernel import Kernel
from appliance.http.sockets.handshake import INTERNAL, Handshake
from appliance.http.way.context import RequestContext
from appliance.http.way.outgoing import reached, renamed, sent_headers
from appliance.http.way.pipeline import Pipeline
from appliance.http.way.routes import is_passed
from appliance.http.way.to_others import first_reached, for_peers
from appliance.traffic.other_servers import OtherServers
from appliance.traffic.request import Request
from appliance.traffic.targets import Target
from appliance.trio_parts import wait_any
from appliance.upstream.address import Address, Headers
from appliance.upstream.client import HttpAnswer
from appliance.upstream.websocket import BROKEN, Close, Websocket, open_upstream_websocket

MAX_REFUSAL = 1 << 20
"""Bytes of a server's answer that there is no websocket."""
OF_THE_SERVER = (b"server", b"date", b"content-length")
CORS = b"access-control-"


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
    peers: OtherServers, candidates: Sequence[tuple[str, str]], handshake: Handshake, target: str, headers: Headers
) -> None:
    """The same with the best of ``candidates`` that can be reached. Raises PeerFailed."""
    passed = for_peers(headers, candidates)
    await first_reached(peers, candidates, lambda address: relay_websocket(handshake, address, target, passed))


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


class ModelSockets:
    """Serves websockets that name a model, by their path or by ``?model=``."""

    def __init__(self, kernel: Kernel, pipeline: Pipeline) -> None:
        self._traffic = kernel.traffic
        self._guard = kernel.edge.guard
        self._fleet = kernel.owners.fleet
        self._peers = kernel.owners.peers
        self._pipeline = pipeline

    def answers(self, request: Request) -> bool:
        return is_passed(request.path) or bool(request.query.get("model"))

    async def serve(self, context: RequestContext, handshake: Handshake) -> None:
        """See `SocketRoute`."""
        request = context.request
        async with self._target(request) as (target, path):
            model = target.model
            if model is not None and not self._pipeline.may_load(model, request):
                raise ModelNotLoaded(model.id)
            if model is not None and model.config is not None and model.config.compat.ignore_websockets:
                # They neither start it nor keep it: a page left open is nobody at work.
                with self._traffic.lifetime.feeds.reading():
                    if (address := self._fleet.address(model.id)) is None:
                        why = "its websockets do not start it (ignoreWebsockets)"
                        raise Conflict(f"model '{model.id}' is not ready, and {why}")
                    await self._join_model(model, address, path, request, handshake)
                return
            with self._traffic.inflight.begin(request, target.label, cancel=context.cancel):
                if model is None:
                    await join_peers(self._peers, target.peers, handshake, path, request.headers)
                    return
                async with self._fleet.lease(model) as address:
                    await self._join_model(model, address, path, request, handshake)

    @asynccontextmanager
    async def _target(self, request: Request) -> AsyncGenerator[tuple[Target, str]]:
        if is_passed(request.path):
            target, path = await self._pipeline.passed_target(request)
            yield target, path if path.startswith("/") else f"/{path}"
        else:
            async with self._traffic.targets.chosen(request.query["model"]) as target:
                yield target, renamed(request.target, self._traffic.targets.sent_name(target))

    async def _join_model(
        self, model: Model, address: Address, path: str, request: Request, handshake: Handshake
    ) -> None:
        headers = sent_headers(request, model, keys_are_ours=self._guard.asks_for_key)
        await relay_websocket(handshake, reached(address, model, request), path, headers)
