"""The sign-in of the feature."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from appliance.feature import Feature, Ground, ServerParts


@asynccontextmanager
async def _open(ground: Ground) -> AsyncGenerator[ServerParts]:
    from appliance.features.repairs.repairs import Repairs

    repairs = Repairs(ground.metrics, ground.settings.fleet.engine_args)
    repairs.adopt(ground.config)
    yield ServerParts(repairs=repairs, adopt=repairs.adopt)


REPAIRS = Feature(name="repairs", open=_open)
