"""The sign-in of the feature."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from appliance.feature import Feature, Ground, ServerParts

if TYPE_CHECKING:
    from appliance.http.kernel import EdgeRoute, Kernel
    from appliance.http.way.hooks import Translate

FILE = "derived-models.json"


@asynccontextmanager
async def _open(ground: Ground) -> AsyncGenerator[ServerParts]:
    """A server for one model is llama-server to the letter, so it has none of these routes."""
    if ground.settings.http.single is not None:
        yield ServerParts()
        return
    from appliance.features.ollama.known import KnownModels
    from appliance.features.ollama.reading import OllamaReader
    from appliance.features.ollama.routes import OllamaRoutes

    known = None

    def known_to(kernel: Kernel) -> KnownModels:
        nonlocal known
        if known is None:
            known = KnownModels(ground.catalog, ground.fleet, kernel.traffic.targets, ground.data / FILE)
        return known

    def translate(kernel: Kernel) -> Translate:
        return OllamaReader(ground.fleet, known_to(kernel), kernel.inward)

    def edge(kernel: Kernel) -> EdgeRoute:
        return OllamaRoutes(kernel, known_to(kernel))

    yield ServerParts(translates=(translate,), edges=(edge,))


OLLAMA = Feature(name="ollama", open=_open)
