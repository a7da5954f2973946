"""Models that are not here, for the rest of the program: fetched on their first request, removed, and what both need.

A model's missing files come before anything is stopped to make room for it.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import partial

import trio

from appliance.catalog.supply import RemovedModel, SupplyGround, TellPart
from appliance.core.config.types import Config
from appliance.core.models.download import Remote, WantedModel
from appliance.core.models.download_status import ENDED, DownloadStatus, UnfinishedSpace, is_for
from appliance.core.models.model import Model
from appliance.errors import ApplianceError, Conflict, Forbidden, InvalidModelFile, ModelNotFound, ModelUnloaded
from appliance.features.downloads.download import ModelDownload
from appliance.features.downloads.owner import Downloads, open_downloads
from appliance.features.downloads.plan import unfinished_in
from appliance.features.downloads.removal import plan_leftover, plan_removal
from appliance.features.downloads.rules import how_to_get, wanted_by_name
from appliance.traffic.targets import refresh
from appliance.upstream.file_transfer import DownloadFailed

log = logging.getLogger(__name__)


class DownloadOrder:
    """One thing that requests wait for: they look for it in turn, and share the download that the first one began."""

    def __init__(self) -> None:
        self.turn = trio.Lock()
        self.download: ModelDownload | None = None
        self.failure: ApplianceError | None = None

    @property
    def live(self) -> bool:
        """True while the source is asked or the download is under way, whether or not a request waits."""
        return self.turn.locked() or (self.download is not None and self.download.state not in ENDED)


class ModelSupply:
    """Fills in `catalog.supply.Supply`. ``downloads`` own the transfers."""

    def __init__(self, ground: SupplyGround, downloads: Downloads) -> None:
        self._catalog, self._ground = ground.catalog, ground
        self._orders: dict[str, DownloadOrder] = {}
        self.downloads = downloads
        self.advice = how_to_get
        self.fetch_from, self.find, self.wait_changed = downloads.fetch_from, downloads.find, downloads.wait_changed

    def meant(self, name: str, config: Config) -> WantedModel | None:
        return wanted_by_name(name, config) if self._catalog.sources.cache is not None else None

    def on_request(self) -> Downloads:
        """Return the downloads. Raises Forbidden where no model is downloaded on request."""
        if self._catalog.sources.cache is None:
            raise Forbidden("downloads are off: the configuration names its models, and the cache is not served")
        return self.downloads

    async def fetch(self, wanted: Remote | str) -> ModelDownload:
        return await self.on_request().fetch(wanted)

    def snapshot(self) -> Sequence[DownloadStatus]:
        return self.downloads.snapshot() if self._catalog.sources.lookup is not None else ()

    def under_way(self, name: str, model: Model | None) -> ModelDownload | None:
        """The download of that name, else the one that ``model`` waits for. A repository means its only download."""
        going = [status for status in self.snapshot() if not status.ended]
        found = [status.model for status in going if status.model.casefold() == name.casefold()]
        if not found and model is not None:
            found = [status.model for status in going if any(is_for(status, wanted) for wanted in model.fetch)][:1]
        elif not found:
            found = [status.model for status in going if status.repo.casefold() == name.casefold()]
        return self.find(found[0]) if len(found) == 1 else None

    async def remove(self, name: str, *, from_folder: bool = False) -> RemovedModel:
        downloads = self.on_request()
        await refresh(self._catalog)
        model = next((model for model in self._catalog.snapshot.models if model.id == name), None)
        download = downloads.find(name)
        try:
            if model is None or (download is not None and not download.status.ended):
                if (discarded := await downloads.discard(name)) is None:
                    raise ModelNotFound(name, self._catalog.snapshot.near(name))
                return discarded
            if model.source != "cache" and not from_folder:
                why = f"it is not from the Hugging Face cache ({model.source})"
                raise Forbidden(f"model '{name}' is not removable: {why}")
            await self._ground.unload(model.id)
            removed = await downloads.delete(model)
        except OSError as error:
            where = f" ({error.filename})" if error.filename else ""
            raise Conflict(f"model '{name}' cannot be removed: {error.strerror or error}{where}") from None
        await self._ground.unload(model.id)  # somebody may have asked for it while its files went
        downloads.forget(name)
        await self._ground.removed(model.id)
        return removed

    def frees(self, model: Model) -> int:
        return plan_removal(model, self._catalog.sources.cache, self._catalog.sources.models_dir).frees()

    def unfinished(self) -> Sequence[UnfinishedSpace]:
        if (cache := self._catalog.sources.cache) is None:
            return ()
        return [
            UnfinishedSpace(model=one.model, done=one.done, total=one.total, frees=removal.frees())
            for one in unfinished_in(cache)
            if (removal := plan_leftover(one.model, cache)) is not None
        ]

    async def bring(self, model: Model, tell: TellPart | None = None) -> Model:
        """A model of which only its name on the hub is known gets its whole name."""
        known = self._catalog.snapshot.find(model.id)
        if known is not None and not known.fetch and not known.error:
            return known  # it came while this request was on its way here
        came = model.id
        try:
            for wanted in model.fetch:
                download = await self._begin(wanted)
                if tell is not None:
                    tell(lambda download=download: download.part)
                status = await download.wait()
                if download.error is not None:
                    raise download.error.with_traceback(None)
                if status.state == "cancelled":
                    raise ModelUnloaded(model.id)
                came = download.model
        except ApplianceError as error:
            log.warning("model '%s' cannot be fetched: %s", model.id, error)
            raise
        await trio.to_thread.run_sync(self._catalog.refresh, 0.0, 0.0)
        for name in (model.id, came):
            await trio.to_thread.run_sync(self._catalog.complete, name)
        fresh = self._catalog.snapshot.find(model.id) or self._catalog.snapshot.require(came)
        if fresh.error:
            raise InvalidModelFile(fresh.path or f"'{fresh.id}'", fresh.error)
        if fresh.fetch:
            raise DownloadFailed(model.id, "it is not in the cache after its download; somebody has removed it")
        return fresh

    async def _begin(self, wanted: Remote) -> ModelDownload:
        """The source is asked once for all who wait, also where it says no."""
        self._orders = {name: order for name, order in self._orders.items() if order.live}
        order = self._orders.setdefault(str(wanted), DownloadOrder())
        others = order.turn.locked()
        async with order.turn:
            if order.download is not None and order.download.state not in ENDED:
                order.download.resume()
                return order.download
            if others and order.failure is not None:
                raise order.failure.with_traceback(None)
            order.failure = None
            try:
                order.download = await self.downloads.fetch(wanted)
            except ApplianceError as error:
                order.failure = error
                raise
            return order.download


@asynccontextmanager
async def open_supply(ground: SupplyGround) -> AsyncGenerator[ModelSupply]:
    """Leaving the block cancels running downloads; their parts stay."""
    async with open_downloads(ground.settings, partial(ground.catalog.refresh, 0.0)) as downloads:
        yield ModelSupply(ground, downloads)
