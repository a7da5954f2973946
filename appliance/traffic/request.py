"""One HTTP request without its body, as the edge's own value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from msgspec import Struct, structs

from appliance.core.head import read_query
from appliance.core.log_lines import client_address

if TYPE_CHECKING:
    from hypercorn.typing import HTTPScope, WebsocketScope

WORKER, MANIFEST, PAGE_VERSION = "/sw.js", "/manifest.webmanifest", "/_app/version.json"
PAGE_PATHS = frozenset(("/", WORKER, MANIFEST, PAGE_VERSION))
"""The page and what belongs to it, in whose place a folder's files may stand."""
PUBLIC_PATHS = PAGE_PATHS | {"/health", "/v1/health", "/wol-health", "/favicon.ico", "/upstream"}
PAGE_PREFIX = "/ui/"


class Request(Struct, frozen=True, kw_only=True):
    """``path`` is decoded and without the API prefix; ``target`` is the raw path and query, without it too."""

    method: str
    path: str
    target: str
    query: Mapping[str, str]
    headers: Sequence[tuple[bytes, bytes]]
    http_version: str
    client: str = ""
    """Who asks: as proxies on the way tell it, else ``peer``."""
    peer: str = ""
    """The other end of the connection."""

    inward: bool = False
    """The program itself asks: see `http.way.inward`."""
    first: Mapping[bytes, bytes] = {}
    """The first header of each name, in lower case; made from ``headers`` where it is not given."""

    def __post_init__(self) -> None:
        if not self.first and self.headers:
            structs.force_setattr(self, "first", _index(self.headers))

    def header(self, name: bytes) -> str | None:
        """The first header of this (lower-case) name."""
        return _text(self.first, name)

    @property
    def public(self) -> bool:
        """What llama-server answers without a key."""
        return self.path in PUBLIC_PATHS or self.path.startswith(PAGE_PREFIX) or self.path == "/ui"


def read_request(scope: HTTPScope | WebsocketScope, api_prefix: str) -> Request:
    """The request in an ASGI scope. A path outside the API prefix keeps an empty ``path``, which no route has."""
    path, raw = scope["path"], scope["raw_path"].decode("ascii")
    if not raw.startswith("/") and "://" in raw:  # absolute form, as a proxy sends it
        raw = urlsplit(raw).path or "/"
        path = urlsplit(path).path or "/"
    if api_prefix and path not in PUBLIC_PATHS:
        inside = path.startswith(api_prefix)
        path = path.removeprefix(api_prefix) if inside else ""
        raw = raw.removeprefix(api_prefix)
    query = scope["query_string"]
    peer = scope["client"][0] if scope["client"] else ""
    headers = list(scope["headers"])
    first = _index(headers)
    return Request(
        method=scope["method"] if scope["type"] == "http" else "GET",
        path=path,
        target=f"{raw}?{query.decode('ascii')}" if query else raw,
        query=read_query(query) if query else {},
        headers=headers,
        first=first,
        http_version=scope["http_version"],
        client=client_address(_text(first, b"x-forwarded-for"), _text(first, b"x-real-ip"), peer),
        peer=peer,
    )


def _index(headers: Sequence[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    return {name.lower(): value for name, value in reversed(headers)}


def _text(first: Mapping[bytes, bytes], name: bytes) -> str | None:
    value = first.get(name)
    return None if value is None else value.decode("latin-1")
