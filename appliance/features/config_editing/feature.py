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
    from appliance.features.config_editing.verb import config

    return config


def _routes(kernel: Kernel) -> Routes:
    from appliance.features.config_editing.routes import config_routes

    return config_routes(kernel)


CONFIG_EDITING = Feature(
    name="config_editing",
    verbs=(Verb("config", "server", "Check, explain and edit a configuration file.", _verb, page="llama-swap.md"),),
    routes=_routes,
)
