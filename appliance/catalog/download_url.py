"""Files at any address (``--model-url``): their hash is unknown, so size and ETag have to do."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

from appliance.catalog.download_plan import Plan, PlannedFile
from appliance.catalog.files import join_inside
from appliance.catalog.hub import Hub
from appliance.catalog.hub_cache import Cached
from appliance.core.models.elsewhere import Location, shown_url
from appliance.errors import NotFound

_SHA256 = re.compile(r'(?:W/)?"?([0-9a-f]{64})"?')


async def plan_location(hub: Hub, location: Location, cache: Path) -> Plan:
    """Ask for the headers of every part. Raises NotFound for a missing file or one without a size, HubFailed."""
    files: list[PlannedFile] = []
    for url, path in zip(location.parts(), paths_of(location, cache), strict=True):
        size, oid = await _headers(hub, url)
        lock = path.with_name(f".{path.name}.lock")
        files.append(PlannedFile(url=url, path=path.name, oid=oid, size=size, blob=path, entry=path, lock=lock))
    return Plan(
        model_id=location.name,
        repo=str(location),
        commit="",
        ref=None,
        folder=files[0].blob.parent,
        files=tuple(files),
        unchanged=(),
    )


def location_in_cache(cache: Path, location: Location) -> Cached | None:
    """Return the files, if all of them are here: they get their names when they are complete."""
    paths = paths_of(location, cache)
    return Cached(files=tuple(map(str, paths)), mmproj=None, tag=None) if all(map(Path.is_file, paths)) else None


def paths_of(location: Location, cache: Path) -> list[Path]:
    """Return the places of the parts, as in llama-server: the first at the given path, the others beside it."""
    names = [Location(url=url).name for url in location.parts()]
    if location.path is None:
        return [join_inside(cache, name) for name in names]
    first = Path(location.path).absolute()
    return [first] if len(names) == 1 else [first.with_name(name) for name in names]


async def _headers(hub: Hub, url: str) -> tuple[int, str]:
    """Return the size and, if the server reports it (as the hub does), the hash of the contents; else ""."""
    host, shown = urlsplit(url).netloc, shown_url(url)
    async with hub.open("HEAD", url, stop_at_size=True) as answer:
        if answer.status in (401, 403, 404, 410):
            raise NotFound(f"{host} has no such file, or requires a login ({answer.status}): {shown}")
        if answer.status >= 400:
            raise hub.refusal(answer, shown)
        size = answer.headers.get(b"x-linked-size") or answer.headers.get(b"content-length") or b""
        found = _SHA256.fullmatch(answer.headers.get(b"x-linked-etag", b"").decode("latin-1"))
    if not size.isdigit() or int(size) == 0:
        raise NotFound(
            f"{host} does not report the size of {shown}; download it yourself, and name the file with --model"
        )
    return int(size), found[1] if found else ""
