"""Requests in another dialect than llama-server's own chat completions: answered through those, or by their server.

A model whose process is llama-server is asked for a chat completion, and its answer is translated. Any other server may
speak the dialect itself, so it gets the request as it is. If it answers that it has no such route, it is asked for a
chat completion.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import Protocol

from msgspec import Struct, structs

from appliance.catalog.catalog import Catalog
from appliance.core.answers.translate import AnswerTranslate
from appliance.core.bodies.head import RequestHead
from appliance.core.models.identity import runs_llama_server
from appliance.core.models.model import Model
from appliance.http.bytes.body import Bodies
from appliance.http.way.context import AskModel, ModelRequest, Use
from appliance.http.way.outgoing import ignored
from appliance.http.way.routes import Route, own_path
from appliance.traffic.request import Headers, Passing, Sink
from appliance.traffic.translated import TranslatedSink

CHATS = "/v1/chat/completions"
CHAT_TOKENS = f"{CHATS}/input_tokens"
_LACKS = frozenset((404, 405, 501))


class Translated(Struct, frozen=True, kw_only=True):
    """A request as a chat completion: the body for ``path``, and the translator of the answer.

    ``ignored`` names the parts of the request that have no effect.
    """

    path: str = CHATS
    body: bytes
    answer: AnswerTranslate
    ignored: Sequence[str] = ()


class DialectReader(Protocol):
    """The dialect of some routes. ``routes`` are their names."""

    @property
    def routes(self) -> Collection[str]: ...

    async def read(self, job: ModelRequest, model: Model | None) -> Translated:
        """Return the request as a chat completion; ``model`` is None for one elsewhere. Raises BadRequest and Busy."""
        ...


class DialectTurn:
    """The `Turn` of a dialect. It comes last: those before it see the request as the client has sent it."""

    acts = False

    def __init__(self, dialect: DialectReader, catalog: Catalog, bodies: Bodies) -> None:
        self._dialect = dialect
        self._catalog = catalog
        self._bodies = bodies
        self._chats = structs.replace(own_path(CHATS), loading_state=False)  # its words would not be translated

    def is_for(self, route: Route) -> bool:
        """See `appliance.http.way.hooks.Turn`."""
        return route.name in self._dialect.routes

    def wants(self, route: Route, head: RequestHead, body: bytes) -> bool:
        """See `appliance.http.way.hooks.Turn`."""
        return route.name in self._dialect.routes

    def take(self, job: ModelRequest, model: str) -> tuple[ModelRequest, Use | None]:
        """See `appliance.http.way.hooks.Turn`."""
        return job, partial(self._answer, model) if job.route.name in self._dialect.routes else None

    async def _answer(self, name: str, job: ModelRequest, ask: AskModel) -> None:
        model = self._catalog.snapshot.find(name)
        if model is None or not runs_llama_server(model):
            native = _UnlessLacking(job.sink)
            await ask(structs.replace(job, sink=native))
            if not native.lacks:
                return
        read = await self._dialect.read(job, model)
        route = self._chats if read.path == CHATS else own_path(read.path)
        sink = TranslatedSink(job.sink, read.answer, ignored(read.ignored))
        grown = max(len(read.body) - len(job.body), 0)
        self._bodies.reserve(grown)
        try:
            await ask(structs.replace(job, route=route, path=read.path, body=read.body, sink=sink))
        finally:
            self._bodies.release(grown)


class _UnlessLacking(Passing):
    """Passes an answer on, but for one that says that there is no such route."""

    def __init__(self, inner: Sink) -> None:
        super().__init__(inner)
        self.lacks = False

    def start(self, status: int, headers: Headers) -> None:
        self.lacks = status in _LACKS
        if not self.lacks:
            self.inner.start(status, headers)

    def push(self, data: bytes) -> bool:
        return self.lacks or self.inner.push(data)

    def finish(self) -> bool:
        return self.lacks or self.inner.finish()

    def abort(self) -> None:
        if not self.lacks:
            self.inner.abort()
