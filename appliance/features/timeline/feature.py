"""The sign-in of the feature."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from appliance.cli.verb import Verb
from appliance.feature import Feature

if TYPE_CHECKING:
    from pathlib import Path

    import click

    from appliance.core.records.history import KeptTimeline
    from appliance.http.control.routes import Routes
    from appliance.http.kernel import Kernel


def _verb() -> click.Command:
    from appliance.features.timeline.verb import events

    return events


def _routes(kernel: Kernel) -> Routes:
    from appliance.features.timeline.routes import timeline_routes

    return timeline_routes(kernel)


@asynccontextmanager
async def _open(path: Path | None, keep: int) -> AsyncGenerator[KeptTimeline]:
    from appliance.features.timeline.store import open_history

    async with open_history(path, keep) as history:
        yield history


TIMELINE = Feature(
    name="timeline",
    verbs=(Verb("events", "server", "Show what the running server did, and why.", _verb, page="http.md#the-timeline"),),
    routes=_routes,
    timeline=_open,
)
