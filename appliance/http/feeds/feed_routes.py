"""Logs and events as they come: ``/logs``, ``/logs/stream...`` and ``/api/events``."""

from __future__ import annotations

from collections.abc import AsyncIterable
from types import TracebackType

import trio
from quart import Response, request
from quart.wrappers.response import ResponseBody

from appliance.errors import ModelNotFound
from appliance.http.control.answers import TEXT, feed_answer, see, text_answer
from appliance.http.feeds import events
from appliance.http.feeds.events import EventFeed, Sources
from appliance.traffic.lifetime import Lifetime
from appliance.traffic.program_log import LogReader


class FeedRoutes:
    """Every method is one route."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    async def logs(self) -> Response:
        """The combined log so far; a browser is sent to the page."""
        if "text/html" in request.headers.get("Accept", ""):
            return see("ui/")
        return text_answer(_text(self._sources.logs.combined().take()))

    async def follow_combined(self) -> Response:
        return self._follow(self._sources.logs.combined(history=_wants_history()))

    async def follow_program(self) -> Response:
        return self._follow(self._sources.logs.program(history=_wants_history()))

    async def follow_upstream(self) -> Response:
        return self._follow(self._sources.logs.upstream(history=_wants_history()))

    async def follow_model(self, model: str) -> Response:
        view = self._sources.view
        model_id = view.model_id(model)
        if model_id is None:
            raise ModelNotFound(model, view.catalog.snapshot.near(model))
        return self._follow(self._sources.logs.upstream(model_id, history=_wants_history()))

    async def events(self) -> Response:
        if request.method == "HEAD":
            return Response("", content_type=events.CONTENT_TYPE)
        return feed_answer(EventFeed(self._sources), events.CONTENT_TYPE, self._sources.lifetime.feeds)

    def _follow(self, reader: LogReader) -> Response:
        """``?no-follow`` is this program's own: what there is so far, for a client that wants no more."""
        if request.method == "HEAD":
            return text_answer("")
        if "no-follow" in request.args:
            return text_answer(_text(reader.take()))
        lifetime = self._sources.lifetime
        return feed_answer(LogText(reader, lifetime), TEXT, lifetime.feeds)


class LogText(ResponseBody):
    """Log lines until the client leaves or the server begins to end."""

    def __init__(self, reader: LogReader, lifetime: Lifetime) -> None:
        self._reader = reader
        self._lifetime = lifetime

    async def __aenter__(self) -> AsyncIterable[bytes]:
        return self

    async def __aexit__(self, exc_type: type, exc_value: BaseException, tb: TracebackType) -> None:
        pass

    def __aiter__(self) -> LogText:
        return self

    async def __anext__(self) -> bytes:
        with self._lifetime.follower():
            await trio.lowlevel.checkpoint()  # held lines come without one
            while not (lines := self._reader.take()):
                await self._reader.wait()
            return _text(lines).encode()
        raise StopAsyncIteration


def _wants_history() -> bool:
    return "no-history" not in request.args


def _text(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
