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
    from appliance.features.activity.verb import activity

    return activity


def _routes(kernel: Kernel) -> Routes:
    from appliance.features.activity.routes import activity_routes

    return activity_routes(kernel)


ABOUT = "List the latest requests of the running server, or export all."
ACTIVITY = Feature(name="activity", verbs=(Verb("activity", "server", ABOUT, _verb),), routes=_routes)
