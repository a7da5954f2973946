"""Which requests belong to a model's process, and how. Source: llama-server README, b11434."""

from __future__ import annotations

from msgspec import Struct

from appliance.core.sse import Dialect
from appliance.http.request import PAGE_PREFIX, Request


class Route(Struct, frozen=True, kw_only=True):
    """How a request for a model's process is treated. ``name`` is what metrics call it."""

    name: str
    loads: bool = True
    """False: a question about a running model, which never loads one."""
    streams: bool = False
    """``stream: true`` asks for server-sent events here."""
    dialect: Dialect = Dialect.OPENAI


_GENERATE = (
    "/completion",
    "/completions",
    "/v1/completions",
    "/chat/completions",
    "/v1/chat/completions",
    "/infill",
    "/v1/audio/transcriptions",
    "/audio/transcriptions",
)
_ANSWER = (
    "/v1/chat/completions/control",
    "/chat/completions/input_tokens",
    "/v1/chat/completions/input_tokens",
    "/responses/input_tokens",
    "/v1/responses/input_tokens",
    "/embedding",
    "/embeddings",
    "/v1/embeddings",
    "/rerank",
    "/reranking",
    "/v1/rerank",
    "/v1/reranking",
    "/v1/systemone",
    "/tokenize",
    "/detokenize",
    "/apply-template",
    "/props",
    "/lora-adapters",
)
_POST = {
    **{path: Route(name=path, streams=True) for path in _GENERATE},
    **{path: Route(name=path) for path in _ANSWER},
    **{path: Route(name=path, streams=True, dialect=Dialect.RESPONSES) for path in ("/responses", "/v1/responses")},
    "/v1/messages": Route(name="/v1/messages", streams=True, dialect=Dialect.ANTHROPIC),
    "/v1/messages/count_tokens": Route(name="/v1/messages/count_tokens", dialect=Dialect.ANTHROPIC),
}
_SLOT = Route(name="/slots/:id")
_ASK_MODEL = ("/props", "/slots", "/metrics")
"""The child's with ``?model=``, the program's own without."""
_ASK = {path: Route(name=path, loads=False) for path in (*_ASK_MODEL, "/lora-adapters")}


def model_route(request: Request) -> Route | None:
    """The route of a request that belongs to a model's process, None for the program's own."""
    if request.method == "POST":
        if request.path.startswith("/slots/"):
            return _SLOT
        return _POST.get(request.path)
    if request.method in ("GET", "HEAD") and (request.path not in _ASK_MODEL or request.query.get("model")):
        return _ASK.get(request.path)
    return None


def single_route(request: Request) -> Route | None:
    """The same in single-model mode, where all of llama-server's routes are the model's; None for the few of ours."""
    path = request.path
    if request.public or path.startswith((PAGE_PREFIX, "/logs/")) or path in ("", "/logs"):
        return None
    if known := model_route(request):
        return known
    return Route(name="other", loads=request.method == "POST")


def dialect_of(path: str) -> Dialect:
    """How errors look on a path, whatever the method."""
    route = _POST.get(path)
    return route.dialect if route else Dialect.OPENAI
