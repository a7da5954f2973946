"""The sign-in of the feature."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from appliance.feature import Feature, Ground, ServerParts

if TYPE_CHECKING:
    from appliance.features.ollama.known import KnownModels
    from appliance.http.kernel import EdgeAnswer, EdgeRoute, Kernel
    from appliance.http.route_facts import DescribedRoute
    from appliance.http.way.hooks import DialectSpeaker, Translate

FILE = "derived-models.json"


@asynccontextmanager
async def _open(ground: Ground) -> AsyncGenerator[ServerParts]:
    """A server for one model is llama-server to the letter, so it has none of these routes."""
    if ground.settings.http.single is not None:
        yield ServerParts()
        return
    from appliance.core.bodies.sse import Dialect
    from appliance.features.ollama.paths import CHAT, GENERATE, is_answered, is_ollamas
    from appliance.http.late import LateRoute, LateTranslate
    from appliance.http.way.routes import Route

    known: KnownModels | None = None

    def known_to(kernel: Kernel) -> KnownModels:
        from appliance.features.ollama.known import KnownModels

        nonlocal known
        if known is None:
            known = KnownModels(ground.catalog, ground.fleet, kernel.traffic.targets, ground.data / FILE)
        return known

    def translate(kernel: Kernel) -> Translate:
        def make() -> DialectSpeaker:
            from appliance.features.ollama.reading import OllamaReader

            return OllamaReader(ground.fleet, known_to(kernel), kernel.inward)

        routes = {path: Route(name=path, streams=True, dialect=Dialect.OLLAMA) for path in (CHAT, GENERATE)}
        return LateTranslate(routes, is_ollamas, make)

    def edge(kernel: Kernel) -> EdgeRoute:
        def make() -> EdgeAnswer:
            from appliance.features.ollama.routes import OllamaRoutes

            return OllamaRoutes(kernel, known_to(kernel))

        return LateRoute(is_answered, make)

    yield ServerParts(translates=(translate,), edges=(edge,))


def _described() -> Sequence[DescribedRoute]:
    from appliance.features.ollama.paths import described_routes

    return described_routes()


OLLAMA = Feature(name="ollama", open=_open, described=_described)
