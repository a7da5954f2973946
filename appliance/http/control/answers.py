"""Requests and answers of the program's own routes: how bodies are read, and the small forms of answers."""

from __future__ import annotations

import gzip
import re
from abc import abstractmethod
from collections.abc import AsyncIterable
from contextlib import ExitStack
from types import TracebackType
from typing import Self, TypeVar

import msgspec
import trio
from quart import Response, request
from quart.wrappers.response import ResponseBody

from appliance.core.bodies.codings import SMALLEST, accepts_gzip
from appliance.core.bodies.head import check_json
from appliance.core.headers import EVENTS
from appliance.errors import BadRequest
from appliance.traffic.traffic import Feeds

T = TypeVar("T")
TEXT = "text/plain; charset=utf-8"
EVENT_STREAM = EVENTS.decode()
FASTEST = 1
"""The level of gzip for an answer of the moment."""
_MEMBER = re.compile(r" - at `\$\.(\w+)")
"""msgspec's words for the place of a mistake, with the first member on the way to it."""


async def read_body() -> bytes:
    """Return the body of the request, which `QuartBehind` has read, and bounded."""
    return await request.get_data(cache=False, as_text=False, parse_form_data=False)


async def read_as(kind: type[T], *, param: str | None = None) -> T:
    """Read the body as JSON of this kind. Raises BadRequest, with the place of the mistake."""
    return parse_as(await read_body(), kind, param=param)


def parse_as(body: bytes, kind: type[T], *, param: str | None = None, form: str = "") -> T:
    """The same of a body that has been read. ``form``: how it should look, for the error.

    Without ``param`` the error names the member of the body that holds the mistake.
    """
    check_json(body)
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        hint = f"; it looks like {form}" if form else ""
        raise BadRequest(f"the request body cannot be used: {error}{hint}", param=param or _member(error)) from None


def parameters() -> dict[str, list[str]]:
    """Return the parameters of the request's query, each with all of its values."""
    return {name: request.args.getlist(name) for name in request.args}


def is_trusted() -> bool:
    """True for a request of the server's own home; see `core.server_choice`."""
    return bool(request.scope["state"]["trusted"])


def json_answer(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, content_type="application/json; charset=utf-8")


async def packed_answer(value: object) -> Response:
    """The same, compressed for a client that takes it, where that saves something."""
    response = json_answer(value)
    response.headers["Vary"] = "Accept-Encoding"
    body = await response.get_data(as_text=False)
    if accepts_gzip(request.headers.get("Accept-Encoding", "")) and len(body) >= SMALLEST:
        response.set_data(await trio.to_thread.run_sync(gzip.compress, body, FASTEST))
        response.headers["Content-Encoding"] = "gzip"
    return response


def text_answer(text: str) -> Response:
    return Response(text, content_type=TEXT)


def see(place: str) -> Response:
    """302 to a place relative to the request's own path, so that it also holds under a path prefix."""
    response = Response("", 302, content_type=TEXT)
    response.headers["Location"] = place
    return response


class Pieces(ResponseBody):
    """A body that is its own iterator of pieces: a subclass has ``__anext__``."""

    async def __aenter__(self) -> AsyncIterable[bytes]:
        return self

    async def __aexit__(self, exc_type: type, exc_value: BaseException, tb: TracebackType) -> None:
        pass

    def __aiter__(self) -> Self:
        return self

    @abstractmethod
    async def __anext__(self) -> bytes: ...


def endless_answer(body: ResponseBody | bytes, content_type: str, feeds: Feeds) -> Response:
    """An answer that goes on until its client leaves or the server ends; until then it counts among the feeds.

    HEAD has its head alone. Raises Busy if there are too many of them.
    """
    over: ExitStack = request.scope["state"]["over"]
    over.enter_context(feeds.reading())
    response = Response(b"" if request.method == "HEAD" else body, content_type=content_type)
    response.timeout = None
    response.headers["Cache-Control"] = "no-cache"
    response.headers["X-Accel-Buffering"] = "no"
    response.headers["X-Content-Type-Options"] = "nosniff"
    return response


def _member(error: msgspec.ValidationError) -> str | None:
    found = _MEMBER.search(str(error))
    return found[1] if found else None
