"""The sign-in of the feature."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance.cli.verb import Verb
from appliance.feature import Feature

if TYPE_CHECKING:
    import click


def _verb() -> click.Command:
    from appliance.features.top.verb import top

    return top


TOP = Feature(
    name="top",
    verbs=(Verb("top", "server", "Show the requests under way, live.", _verb, page="http.md#what-is-under-way"),),
)
