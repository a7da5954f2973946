"""The sign-in of the feature."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from appliance.feature import Feature, ServerParts

if TYPE_CHECKING:
    from appliance.feature import Ground
    from appliance.http.kernel import EdgeRoute, Kernel
    from appliance.http.route_facts import DescribedRoute


@asynccontextmanager
async def _open(ground: Ground) -> AsyncGenerator[ServerParts]:
    path = ground.settings.http.predict

    def route(kernel: Kernel) -> EdgeRoute:
        from appliance.features.predict.route import Predict

        return Predict(path or "", kernel.inward)

    yield ServerParts(edges=(route,) if path is not None else ())


def _described() -> Sequence[DescribedRoute]:
    from appliance.http.route_facts import AS_MODELS, DescribedRoute, RouteFacts

    says = "Many requests in one; the path is that of AIP_PREDICT_ROUTE, without which there is none."
    return [DescribedRoute("POST", "/<predict>", RouteFacts(most=AS_MODELS), says)]


PREDICT = Feature(name="predict", open=_open, described=_described)
