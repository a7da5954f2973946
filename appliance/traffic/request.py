"""One HTTP request without its body, and the sink for its answer: the edge's own values.

The way of a request writes into a `Sink` and does not know what carries it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol
from urllib.parse import unquote

from msgspec import Struct, structs

from appliance.core.bodies.head import read_query
from appliance.core.bodies.http_request import HttpHead
from appliance.core.bodies.usual_path import usual_path
from appliance.core.headers import Headers
from appliance.core.records.log_lines import client_address

WORKER, MANIFEST, PAGE_VERSION = "/sw.js", "/manifest.webmanifest", "/_app/version.json"
PAGE_PATHS = frozenset(("/", WORKER, MANIFEST, PAGE_VERSION))
"""The page and what belongs to it, in whose place a folder's files may stand."""
PUBLIC_PATHS = PAGE_PATHS | {"/health", "/v1/health", "/ready", "/wol-health", "/favicon.ico", "/upstream"}
PAGE_PREFIX = "/ui/"
OF_ONE = "/worker/"
"""Behind it and a model's name, every path is that of a server with this model alone: routers want one URL for each."""
TRUSTED = "unix:trusted"
"""The peer of a connection whose socket's permissions take the place of a key."""
CONVERSATIONS = "/api/conversations"
"""The path of the page's conversations."""


class Request(Struct, frozen=True, kw_only=True):
    """``path`` is decoded, without the API prefix, and usual; ``target`` is the same path as it is sent, and the query.

    See `usual_path`.
    """

    method: str
    path: str
    target: str
    query: Mapping[str, str]
    headers: Sequence[tuple[bytes, bytes]]
    http_version: str
    client: str = ""
    """The client's address, as proxies on the way report it, else ``peer``."""
    peer: str = ""
    """The other end of the connection."""

    inward: bool = False
    """The program itself asks: see `http.way.handover`."""
    alone: bool = False
    """A model answers by itself, without tools and plugins of this server: see `http.way.guard`."""
    only: str = ""
    """The one model that the caller sees, if the path was below `OF_ONE`."""
    folder: bool = False
    """The path ended with a slash. Only files tell it apart."""
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
        """llama-server answers the path without a key."""
        return self.path in PUBLIC_PATHS or self.path.startswith(PAGE_PREFIX) or self.path == "/ui"


def read_request(head: HttpHead, api_prefix: str, peer: str) -> Request:
    """The request of a head. A path outside the API prefix keeps an empty ``path``, which no route has."""
    asked, _, query = head.target.decode("ascii").partition("?")
    raw = usual_path(asked)
    path = unquote(raw) if "%" in raw else raw
    if api_prefix and path not in PUBLIC_PATHS:
        path = path if path.startswith(api_prefix) else ""
        raw = usual_path(raw.removeprefix(api_prefix))
        path = path and unquote(raw)
    only = ""
    if path and raw.startswith(OF_ONE):
        name, _, rest = raw.removeprefix(OF_ONE).partition("/")
        only, raw = unquote(name), usual_path(f"/{rest}")
        path = unquote(raw)
    first = _index(head.headers)
    return Request(
        method=head.method,
        path=path,
        target=f"{raw}?{query}" if query else raw,
        query=read_query(query.encode()) if query else {},
        headers=head.headers,
        first=first,
        http_version=head.http_version,
        client=client_address(_text(first, b"x-forwarded-for"), _text(first, b"x-real-ip"), peer),
        peer=peer,
        only=only,
        folder=asked.endswith("/"),
    )


def _index(headers: Sequence[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    return {name.lower(): value for name, value in reversed(headers)}


def _text(first: Mapping[bytes, bytes], name: bytes) -> str | None:
    value = first.get(name)
    return None if value is None else value.decode("latin-1")


class Sink(Protocol):
    """One answer. ``status`` is None until it has started."""

    @property
    def status(self) -> int | None: ...

    @property
    def event_stream(self) -> bool:
        """It has started as server-sent events; every write ends at the end of a record."""
        ...

    @property
    def ended(self) -> bool: ...

    @property
    def sent(self) -> int:
        """Bytes of body."""
        ...

    def start(self, status: int, headers: Headers) -> None: ...

    def push(self, data: bytes) -> bool:
        """Hand these bytes on now. False: they are taken, but `flush` has to be awaited before the next."""
        ...

    async def flush(self) -> None:
        """Return when the client's side has taken all that was pushed."""
        ...

    async def write(self, data: bytes) -> None:
        """`push`, and `flush` where it is needed."""
        ...

    def finish(self) -> bool:
        """The answer is whole. False: `flush` has to be awaited, for the client's side has not taken all."""
        ...

    async def end(self) -> None:
        """`finish`, and `flush` where it is needed."""
        ...

    def abort(self) -> None:
        """Break the connection, so that nobody takes a torn answer for a whole one."""
        ...


class Passing:
    """A sink that passes an answer on to ``inner``. A subclass overrides what it looks at on the way."""

    __slots__ = ("inner",)

    def __init__(self, inner: Sink) -> None:
        self.inner = inner

    @property
    def status(self) -> int | None:
        return self.inner.status

    @property
    def event_stream(self) -> bool:
        return self.inner.event_stream

    @property
    def ended(self) -> bool:
        return self.inner.ended

    @property
    def sent(self) -> int:
        return self.inner.sent

    def start(self, status: int, headers: Headers) -> None:
        self.inner.start(status, headers)

    def push(self, data: bytes) -> bool:
        return self.inner.push(data)

    async def flush(self) -> None:
        await self.inner.flush()

    async def write(self, data: bytes) -> None:
        if not self.push(data):
            await self.inner.flush()

    def finish(self) -> bool:
        return self.inner.finish()

    async def end(self) -> None:
        if not self.finish():
            await self.inner.flush()

    def abort(self) -> None:
        self.inner.abort()


def push_whole(sink: Sink, status: int, headers: Headers, content: bytes = b"") -> bool:
    """An answer that is there already; its length goes behind ``headers``. As `Sink.finish`."""
    sink.start(status, (*headers, (b"Content-Length", b"%d" % len(content))))
    if content:
        sink.push(content)
    return sink.finish()


async def send_whole(sink: Sink, status: int, headers: Headers, content: bytes = b"") -> None:
    """`push_whole`, and `Sink.flush` where it is needed."""
    if not push_whole(sink, status, headers, content):
        await sink.flush()
