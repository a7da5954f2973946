"""The sign-in of the feature."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from appliance.feature import Feature

if TYPE_CHECKING:
    from appliance.http.kernel import EdgeAnswer, EdgeRoute, Kernel
    from appliance.http.route_facts import DescribedRoute


def _route(kernel: Kernel) -> EdgeRoute:
    """A mistake in what it may reach ends the start; llama-server's own proxy reaches ``loopback``."""
    from appliance.http.late import LateRoute
    from appliance.http.way.routes import CORS_PROXY

    def make() -> EdgeAnswer:
        from appliance.features.cors_proxy.proxy import CorsProxy

        return CorsProxy(kernel)

    route = LateRoute(lambda request: request.path == CORS_PROXY, make)
    if {*kernel.settings.cors_proxy_allow} - {"loopback"}:
        route.made()
    return route


def _described() -> Sequence[DescribedRoute]:
    from appliance.http.route_facts import AS_MODELS, DescribedRoute, RouteFacts
    from appliance.http.way.routes import CORS_PROXY

    says = "Ask the server that ``url`` names for a page, with the same method and body."
    return [DescribedRoute(method, CORS_PROXY, RouteFacts(most=AS_MODELS), says) for method in ("GET", "POST")]


CORS_PROXY = Feature(name="cors_proxy", edges=(_route,), described=_described)
