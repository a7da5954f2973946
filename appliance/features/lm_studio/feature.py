"""The sign-in of the feature."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from appliance.feature import Feature, Ground, ServerParts

if TYPE_CHECKING:
    from appliance.http.kernel import EdgeAnswer, EdgeRoute, Kernel
    from appliance.http.route_facts import DescribedRoute
    from appliance.http.way.hooks import DialectSpeaker, Translate


@asynccontextmanager
async def _open(ground: Ground) -> AsyncGenerator[ServerParts]:
    """A server for one model is llama-server to the letter, so it has none of these routes."""
    if ground.settings.http.single is not None:
        yield ServerParts()
        return
    from appliance.features.lm_studio.rules import ANSWERED, is_lm_studios
    from appliance.http.late import LateRoute, LateTranslate
    from appliance.http.way.routes import Route, own_path

    def translate(kernel: Kernel) -> Translate:
        def make() -> DialectSpeaker:
            from appliance.features.lm_studio.reading import LmStudioReader

            return LmStudioReader(kernel)

        routes = {path: Route(name=path, streams=own_path(asked).streams) for path, asked in ANSWERED.items()}
        return LateTranslate(routes, lambda request: request.method != "OPTIONS" and is_lm_studios(request.path), make)

    def edge(kernel: Kernel) -> EdgeRoute:
        def make() -> EdgeAnswer:
            from appliance.features.lm_studio.routes import LmStudioRoutes

            return LmStudioRoutes(kernel)

        return LateRoute(lambda request: is_lm_studios(request.path), make)

    yield ServerParts(translates=(translate,), edges=(edge,))


def _described() -> Sequence[DescribedRoute]:
    from appliance.features.lm_studio.reading import InputChat
    from appliance.features.lm_studio.routes import DownloadRequest, LoadRequest, UnloadRequest
    from appliance.features.lm_studio.rules import (
        ANSWERED,
        DOWNLOAD,
        JOB,
        LOAD,
        UNLOAD,
        V0_MODEL,
        V0_MODELS,
        V1_CHAT,
        V1_MODELS,
    )
    from appliance.http.route_facts import AS_MODELS, DescribedRoute, RouteFacts

    shapes = {LOAD: LoadRequest, UNLOAD: UnloadRequest, DOWNLOAD: DownloadRequest}
    says = "As LM Studio's API has it."
    return [
        *(DescribedRoute("GET", path, says=says) for path in (V0_MODELS, f"{V0_MODEL}<id>", V1_MODELS, f"{JOB}<job>")),
        *(DescribedRoute("POST", path, RouteFacts(takes=shape), says) for path, shape in shapes.items()),
        *(
            DescribedRoute("POST", path, RouteFacts(most=AS_MODELS, takes=InputChat if path == V1_CHAT else None), says)
            for path in ANSWERED
        ),
    ]


LM_STUDIO = Feature(name="lm_studio", open=_open, described=_described)
