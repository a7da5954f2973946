"""``GET /metrics``, answered without Quart: monitors ask it first and often."""

from __future__ import annotations

import trio

from appliance.features.metrics.counts import Counters
from appliance.features.metrics.samples import Samples
from appliance.http.kernel import Get, Kernel
from appliance.http.way.context import RequestContext
from appliance.traffic.request import send_whole

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"


def metrics_get(kernel: Kernel, counters: Counters, samples: Samples) -> Get:
    async def metrics(context: RequestContext) -> None:
        kernel.traffic.recorder.settle()
        fleet, machine, held = kernel.owners.fleet, samples.latest, kernel.edge.bodies.held
        children = fleet.status()
        taken = {child.model: fleet.memory(child.model) for child in children if child.pid is not None}

        def render() -> bytes:
            from appliance.features.metrics.exposition import exposition  # its library takes 25 ms, and few ask

            return exposition(counters, children, machine, taken=taken, bodies_held=held).encode()

        content = await trio.to_thread.run_sync(render)
        await send_whole(context.sink, 200, ((b"Content-Type", CONTENT_TYPE),), content)

    return metrics
