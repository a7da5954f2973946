"""The sign-in of the feature."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from appliance.feature import Feature, Ground, ServerParts

if TYPE_CHECKING:
    from appliance.core.config.additions import FeatureKeys
    from appliance.core.config.types import Config
    from appliance.http.control.routes import Routes
    from appliance.http.kernel import EdgeRoute, Kernel
    from appliance.http.sockets.sockets import SocketRoute
    from appliance.http.way.fast_path import FastHold
    from appliance.http.way.pipeline import Pipeline


@asynccontextmanager
async def _open(ground: Ground, parts: Sequence[ServerParts]) -> AsyncGenerator[ServerParts]:
    from appliance.features.streams.keys import StreamKeys
    from appliance.features.streams.owner import open_streams
    from appliance.platform.home import expanded

    settings = ground.config.keys_of(StreamKeys).streams
    audiences = [each.audience for each in parts if each.audience is not None]
    async with open_streams(settings, audiences) as streams:

        def hold(kernel: Kernel) -> FastHold:
            from appliance.features.streams.hold import StreamHold

            return StreamHold(streams, kernel)

        def routes(kernel: Kernel) -> Routes:
            from appliance.features.streams.routes import stream_routes

            return stream_routes(kernel, streams)

        def socket(kernel: Kernel, _: Pipeline) -> SocketRoute:
            from appliance.features.streams.socket import StreamSocket

            return StreamSocket(streams, kernel.edge)

        def door(_: Kernel) -> EdgeRoute:
            from appliance.features.streams.boxes import StreamsForBoxes

            return StreamsForBoxes(streams)

        def adopt(config: Config) -> Sequence[str]:
            streams.adopt(config.keys_of(StreamKeys).streams)
            return ()

        yield ServerParts(
            hold=hold,
            routes=routes,
            sockets=(socket,),
            door=(door,),
            adopt=adopt,
            wait_ended=streams.wait_ended,
            folders={"streams": expanded(settings.path)} if settings.path else {},
        )


def _check(config: Config) -> None:
    from appliance.features.streams.keys import StreamKeys
    from appliance.features.streams.owner import check_streams

    check_streams(config.keys_of(StreamKeys).streams)


def _keys() -> type[FeatureKeys]:
    from appliance.features.streams.keys import StreamKeys

    return StreamKeys


STREAMS = Feature(name="streams", keys=_keys, open_last=_open, check=_check)
