"""Downloads archives of engine builds in the same way as models: resumable and checked."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from msgspec import structs

from appliance.catalog.download_errors import DownloadsOff, GatedRepo, HubFailed, RepoNotFound
from appliance.catalog.download_file import Transfer, fetch
from appliance.catalog.download_plan import PlannedFile
from appliance.catalog.hub import Hub, HubAccess, hub_access
from appliance.cli.show import human_size
from appliance.core.engines.builds import Archive
from appliance.core.models.download import Throttle
from appliance.engines.installing import CannotInstall
from appliance.platform.console import say

STEP = 10
"""Percent between two lines of progress."""


async def fetch_archive(archive: Archive, path: Path) -> None:
    """Make sure that the complete, checked archive is at ``path``. Raises CannotInstall, ApplianceError, OSError."""
    parts = urlsplit(archive.url)
    if hub_access(os.environ).offline:
        raise DownloadsOff
    if not archive.sha256:
        raise CannotInstall(
            f"no sum is known of {archive.url}, so the download could not be checked; give it with --sha256 SUM"
        )
    hub = Hub(HubAccess(endpoint=f"{parts.scheme}://{parts.netloc}"))
    try:
        known = archive if archive.size else structs.replace(archive, size=await _size_of(hub, archive))
        planned = PlannedFile(
            url=archive.url,
            path=archive.name,
            oid=archive.sha256,
            size=known.size,
            blob=path,
            entry=path,
            lock=path.with_name(f".{path.name}.lock"),
        )
        have = planned.begun()
        begun = f", {human_size(have)} already here" if have else ""
        say(f"downloading {archive.name}: {human_size(known.size)}{begun}")
        await fetch(Transfer(hub=hub, throttle=Throttle(None)), archive.name, archive.name, planned, _told(known))
    except HubFailed as failure:
        raise CannotInstall(
            f"{archive.url} could not be fetched: {failure.why}; fetch it on another machine, and install it from "
            f"there with --from {archive.name}"
        ) from None
    except (RepoNotFound, GatedRepo):
        raise CannotInstall(f"{parts.netloc} has no {parts.path}, or requires a login") from None


async def _size_of(hub: Hub, archive: Archive) -> int:
    async with hub.open("HEAD", archive.url) as answer:
        if answer.status >= 400:
            raise hub.refusal(answer, archive.name)
        size = answer.headers.get(b"content-length", b"")
    if not size.isdigit() or int(size) == 0:
        raise CannotInstall(f"{hub.host} does not report the size of {archive.name}; download it, and use --from FILE")
    return int(size)


def _told(archive: Archive) -> Callable[[int], None]:
    """Print a line for every further tenth."""
    told = 0

    def report(done: int) -> None:
        nonlocal told
        percent = 100 * done // max(archive.size, 1)
        if percent >= told + STEP:
            told = percent - percent % STEP
            say(f"  {told} % of {human_size(archive.size)}")

    return report
