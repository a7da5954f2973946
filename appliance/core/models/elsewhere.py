"""Models that are neither a file nor on the hub: in a Docker registry (``--docker-repo``), at an address
(``--model-url``).

Source of the rules: llama-server of llama.cpp b11434; the form of names is Docker's own.
"""

from __future__ import annotations

import re
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from appliance.core.models.download import HUB_HOSTS, Reference, Wanted, parse_reference
from appliance.core.models.names import shard_of, stem_of
from appliance.errors import ApplianceError, UsageError

DOCKER_HUB = "registry-1.docker.io"
DOCKER_NAMES = ("docker.io", "index.docker.io", "hub.docker.com", DOCKER_HUB)
NAMESPACE = "ai"
"""The namespace of Docker's own models, for names without one."""
_REPO = re.compile(r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)+")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_RESOLVE = re.compile(r"/([^/]+/[^/]+)/(?:resolve|blob)/main/(.+)")


class Image(Struct, frozen=True, kw_only=True):
    """A model in a registry of container images; ``host`` may have a port."""

    host: str = DOCKER_HUB
    repo: str
    tag: str = "latest"

    def __str__(self) -> str:
        return f"{self._shown_host}{self.repo}:{self.tag}"

    @property
    def _shown_host(self) -> str:
        return "" if self.host == DOCKER_HUB else f"{self.host}/"

    @property
    def endpoint(self) -> str:
        """The registry's address: without TLS only on this machine, as in Docker."""
        plain = self.host.rpartition(":")[0] in _LOOPBACK or self.host in _LOOPBACK
        return f"{'http' if plain else 'https'}://{self.host}"

    @property
    def folder(self) -> str:
        """The name of its folder in the cache."""
        return "--".join(("docker", *self._shown_host.replace(":", "-").split("/")[:-1], *self.repo.split("/")))


class Location(Struct, frozen=True, kw_only=True):
    """A file at an address, and the path where it should be stored (None: in the cache)."""

    url: str
    path: str | None = None

    def __str__(self) -> str:
        return shown_url(self.url)

    @property
    def name(self) -> str:
        return _name_of(self.url)

    def parts(self) -> tuple[str, ...]:
        """Return the addresses of all parts of the model, the first part first."""
        shard = shard_of(stem_of(self.name) or "")
        if shard is None:
            return (self.url,)
        before, _, query = self.url.partition("?")
        folder = before.rpartition("/")[0]
        behind = f"?{query}" if query else ""
        return tuple(f"{folder}/{shard.name(number)}{behind}" for number in range(1, shard.total + 1))


Remote = Wanted | Image | Location
"""Anything that can be downloaded."""


def parse_image(text: str) -> Image:
    """Read ``[HOST[:PORT]/][NAMESPACE/]NAME[:TAG]``. Raises UsageError."""
    first, slash, rest = text.partition("/")
    has_host = bool(slash) and (first == "localhost" or "." in first or ":" in first)
    host = (DOCKER_HUB if first in DOCKER_NAMES else first) if has_host else DOCKER_HUB
    repo, _, tag = (rest if has_host else text).partition(":")
    repo = repo if "/" in repo or has_host else f"{NAMESPACE}/{repo}"
    image = Image(host=host, repo=repo, tag=tag or "latest")
    if not _REPO.fullmatch(repo) or not _TAG.fullmatch(image.tag):
        raise UsageError(
            f"{text!r} does not name a model in a registry; write NAME, or NAME:TAG, as in ai/smollm2:latest"
        )
    return image


def parse_location(url: str, path: str | None) -> Location | Wanted:
    """Read an address; one on the hub is a file there, whose hash is known. Raises UsageError."""
    parts = urlsplit(url)
    if parts.username is not None:
        raise UsageError(f"{shown_url(url)!r} contains a user name, which this program never sends; leave it out")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{shown_url(url)!r} is not the address of a file; write http:// or https://, host and path")
    name = _name_of(url)
    if not name or name in (".", "..") or not name.isprintable() or "\\" in name or ":" in name:
        raise UsageError(f"{shown_url(url)!r} does not end in the name of a file")
    on_hub = _RESOLVE.fullmatch(unquote(parts.path)) if parts.hostname in HUB_HOSTS and path is None else None
    if on_hub is not None:
        try:
            reference = parse_reference(on_hub[1])
        except ApplianceError:
            return Location(url=url)
        return Wanted(reference=Reference(reference.repo), file=on_hub[2])
    return Location(url=url, path=path)


def shown_url(url: str) -> str:
    """Return the address for messages and logs, without a possible secret: a password, or a signed query."""
    before, slashes, rest = url.partition("?")[0].partition("#")[0].rpartition("//")
    authority, slash, path = rest.partition("/")
    return f"{before}{slashes}{authority.rpartition('@')[2]}{slash}{path}"


def _name_of(url: str) -> str:
    return unquote(urlsplit(url).path).rpartition("/")[2]
