"""The sign-in of the feature."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance.cli.verb import Verb
from appliance.feature import Feature

if TYPE_CHECKING:
    import click


def _verb() -> click.Command:
    from appliance.features.service.verb import service

    return service


SERVICE = Feature(
    name="service",
    verbs=(Verb("service", "this machine", "Run the program as a service of the system.", _verb, page="install.md"),),
)
