"""The kinds of downloads: models of the hub, of a registry, at an address; each with its plan and its place."""

from __future__ import annotations

from pathlib import Path

from appliance.catalog.download_plan import Plan, plan_download
from appliance.catalog.download_url import location_in_cache, plan_location
from appliance.catalog.hub import Hub, HubAccess
from appliance.catalog.hub_cache import Cached, in_cache
from appliance.catalog.registry import Registry, image_in_cache, plan_image
from appliance.core.models.download import Wanted
from appliance.core.models.elsewhere import Image, Location, Remote


def here(cache: Path, wanted: Remote) -> Cached | None:
    """Return its files, if all of them are in the cache, or at their requested places."""
    match wanted:
        case Wanted():
            return in_cache(cache, wanted)
        case Image():
            return image_in_cache(cache, wanted)
        case Location():
            return location_in_cache(cache, wanted)


async def plan_of(wanted: Remote, access: HubAccess, cache: Path) -> tuple[Hub, Plan]:
    """Return the plan after asking the source. Raises its errors."""
    match wanted:
        case Wanted():
            hub = Hub(access)
            return hub, await plan_download(hub, wanted, cache)
        case Image():
            registry = Registry(wanted, access)
            return registry, await plan_image(registry, wanted, cache)
        case Location():
            hub = Hub(access)  # whose token goes to the hub alone, wherever the file is
            return hub, await plan_location(hub, wanted, cache)
