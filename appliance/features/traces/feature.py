"""The sign-in of the feature."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from appliance.feature import Feature, Ground, ServerParts
from appliance.wire import Trouble

if TYPE_CHECKING:
    from appliance.core.config.types import Config


@asynccontextmanager
async def _open(ground: Ground) -> AsyncGenerator[ServerParts]:
    from appliance.features.traces.tracer import open_tracer

    async with open_tracer(ground.recorder, ground.metrics) as tracer:

        def adopt(config: Config) -> Sequence[str]:
            ground.recorder.settle()  # requests that are over belong to what was in force before
            tracer.adopt(config.tracing)
            return ()

        def troubles() -> Sequence[Trouble]:
            fix = "see that the collector of tracing.endpoint runs and is reached"
            return [Trouble(id="traces", text=tracer.failing, fix=fix)] if tracer.failing else ()

        yield ServerParts(adopt=adopt, troubles=troubles)


TRACES = Feature(name="traces", open=_open)
