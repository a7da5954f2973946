"""The sign-in of the feature."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from appliance.cli.verb import Verb
from appliance.feature import Feature, Footing, ServerParts

if TYPE_CHECKING:
    import click

    from appliance.fleet.hold import SlotHold
    from appliance.http.control.routes import Routes
    from appliance.http.kernel import Kernel


def _verb() -> click.Command:
    from appliance.features.contexts.verb import cache

    return cache


async def _removed(model: str) -> None:
    from appliance.features.contexts.files import clear_kept

    await clear_kept(model)


@asynccontextmanager
async def _slots(footing: Footing) -> AsyncGenerator[tuple[SlotHold, ServerParts]]:
    from appliance.features.contexts.files import context_places, open_kept_contexts
    from appliance.features.contexts.owner import Contexts

    settings = footing.settings
    keep = settings.fleet.keep_context or footing.config.keep_context
    # A program that shows an engine's words, or is on trial, leaves the contexts of another one where they are.
    places = {} if settings.echo or settings.trial else context_places(footing.data)
    async with open_kept_contexts(keep, places) as kept:

        async def removed(model: str) -> None:
            if kept is not None:
                await kept.clear(model)

        def routes(kernel: Kernel) -> Routes:
            from appliance.features.contexts.routes import cache_routes

            return cache_routes(kept, kernel)

        folders = {"contexts": kept.folder} if kept is not None else {}
        yield Contexts(kept, footing.chooser), ServerParts(routes=routes, folders=folders, removed=removed)


_DOES = "Show what came from the cache of prompts, and why the rest did not."
_CACHE = Verb("cache", "server", _DOES, _verb, page="http.md#the-prompts-cache", removed=_removed)
CONTEXTS = Feature(name="contexts", verbs=(_CACHE,), slots=_slots)
