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
    from appliance.features.disk.verb import disk

    return disk


def _routes(kernel: Kernel) -> Routes:
    from appliance.features.disk.routes import disk_routes

    return disk_routes(kernel)


ABOUT = "Show what models, downloads and folders take on the disk, and what their removal would free."
DISK = Feature(
    name="disk",
    verbs=(Verb("disk", "this machine", ABOUT, _verb, page="downloads.md"),),
    routes=_routes,
)
