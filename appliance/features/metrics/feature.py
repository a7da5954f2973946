"""The sign-in of the feature."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from appliance.feature import Feature, Ground, ServerParts

if TYPE_CHECKING:
    from appliance.core.machine import Sample
    from appliance.http.control.routes import Routes
    from appliance.http.kernel import Get, Kernel


@asynccontextmanager
async def _open(ground: Ground) -> AsyncGenerator[ServerParts]:
    from appliance.core.config.scalars import parse_duration
    from appliance.core.memory import gpu_memory
    from appliance.features.metrics.counts import Counters
    from appliance.features.metrics.samples import open_samples

    counters, performance = Counters(ground.metrics), ground.config.performance
    every = None if performance.disabled or not ground.samples else parse_duration(performance.every)

    def see_gpus(sample: Sample) -> None:
        ground.fleet.see_gpus(gpu_memory(sample.gpus))

    with (
        ground.recorder.follow_requests(counters.on_request_ended),
        ground.history.follow(counters.on_entry),
        ground.fleet.follow_waits(counters.on_wait),
    ):
        async with open_samples(ground.gpus, every, see_gpus) as samples:

            def metrics(kernel: Kernel) -> Get:
                from appliance.features.metrics.get import metrics_get

                return metrics_get(kernel, counters, samples)

            def routes(_: Kernel) -> Routes:
                from appliance.features.metrics.hardware import detect
                from appliance.features.metrics.routes import machine_routes

                return machine_routes(samples, partial(detect, ground.look))

            yield ServerParts(gets={"/metrics": metrics}, routes=routes)


METRICS = Feature(name="metrics", open=_open)
