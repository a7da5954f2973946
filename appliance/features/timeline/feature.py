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
    from appliance.features.timeline.verb import events

    return events


def _routes(kernel: Kernel) -> Routes:
    from appliance.features.timeline.routes import timeline_routes

    return timeline_routes(kernel)


TIMELINE = Feature(
    name="timeline",
    verbs=(Verb("events", "server", "Show what the running server did, and why.", _verb, page="http.md#the-timeline"),),
    routes=_routes,
)
