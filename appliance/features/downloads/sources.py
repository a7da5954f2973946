"""The kinds of downloads: models of the hub, of a Docker registry, at an address; each with its plan and its place.

Of a file at an address (``--model-url``) the hash is unknown, so size and ETag have to do. A model in a registry is
found by its manifest. In the cache lies ``docker--<namespace>--<name>``, laid out as a repository of the hub:
``blobs/<sha256>``, ``snapshots/<the hash's beginning>/`` and ``refs/<tag>``. Only public models: nobody logs in.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import quote, urlsplit

import msgspec
import trio
from msgspec import Struct, structs

from appliance.catalog.found import join_inside, paths_of
from appliance.core.lenient_json import UNREADABLE, decoded
from appliance.core.models.download import (
    ImageLayer,
    ImageManifest,
    Location,
    RegistryImage,
    Remote,
    WantedModel,
    shown_url,
)
from appliance.core.models.hub_address import HubAccess
from appliance.errors import ApplianceError, NotFound
from appliance.features.downloads.hub_api import ModelHub
from appliance.features.downloads.plan import plan_download
from appliance.upstream.file_transfer import DownloadPlan, PlannedFile
from appliance.upstream.hub import Hub, HubAnswer, HubFailed

_SHA256 = re.compile(r'(?:W/)?"?([0-9a-f]{64})"?')
ACCEPTED = b"application/vnd.docker.distribution.manifest.v2+json,application/vnd.oci.image.manifest.v1+json"
PROJECTOR = "mmproj"  # part of the type of a layer that is a projector; a model's has `gguf`
GRANT_LIFE = 120.0  # seconds after which to request another token; Docker's are valid for five minutes
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
_TOKEN = re.compile(r"[\x21-\x7e]{1,65536}")
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")


async def plan_location(hub: Hub, location: Location, cache: Path) -> DownloadPlan:
    """Ask for the headers of every part. Raises NotFound for a missing file or one without a size, HubFailed."""
    files: list[PlannedFile] = []
    for url, path in zip(location.parts(), paths_of(location, cache), strict=True):
        size, oid = await _headers(hub, url)
        lock = path.with_name(f".{path.name}.lock")
        files.append(PlannedFile(url=url, path=path.name, oid=oid, size=size, blob=path, entry=path, lock=lock))
    return DownloadPlan(
        model_id=location.name,
        repo=str(location),
        commit="",
        ref=None,
        folder=files[0].blob.parent,
        files=tuple(files),
        unchanged=(),
    )


async def _headers(hub: Hub, url: str) -> tuple[int, str]:
    """Return the size and, if the server reports it (as the hub does), the hash of the contents; else ""."""
    host, shown = urlsplit(url).netloc, shown_url(url)
    async with hub.open("HEAD", url, stop_at_size=True) as answer:
        if answer.status in (401, 403, 404, 410):
            raise NotFound(f"{host} has no such file, or requires a login ({answer.status}): {shown}")
        if answer.status >= 400:
            raise hub.refusal(answer, shown)
        found = _SHA256.fullmatch(answer.headers.get(b"x-linked-etag", b"").decode("latin-1"))
        size = answer.size
    if not size:
        raise NotFound(
            f"{host} does not report the size of {shown}; download it yourself, and name the file with --model"
        )
    return size, found[1] if found else ""


class RegistryToken(Struct, frozen=True):
    """The token that a registry's token server gives to anybody."""

    token: str = ""
    access_token: str = ""


