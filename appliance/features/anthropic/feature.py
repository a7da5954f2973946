"""The sign-in of the feature. Its turn is the last: plugins and tools see a request as its client has sent it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from appliance.feature import Feature, Ground, ServerParts

if TYPE_CHECKING:
    from appliance.http.kernel import Kernel
    from appliance.http.way.hooks import Turn


@asynccontextmanager
async def _open(ground: Ground) -> AsyncGenerator[ServerParts]:
    """A server for one model is llama-server to the letter, so that answers these requests itself."""

    def turn(kernel: Kernel) -> Turn:
        from appliance.features.anthropic.reading import MessagesReader
        from appliance.http.way.dialect import DialectTurn

        return DialectTurn(MessagesReader(kernel.texts), kernel.owners.catalog, kernel.edge.bodies)

    yield ServerParts(turns=() if ground.settings.http.single is not None else (turn,))


ANTHROPIC = Feature(name="anthropic", open=_open)
