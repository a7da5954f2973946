"""Which model a name means, files that came since the last look included."""

from __future__ import annotations

import trio

from appliance.catalog.catalog import Catalog
from appliance.core.models.model import Model

NEWS = 1.0
"""Seconds for which a look at the disk stays good enough, however many requests name a model that is not there."""


async def find_model(catalog: Catalog, name: str) -> Model:
    """The model to run. Raises ModelNotFound, or InvalidModelFile with what is wrong with its file."""
    if catalog.snapshot.find(name) is None:
        await refresh(catalog)
    return catalog.snapshot.require(name)


async def refresh(catalog: Catalog) -> None:
    """See new files in the models folders, in a thread."""
    await trio.to_thread.run_sync(catalog.refresh, NEWS, abandon_on_cancel=True)
