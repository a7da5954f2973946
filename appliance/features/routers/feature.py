"""The sign-in of the feature."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from appliance.feature import Feature

if TYPE_CHECKING:
    from appliance.http.kernel import Get, Kernel


def _get(path: str, kernel: Kernel) -> Get:
    from appliance.features.routers.routes import router_gets

    return router_gets(kernel)[path]


PATHS = ("/get_model_info", "/get_server_info", "/model_info", "/ready", "/v1/loads")
ROUTERS = Feature(name="routers", gets={path: partial(_get, path) for path in PATHS})
