"""The sign-in of the feature."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from appliance.feature import Feature, Ground, ServerParts


@asynccontextmanager
async def _open(ground: Ground) -> AsyncGenerator[ServerParts]:
    """A server for one model is llama-server to the letter, so it has none of these routes."""
    if ground.settings.http.single is not None:
        yield ServerParts()
        return
    from appliance.features.lm_studio.reading import LmStudioReader
    from appliance.features.lm_studio.routes import LmStudioRoutes

    yield ServerParts(translates=(LmStudioReader,), edges=(LmStudioRoutes,))


LM_STUDIO = Feature(name="lm_studio", open=_open)
