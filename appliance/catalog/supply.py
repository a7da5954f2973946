"""Fetches a model's missing files on its first request, before anything is stopped to make room for it."""

from __future__ import annotations

import logging

import trio

from appliance.catalog.catalog import Catalog
from appliance.catalog.download_errors import DownloadFailed
from appliance.catalog.downloads import Downloads
from appliance.core.models.model import Model
from appliance.errors import ApplianceError, ModelUnloaded

log = logging.getLogger(__name__)


class Supply:
    """Takes a model with missing files, and returns the same model with them."""

    def __init__(self, catalog: Catalog, downloads: Downloads) -> None:
        self._catalog = catalog
        self._downloads = downloads

    async def __call__(self, model: Model) -> Model:
        """Wait for the downloads, which continue if the caller leaves, and which all callers share.

        Raises ModelUnloaded when one of them is cancelled, and any other error of a download.
        """
        known = self._catalog.snapshot.find(model.id)
        if known is not None and not known.fetch and not known.error:
            return known  # it came while this request was on its way here
        try:
            for wanted in model.fetch:
                download = await self._downloads.fetch(wanted)
                status = await download.wait()
                if download.error is not None:
                    raise download.error.with_traceback(None)
                if status.state == "cancelled":
                    raise ModelUnloaded(model.id)
        except ApplianceError as error:
            log.warning("model '%s' cannot be fetched: %s", model.id, error)
            raise
        await trio.to_thread.run_sync(self._catalog.refresh, 0.0)
        fresh = self._catalog.snapshot.require(model.id)
        if fresh.fetch:
            raise DownloadFailed(model.id, "it is not in the cache after its download; somebody has removed it")
        return fresh
