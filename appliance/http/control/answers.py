"""Small answers of the program's own routes."""

from __future__ import annotations

from collections.abc import AsyncIterable
from contextlib import ExitStack
from types import TracebackType

import msgspec
from quart import Response
from quart.wrappers.response import ResponseBody

from appliance.traffic.traffic import Feeds

TEXT = "text/plain; charset=utf-8"


def json_answer(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, content_type="application/json; charset=utf-8")


def text_answer(text: str) -> Response:
    return Response(text, content_type=TEXT)


def see(place: str) -> Response:
    """302 to a place relative to the request's own path, so that it also holds under a path prefix."""
    response = Response("", 302, content_type=TEXT)
    response.headers["Location"] = place
    return response


class _Feed(ResponseBody):
    """A body that counts among the feeds while it is read."""

    def __init__(self, body: ResponseBody, feeds: Feeds) -> None:
        self._body = body
        self._feeds = feeds
        self._reading = ExitStack()

    async def __aenter__(self) -> AsyncIterable[bytes]:
        self._reading.enter_context(self._feeds.reading())
        return await self._body.__aenter__()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]

    async def __aexit__(self, exc_type: type[BaseException], exc_value: BaseException, tb: TracebackType) -> None:
        with self._reading:
            await self._body.__aexit__(exc_type, exc_value, tb)


def feed_answer(body: ResponseBody, content_type: str, feeds: Feeds) -> Response:
    """An endless answer with news. Raises Busy if too many clients read one."""
    feeds.check()
    return endless_answer(_Feed(body, feeds), content_type)


def endless_answer(body: ResponseBody, content_type: str) -> Response:
    """An answer that goes on until its client leaves or the server ends."""
    response = Response(body, content_type=content_type)
    response.timeout = None
    response.headers["Cache-Control"] = "no-cache"
    response.headers["X-Accel-Buffering"] = "no"
    response.headers["X-Content-Type-Options"] = "nosniff"
    return response
