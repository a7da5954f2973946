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
    from appliance.features.launch.verb import launch

    return launch


def _routes(kernel: Kernel) -> Routes:
    from appliance.features.launch.routes import launch_routes

    return launch_routes(kernel)


LAUNCH = Feature(
    name="launch",
    verbs=(Verb("launch", "models", "Start a coding client with a model of the server.", _verb, page="launch.md"),),
    routes=_routes,
)
