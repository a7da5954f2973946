"""The sign-in of the feature."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance.feature import Feature

if TYPE_CHECKING:
    from appliance.http.kernel import Kernel
    from appliance.http.sockets.sockets import SocketRoute
    from appliance.http.way.pipeline import Pipeline


def _route(kernel: Kernel, pipeline: Pipeline) -> SocketRoute:
    from appliance.features.sockets.relay import ModelSockets

    return ModelSockets(kernel, pipeline)


SOCKETS = Feature(name="sockets", sockets=(_route,))
