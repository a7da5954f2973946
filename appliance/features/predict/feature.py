"""The sign-in of the feature."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from appliance.feature import Feature, ServerParts

if TYPE_CHECKING:
    from appliance.feature import Ground
    from appliance.http.kernel import EdgeRoute, Kernel


@asynccontextmanager
async def _open(ground: Ground) -> AsyncGenerator[ServerParts]:
    path = ground.settings.http.predict

    def route(kernel: Kernel) -> EdgeRoute:
        from appliance.features.predict.route import Predict

        return Predict(path or "", kernel.inward)

    yield ServerParts(edges=(route,) if path is not None else ())


PREDICT = Feature(name="predict", open=_open)
