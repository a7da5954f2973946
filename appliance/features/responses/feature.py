"""The sign-in of the feature."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from appliance.feature import Feature, Ground, ServerParts

if TYPE_CHECKING:
    from appliance.http.kernel import Kernel
    from appliance.http.sockets.sockets import SocketRoute
    from appliance.http.way.hooks import Turn
    from appliance.http.way.pipeline import Pipeline


@asynccontextmanager
async def _open(ground: Ground) -> AsyncGenerator[ServerParts]:
    """A server for one model is llama-server to the letter, whose own Responses API is another one."""
    if ground.settings.http.single is not None:
        yield ServerParts()
        return
    yield ServerParts(turns=(_turn,), sockets=(_socket,))


def _turn(kernel: Kernel) -> Turn:
    from appliance.features.responses.reading import ResponsesDialect
    from appliance.http.way.dialect import DialectTurn

    return DialectTurn(ResponsesDialect(kernel.texts), kernel.owners.catalog, kernel.edge.bodies)


def _socket(kernel: Kernel, pipeline: Pipeline) -> SocketRoute:
    from appliance.features.responses.sockets import ResponseSockets

    return ResponseSockets(kernel.inward)


RESPONSES = Feature(name="responses", open=_open)
