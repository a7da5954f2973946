"""The sign-in of the feature."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance.cli.verb import Verb
from appliance.feature import Feature

if TYPE_CHECKING:
    import click

    from appliance.http.control.routes import Routes
    from appliance.http.kernel import Kernel


def _verb() -> click.Command:
    from appliance.features.speed.verb import speed

    return speed


def _routes(kernel: Kernel) -> Routes:
    from appliance.features.speed.routes import speed_routes

    return speed_routes(kernel)


ABOUT = "Show how fast the running server has answered."
SPEED = Feature(
    name="speed",
    verbs=(Verb("speed", "server", ABOUT, _verb, page="http.md#speed-over-time"),),
    routes=_routes,
)
