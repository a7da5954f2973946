"""The sign-in of the feature."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance.feature import Feature

if TYPE_CHECKING:
    from appliance.http.kernel import EdgeRoute, Kernel


def _route(kernel: Kernel) -> EdgeRoute:
    from appliance.features.cors_proxy.proxy import CorsProxy

    return CorsProxy(kernel)


CORS_PROXY = Feature(name="cors_proxy", edges=(_route,))
