"""The sign-in of the feature."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from appliance.feature import Feature, Ground, ServerParts

if TYPE_CHECKING:
    from appliance.settings import AppSettings


@asynccontextmanager
async def _open_first(settings: AppSettings) -> AsyncGenerator[ServerParts]:
    if settings.aliases or (settings.config is not None and settings.config.aliases):
        import trio

        from appliance.features.names.owner import refuse_hidden

        await trio.to_thread.run_sync(refuse_hidden, settings)
    yield ServerParts()


@asynccontextmanager
async def _open(ground: Ground) -> AsyncGenerator[ServerParts]:
    """A server for one model answers for every name, as llama-server does."""
    if ground.settings.http.single is not None:
        yield ServerParts()
        return
    from appliance.features.names.owner import GivenNames
    from appliance.trio_parts import beside

    names = GivenNames(ground.settings, ground.catalog)
    async with beside(partial(names.sign_in, ground.assembled)):
        yield ServerParts(adopt=names.adopt)


NAMES = Feature(name="names", open_first=_open_first, open=_open)
