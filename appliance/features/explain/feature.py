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
    from appliance.features.explain.verb import explain

    return explain


def _routes(kernel: Kernel) -> Routes:
    from appliance.features.explain.routes import explain_routes

    return explain_routes(kernel)


ABOUT = "Show what a client really sent, what the engine saw, and what broke its cache."
EXPLAIN = Feature(name="explain", verbs=(Verb("explain", "server", ABOUT, _verb, page="dialects.md"),), routes=_routes)
