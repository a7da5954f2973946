"""Edges of features that few servers need: each is made, and its module imported, by the first request for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

from appliance.http.kernel import EdgeAnswer
from appliance.http.way.context import ModelRequest, RequestContext
from appliance.http.way.hooks import DialectSpeaker
from appliance.http.way.routes import Route
from appliance.traffic.request import Request, Sink


class LateRoute:
    """An `EdgeRoute` for the requests that ``answers`` names."""

    def __init__(self, answers: Callable[[Request], bool], make: Callable[[], EdgeAnswer]) -> None:
        self.answers, self.made = answers, cache(make)

    async def answer(self, context: RequestContext) -> None:
        """See `EdgeRoute`."""
        await self.made().answer(context)


class LateTranslate:
    """A `Translate`. ``routes`` are those of models, by path; ``is_own`` names all requests in the dialect."""

    def __init__(
        self, routes: Mapping[str, Route], is_own: Callable[[Request], bool], make: Callable[[], DialectSpeaker]
    ) -> None:
        self._routes, self._is_own, self._made = routes, is_own, cache(make)

    def route(self, request: Request) -> Route | None:
        """See `Translate`."""
        return self._routes.get(request.path) if request.method == "POST" else None

    def sink(self, request: Request, sink: Sink) -> Sink:
        """See `Translate`."""
        return self._made().sink(request, sink) if self._is_own(request) else sink

    async def read(self, context: RequestContext) -> ModelRequest | None:
        """See `Translate`."""
        return await self._made().read(context)

    async def translated(self, path: str, body: bytes) -> tuple[str, bytes]:
        """See `Translate`."""
        return await self._made().translated(path, body)
