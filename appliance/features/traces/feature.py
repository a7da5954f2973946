"""The sign-in of the feature."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from appliance.feature import Feature, Ground, ServerParts

if TYPE_CHECKING:
    from appliance.core.config.additions import FeatureKeys
    from appliance.core.config.types import Config
    from appliance.core.examination import Examiner


@asynccontextmanager
async def _open(ground: Ground) -> AsyncGenerator[ServerParts]:
    from appliance.features.traces.tracer import open_tracer

    async with open_tracer(ground.recorder, ground.metrics) as tracer:

        def adopt(config: Config) -> Sequence[str]:
            from appliance.features.traces.keys import TraceKeys

            ground.recorder.settle()  # requests that are over belong to what was in force before
            tracer.adopt(config.keys_of(TraceKeys).tracing)
            return ()

        yield ServerParts(adopt=adopt, examiners=(partial(_examiner, lambda: tracer.failing),))


def _examiner(failing: Callable[[], str] | None = None) -> Examiner:
    from appliance.features.traces.findings import traces_examiner

    return traces_examiner(failing)


def _keys() -> type[FeatureKeys]:
    from appliance.features.traces.keys import TraceKeys

    return TraceKeys


TRACES = Feature(name="traces", keys=_keys, open=_open, examiners=(_examiner,))
