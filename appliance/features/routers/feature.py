"""The sign-in of the feature."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from appliance.feature import Feature

if TYPE_CHECKING:
    from appliance.http.kernel import Get, Kernel


def _gets(kernel: Kernel) -> Mapping[str, Get]:
    from appliance.features.routers.routes import router_gets

    return router_gets(kernel)


ROUTERS = Feature(name="routers", gets=_gets)
