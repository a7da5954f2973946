"""The sign-in of the feature."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance.feature import Feature

if TYPE_CHECKING:
    from appliance.http.control.routes import Routes
    from appliance.http.kernel import Kernel


def _routes(kernel: Kernel) -> Routes:
    from appliance.features.llama_swap.routes import swap_routes

    return swap_routes(kernel)


LLAMA_SWAP = Feature(name="llama_swap", routes=_routes)
