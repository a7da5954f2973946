"""The sign-in of the feature."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance.cli.verb import Verb
from appliance.feature import Feature

if TYPE_CHECKING:
    import click


def _verb() -> click.Command:
    from appliance.features.timeline.verb import events

    return events


TIMELINE = Feature(
    name="timeline",
    verbs=(Verb("events", "server", "Show what the running server did, and why.", _verb, page="http.md#the-timeline"),),
)