class Registry(Hub):
    """One registry, without a login."""

    def __init__(self, image: RegistryImage, access: HubAccess) -> None:
        super().__init__(structs.replace(access, endpoint=image.endpoint, token=None))
        self._image = image
        self._granted_at: float | None = None

    async def manifest(self) -> ImageManifest:
        """Return the manifest. Raises NotFound for a missing model, HubFailed."""
        url = f"{self._access.endpoint}/v2/{self._image.repo}/manifests/{quote(self._image.tag)}"
        return msgspec.json.decode(await self._read(url, ((b"Accept", ACCEPTED),)), type=ImageManifest)

    @asynccontextmanager
    async def open(
        self, method: str, url: str, headers: Sequence[tuple[bytes, bytes]] = (), *, stop_at_size: bool = False
    ) -> AsyncGenerator[HubAnswer]:
        if self._granted_at is None or trio.current_time() - self._granted_at > GRANT_LIFE:
            await self._authorise()
        async with super().open(method, url, headers, stop_at_size=stop_at_size) as answer:
            yield answer

    def refusal(self, answer: HubAnswer, repo: str) -> ApplianceError:
        if answer.host == self.host and answer.status in (401, 403, 404):
            return NotFound(
                f"there is no public model {self._image} in the registry {self.host}; check its name and tag"
            )
        return super().refusal(answer, repo)

    async def _authorise(self) -> None:
        """Request a token if the registry wants one, from the server that it names."""
        self._access = structs.replace(self._access, token=None)
        async with super().open("GET", f"{self._access.endpoint}/v2/") as answer:
            challenge = answer.headers.get(b"www-authenticate", b"").decode("latin-1")
            wanted = answer.status == 401 and challenge.lower().startswith("bearer ")
        self._granted_at = trio.current_time()
        if not wanted:
            return
        told = dict(_CHALLENGE.findall(challenge))
        scope = quote(f"repository:{self._image.repo}:pull")
        place = self._redirected(self._access.endpoint, told.get("realm", "").encode("latin-1"))
        url = f"{place}?service={quote(told.get('service', ''))}&scope={scope}"
        grant = msgspec.json.decode(await self._read(url), type=RegistryToken)
        token = grant.token or grant.access_token
        if not _TOKEN.fullmatch(token):
            raise HubFailed(self.host, "its token cannot be used", passing=False)
        self._access = structs.replace(self._access, token=token)

    async def _read(self, url: str, headers: Sequence[tuple[bytes, bytes]] = ()) -> bytes:
        """Return a whole JSON answer. Raises HubFailed, and the errors of `refusal`."""
        async with self.open("GET", url, headers) as answer:
            body = await self._whole(answer, self._image.repo)
        if decoded(dict[str, msgspec.Raw], body) is None:
            raise HubFailed(self.host, "its answer is not that of a registry", passing=False)
        return body


async def plan_image(registry: Registry, image: RegistryImage, cache: Path) -> DownloadPlan:
    """Ask the registry. Raises NotFound for anything but a model, HubFailed."""
    try:
        manifest = await registry.manifest()
    except UNREADABLE:
        raise HubFailed(registry.host, "its answer is not that of a registry", passing=False) from None
    models = [layer for layer in manifest.layers if "gguf" in layer.media_type and PROJECTOR not in layer.media_type]
    if len(models) != 1:
        what = "no GGUF file" if not models else f"a model in {len(models)} parts, which this program does not support"
        raise NotFound(f"{image} is {what}; look for the same model on Hugging Face, for --hf-repo")
    projectors = [layer for layer in manifest.layers if PROJECTOR in layer.media_type][:1]
    folder = join_inside(cache, image.folder)
    commit = _hash_of(registry, models[0])[:40]
    stem = f"{image.repo.rpartition('/')[2]}-{image.tag}"
    named = [(f"{stem}.gguf", models[0]), *((f"mmproj-{stem}.gguf", layer) for layer in projectors)]
    return DownloadPlan(
        model_id=str(image),
        repo=image.repo,
        commit=commit,
        ref=image.tag,
        folder=folder,
        files=tuple(_planned(registry, image, folder / "snapshots" / commit / name, layer) for name, layer in named),
        unchanged=(),
    )


def _planned(registry: Registry, image: RegistryImage, entry: Path, layer: ImageLayer) -> PlannedFile:
    oid = _hash_of(registry, layer)
    url = f"{image.endpoint}/v2/{image.repo}/blobs/{layer.digest}"
    return PlannedFile.in_repo(url, entry.name, oid, layer.size, entry, entry.parent.parent.parent)


def _hash_of(registry: Registry, layer: ImageLayer) -> str:
    match = _DIGEST.fullmatch(layer.digest.lower())
    if match is None or layer.size <= 0:
        raise HubFailed(registry.host, f"it names a layer by {layer.digest!r}, which is not a SHA-256", passing=False)
    return match[1]


async def plan_of(wanted: Remote, access: HubAccess, cache: Path) -> tuple[Hub, DownloadPlan]:
    """Return the plan after asking the source. Raises its errors."""
    match wanted:
        case WantedModel():
            hub = ModelHub(access)
            return hub, await plan_download(hub, wanted, cache)
        case RegistryImage():
            registry = Registry(wanted, access)
            return registry, await plan_image(registry, wanted, cache)
        case Location():
            hub = ModelHub(access)  # whose token goes to the hub alone, wherever the file is
            return hub, await plan_location(hub, wanted, cache)
