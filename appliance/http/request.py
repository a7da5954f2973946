"""One HTTP request without its body, as the edge's own value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from msgspec import Struct

from appliance.core.head import read_query

if TYPE_CHECKING:
    from hypercorn.typing import HTTPScope

PUBLIC_PATHS = frozenset(("/", "/health", "/v1/health"))
PAGE_PREFIX = "/ui/"


class Request(Struct, frozen=True, kw_only=True):
    """``path`` is decoded and without the API prefix; ``target`` is the raw path and query, without it too."""

    method: str
    path: str
    target: str
    query: Mapping[str, str]
    headers: Sequence[tuple[bytes, bytes]]
    http_version: str

    def header(self, name: bytes) -> str | None:
        """The first header of this (lower-case) name."""
        for key, value in self.headers:
            if key.lower() == name:
                return value.decode("latin-1")
        return None

    @property
    def public(self) -> bool:
        """What llama-server answers without a key."""
        return self.path in PUBLIC_PATHS or self.path.startswith(PAGE_PREFIX) or self.path == "/ui"


def read_request(scope: HTTPScope, api_prefix: str) -> Request:
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
    return Request(
        method=scope["method"],
        path=path,
        target=f"{raw}?{query.decode('ascii')}" if query else raw,
        query=read_query(query) if query else {},
        headers=list(scope["headers"]),
        http_version=scope["http_version"],
    )
