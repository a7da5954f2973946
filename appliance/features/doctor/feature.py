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
    from appliance.features.doctor.verb import doctor

    return doctor


def _routes(kernel: Kernel) -> Routes:
    from appliance.features.doctor.routes import doctor_routes

    return doctor_routes(kernel)


ABOUT = "Report problems, their evidence and the commands that help."
DOCTOR = Feature(
    name="doctor",
    verbs=(Verb("doctor", "this machine", ABOUT, _verb, page="doctor.md"),),
    routes=_routes,
)
