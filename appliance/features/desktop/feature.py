"""The sign-in of the feature."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance.cli.verb import Verb
from appliance.feature import Feature

if TYPE_CHECKING:
    import click


def _verb() -> click.Command:
    from appliance.features.desktop.verb import desktop

    return desktop


ABOUT = "Start the server, open the page and show an icon."
DESKTOP = Feature(
    name="desktop",
    verbs=(Verb("desktop", "this machine", ABOUT, _verb, page="upgrade.md#on-a-desktop"),),
)
