"""The owner of downloads: one task for each, which fails alone; a queue, pauses, one bandwidth limit for all.

The part of a download stays when it fails, is cancelled, or the program is killed; starting it again continues it.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial

import trio
from msgspec import structs

from appliance.catalog.found import here
from appliance.catalog.supply import DownloadSettings, RemovedModel
from appliance.core.models.download import ModelFiles, RegistryImage, Remote, all_choices, parse_reference, parse_wanted
from appliance.core.models.download_status import ENDED, DownloadStatus
from appliance.core.models.hub_address import HubAccess
from appliance.core.models.model import Model
from appliance.core.models.transfer import Throttle
from appliance.features.downloads.download import ModelDownload, Turns
from appliance.features.downloads.hub_api import HubModel, ModelHub
from appliance.features.downloads.plan import check_space, have, prepare, settle
from appliance.features.downloads.removal import plan_discard, plan_leftover, plan_removal
from appliance.trio_parts import Changed, beside
from appliance.upstream.file_transfer import DownloadPlan, FileServer, ModelSource, Transfer
from appliance.upstream.hub import DownloadsOff, Hub, HubFailed, find_token

log = logging.getLogger(__name__)

GATHER = 0.2  # seconds for which changes in numbers of bytes are gathered
REMEMBERED = 100  # number of ended downloads that are still listed
REACH_TIME = 4.0  # seconds within which a hub answers that somebody could download from now
LISTING_ATTEMPTS = 4  # times that a source is asked for its files, over some seconds: somebody waits for the answer
LISTING_PATIENCE = 60.0  # seconds of waiting for a source, together, beyond which it is an error


class Downloads:
    """Made by `open_downloads`."""

    def __init__(self, settings: DownloadSettings, nursery: trio.Nursery, rescan: Callable[[], object]) -> None:
        self._settings = settings
        self._nursery = nursery
        self._rescan = rescan
        self._turns = Turns(settings.parallel)
        self._throttle = Throttle(settings.rate)
        self._known: dict[str, ModelDownload] = {}
        self._numbers = itertools.count(1)
        self._changed = Changed()
        self._state_changed = trio.Event()

    async def fetch(self, wanted: Remote | str) -> ModelDownload:
        """Download a model; one that is under way is not begun twice. Returns once the source has listed its files.

        Raises BadRequest, DownloadsOff, RepoNotFound, GatedRepo, TokenRefused, LoginUnusable, NotFound (no such tag),
        HubFailed, NotEnoughSpace.
        """
        if isinstance(wanted, str):
            wanted = parse_wanted(wanted, self.endpoint)
        hub, plan = await self._planned(wanted, await self._access(login=not isinstance(wanted, RegistryImage)))
        return await self._begin(hub, plan)

    async def fetch_from(self, source: ModelSource) -> ModelDownload:
        """Download the model of a source. Raises as `ModelSource.plan`, and NotEnoughSpace, OSError."""
        settings = self._settings
        plan = partial(source.plan, settings.cache, settings.models_dir)
        return await self._begin(source, await trio.to_thread.run_sync(plan))

    async def _planned(self, wanted: Remote, access: HubAccess) -> tuple[Hub, DownloadPlan]:
        """Ask the source, and again where it is only busy. Raises its errors."""
        from appliance.features.downloads.sources import plan_of  # with the words of hubs and registries

        attempt, waited = 1, 0.0
        while True:
            try:
                return await plan_of(wanted, access, self._settings.cache)
            except HubFailed as failure:
                delay = self._settings.retry_delay(attempt, failure.retry_after)
                waited += max(delay, failure.retry_after or 0)
                if not failure.passing or attempt == LISTING_ATTEMPTS or waited > LISTING_PATIENCE:
                    raise
                if failure.busy and await trio.to_thread.run_sync(here, self._settings.cache, wanted) is not None:
                    raise  # it is of use meanwhile as it is
                tell = self._settings.tell if failure.busy else log.info
                tell(f"{failure}; asking again in {delay:.0f} s")
            await trio.sleep(delay)
            attempt += 1

    async def _begin(self, hub: FileServer, plan: DownloadPlan) -> ModelDownload:
        if known := self._under_way(plan):
            return known
        others = self._going()
        await trio.to_thread.run_sync(prepare, plan, hashes_of(others))
        reserved = self._settings.spare + sum(download.missing for download in others)
        await trio.to_thread.run_sync(check_space, plan, reserved)
        here_now = await trio.to_thread.run_sync(have, plan)
        if known := self._under_way(plan):
            return known
        download = ModelDownload(plan, here_now, self._wake_watchers, next(self._numbers))
        self._known.pop(plan.model_id, None)
        self._known[plan.model_id] = download
        ended = [model for model, known in self._known.items() if known.state in ENDED]
        for model in ended[: max(0, len(ended) - REMEMBERED)]:
            del self._known[model]
        settings = self._settings
        transfer = Transfer(hub=hub, throttle=self._throttle, delay=settings.retry_delay, tell=settings.tell)
        self._nursery.start_soon(download.run, transfer, self._turns, lambda: self._settle(plan))
        self._wake_watchers(True)
        return download

    def _under_way(self, plan: DownloadPlan) -> ModelDownload | None:
        """Return the same model's download, which continues if it was paused."""
        known = self._known.get(plan.model_id)
        if known is None or known.state in ENDED:
            return None
        known.resume()
        return known

    async def search(self, text: str) -> list[HubModel]:
        """Return the hub's repositories of models that match. Raises DownloadsOff, TokenRefused, HubFailed."""
        return await ModelHub(await self._access()).search(text)

    async def choices(self, repo: str) -> list[ModelFiles]:
        """Return the quantisations of a repository. Raises BadRequest, NotFound, and the errors of `start`."""
        hub, repo = ModelHub(await self._access()), parse_reference(repo).repo
        return all_choices(repo, await hub.files_of(repo, await hub.commit_of(repo)))

    @property
    def endpoint(self) -> str:
        """The hub's address, without a slash at its end."""
        return self._settings.hub.endpoint

    async def reachable(self) -> bool:
        """Return True if the hub answers at all within `REACH_TIME`."""
        if not self._settings.hub.offline:
            with trio.move_on_after(REACH_TIME):
                try:
                    async with ModelHub(structs.replace(self._settings.hub, token=None)).open("HEAD", self.endpoint):
                        return True
                except HubFailed:
                    return False
        return False

    async def _access(self, *, login: bool = True) -> HubAccess:
        """Return the hub with the user's token, if there is one. Raises DownloadsOff, LoginUnusable."""
        access = self._settings.hub
        if access.offline:
            raise DownloadsOff
        return structs.replace(access, token=await find_token()) if login and not access.token else access

    def find(self, model: str) -> ModelDownload | None:
        """Return the download of a model, even one that has ended."""
        return self._known.get(model)

    def snapshot(self) -> list[DownloadStatus]:
        """Return every download, the oldest first; ended ones stay until they are forgotten or begun again."""
        waiting = [download for download in self._known.values() if download.state == "queued"]
        waiting.sort(key=lambda download: download.queued_at)
        places = {download.model: place for place, download in enumerate(waiting, start=1)}
        return [structs.replace(download.status, place=places.get(download.model)) for download in self._known.values()]

    async def wait_changed(self) -> None:
        """Wait until a state has changed, or numbers of bytes have, which are gathered for a moment."""
        state = self._state_changed
        await self._changed.wait()
        with trio.move_on_after(GATHER):
            await state.wait()

    def forget(self, model: str) -> None:
        """Take an ended download off the list."""
        if (download := self._known.get(model)) and download.state in ENDED:
            del self._known[model]
            self._wake_watchers(True)

    async def delete(self, model: Model) -> RemovedModel:
        """Remove a stopped model; its download is cancelled first. Raises Forbidden (from elsewhere), OSError."""
        await self._cancel(model.id)
        settings, kept = self._settings, hashes_of(self._going())

        def remove() -> RemovedModel:
            removed = plan_removal(model, settings.cache, settings.models_dir, kept).carry_out()
            self._rescan()
            return removed

        return await trio.to_thread.run_sync(remove)

    async def discard(self, model: str) -> RemovedModel | None:
        """Cancel a download and remove what has come of it, in an earlier run too. None: there is none of this name.

        Raises OSError.
        """
        await self._cancel(model)
        download, kept = self._known.get(model), hashes_of(self._going())
        if download is not None and download.state == "finished":
            return None

        def remove() -> RemovedModel | None:
            if download is None:
                removal = plan_leftover(model, self._settings.cache, kept)
            else:
                plan = download.plan
                removal = plan_discard(model, plan.folder, [file.blob for file in plan.files], kept)
            return removal.carry_out() if removal is not None else None

        removed = await trio.to_thread.run_sync(remove)
        self.forget(model)
        return removed

    def _going(self) -> list[ModelDownload]:
        return [download for download in self._known.values() if not download.status.ended]

    async def _cancel(self, model: str) -> None:
        if download := self._known.get(model):
            download.cancel()
            await download.wait()

    def _settle(self, plan: DownloadPlan) -> None:
        """Runs in a thread: after it, the next listing has the model."""
        settle(plan, trio.from_thread.check_cancelled)
        self._rescan()

    def _wake_watchers(self, state: bool) -> None:
        """Wake the watchers; ``state``: not only numbers of bytes have changed."""
        self._changed.wake()
        if state:
            self._state_changed.set()
            self._state_changed = trio.Event()


def hashes_of(downloads: Iterable[ModelDownload]) -> frozenset[str]:
    """Return the hashes of all files of these downloads."""
    return frozenset(file.oid for download in downloads for file in download.plan.files)


@asynccontextmanager
async def open_downloads(
    settings: DownloadSettings, rescan: Callable[[], object] = lambda: None
) -> AsyncGenerator[Downloads]:
    """Leaving the block cancels running downloads; their parts stay. ``rescan`` is called in a thread."""
    async with beside() as nursery:
        yield Downloads(settings, nursery, rescan)
