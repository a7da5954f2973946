"""The sign-in of the feature."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance.cli.verb import Verb
from appliance.feature import Feature

if TYPE_CHECKING:
    import click

    from appliance.core.examination import Examiner
    from appliance.fleet.estimate import Estimate
    from appliance.http.control.routes import Routes
    from appliance.http.kernel import Kernel


def _estimate() -> Estimate:
    from appliance.features.fit.estimating import HeaderEstimate

    return HeaderEstimate()


def _verb() -> click.Command:
    from appliance.features.fit.verb import memory

    return memory


def _examiner() -> Examiner:
    from appliance.core.examination import Examiner
    from appliance.features.fit.core.findings import FitExamined

    return Examiner(part="the room for models", facts=FitExamined)


def _routes(kernel: Kernel) -> Routes:
    from appliance.features.fit.routes import memory_routes

    return memory_routes(kernel)


ABOUT = "Show the memory of the machine, and what one more model would push out."
FIT = Feature(
    name="fit",
    examiners=(_examiner,),
    estimate=_estimate,
    verbs=(Verb("memory", "models", ABOUT, _verb, page="memory.md"),),
    routes=_routes,
)
