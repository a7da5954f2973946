"""Which requests belong to a model's process, and how. Source: llama-server README, b11434."""

from __future__ import annotations

from typing import Literal
from urllib.parse import quote, unquote

from msgspec import Struct, structs

from appliance.core.bodies.sse import Dialect
from appliance.traffic.request import CONVERSATIONS, PAGE_PREFIX, Request

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
_PROMPTED = ("/completion", "/completions", "/v1/completions", "/chat/completions", "/v1/chat/completions")
"""Their requests may have ``id_slot``. llama-server (b11434) drops it from those of Anthropic's API."""
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
_MEDIA = (
    "/v1/audio/translations",
    "/v1/audio/speech",
    "/v1/audio/voices",
    "/v1/images/generations",
    "/v1/images/edits",
    "/sdapi/v1/txt2img",
    "/sdapi/v1/img2img",
)
"""Routes of other servers that a configuration may start; llama-server has none of them."""
_QUIET = (
    "/v1/chat/completions/control",
    "/tokenize",
    "/detokenize",
    "/apply-template",
    "/props",
    "/lora-adapters",
)
"""Questions that cost no tokens, and that llama-swap does not write down either."""
NAMELESS = frozenset(
    ("/completion", "/infill", "/tokenize", "/detokenize", "/apply-template", "/embedding", "/rerank", "/reranking")
)
"""llama.cpp's own: their clients know of one model, and name none."""
_VERSIONLESS = (
    "/chat/completions",
    "/responses",
    "/completions",
    "/messages",
    "/messages/count_tokens",
    "/embeddings",
    "/rerank",
    "/reranking",
)
"""Asked for below ``/v``, and passed on without it: for servers whose base URL has its version in it."""
_MODEL_LISTS = ("/v1/models", "/models")
_OPEN_LISTS = (*_MODEL_LISTS, "/health", "/v1/health")
_LISTS_OF_WINDOWS = (
    *_OPEN_LISTS, "/", "/api/tags", "/api/ps", "/api/version", "/api/v0/models", "/api/v1/models"
)  # fmt: skip
UNLOAD = "/unload"
OTHER = "other"
"""In single-model mode, whatever this program knows nothing of."""
MCP, TOOLS, CORS_PROXY = "/mcp", "/tools", "/cors-proxy"
RELOAD = "/api/config/reload"
UPSTREAM = "/upstream/"
STREAM = "/v1/stream"
LOOKUP = "/v1/streams/lookup"
SOCKET = "/v1/stream/ws"
COMFY = "/comfyui/"
COMFY_MODEL = "comfyui_auto"
_ASK_MODEL = ("/props", "/slots", "/metrics")
"""The child's with ``?model=``, the program's own without."""


class Route(Struct, frozen=True, kw_only=True):
    """The treatment of a request for a model's process. ``name`` is its name in metrics."""

    name: str
    loads: bool = True
    """False: a question about a running model, which never loads one."""
    streams: bool = False
    """``stream: true`` asks for server-sent events here."""
    dialect: Dialect = Dialect.OPENAI
    strip: str = ""
    """The prefix that the path loses on its way to the model's server."""
    loading_state: bool = False
    """``sendLoadingState`` applies: an OpenAI chat."""
    metered: bool = True
    """It is written into the activity log."""
    slot: Literal["named", "chosen", ""] = ""
    """Its requests take a slot of their engine: they may name it, or the engine chooses."""


_OWN_PATH = {
    **{path: Route(name=path, streams=True, slot="named" if path in _PROMPTED else "") for path in _GENERATE},
    **{path: Route(name=path, metered=path not in _QUIET) for path in (*_ANSWER, *_MEDIA)},
    **{
        path: Route(name=path, streams=True, dialect=Dialect.RESPONSES, slot="named")
        for path in ("/responses", "/v1/responses")
    },
    "/v1/chat/completions": Route(name="/v1/chat/completions", streams=True, loading_state=True, slot="named"),
    "/v1/messages": Route(name="/v1/messages", streams=True, dialect=Dialect.ANTHROPIC, slot="chosen"),
    "/v1/messages/count_tokens": Route(name="/v1/messages/count_tokens", dialect=Dialect.ANTHROPIC),
    "/audioapi/v1/tasks/run": Route(name="/audioapi/v1/tasks/run", strip="/audioapi"),
}
_POST = _OWN_PATH | {
    f"/v{path}": structs.replace(_OWN_PATH[f"/v1{path}"], name=f"/v{path}", strip="/v", loading_state=False)
    for path in _VERSIONLESS
}
_INFERENCE = frozenset(_OWN_PATH) - {"/props", "/lora-adapters", *_MEDIA, "/audioapi/v1/tasks/run"}
_OF_WINDOWS = frozenset(_POST) - {"/props", "/lora-adapters"} | {
    "/api/chat",
    "/api/generate",
    "/api/embed",
    "/api/embeddings",
    "/api/show",
    "/api/v0/chat/completions",
    "/api/v0/completions",
    "/api/v0/embeddings",
    "/api/v1/chat",
}
POSTED = frozenset(_OWN_PATH)
"""Paths of a model's process that are asked with POST and a body."""
_SLOT = Route(name="/slots/:id", metered=False)
_LISTS = {path: Route(name=path, metered=False) for path in ("/v1/audio/voices", "/sdapi/v1/loras")}
"""Asked for with GET and ``?model=``; they start the model, as in llama-swap."""
_ASK = {path: Route(name=path, loads=False, metered=False) for path in (*_ASK_MODEL, "/lora-adapters")}


def model_route(request: Request) -> Route | None:
    """The route of a request that belongs to a model's process, None for the program's own."""
    if request.method == "POST":
        if request.path.startswith("/slots/"):
            return _SLOT
        return _POST.get(request.path)
    if request.method in ("GET", "HEAD") and request.path in _LISTS:
        return _LISTS[request.path]
    if request.method in ("GET", "HEAD") and (request.path not in _ASK_MODEL or request.query.get("model")):
        return _ASK.get(request.path)
    return None


def single_route(request: Request) -> Route | None:
    """The same in single-model mode, where all of llama-server's routes are the model's; None for the few of ours."""
    path = request.path
    if (
        request.public
        or path in ("", "/logs", STREAM, LOOKUP)
        or path.startswith((PAGE_PREFIX, CONVERSATIONS, "/logs/", f"{STREAM}/"))
    ):
        return None
    known = model_route(request)
    return known or Route(name=OTHER, loads=request.method == "POST", metered=False)


def reaches_slot_files(method: str, target: str) -> bool:
    """True if a model's process may take the request for one that saves, restores or erases a slot."""
    return method == "POST" and "/slots/" in unquote(target.partition("?")[0])


def own_path(path: str) -> Route:
    """The route of a path of a model's process."""
    return _OWN_PATH[path]


def is_inference(request: Request) -> bool:
    """Return whether the request is for one of the routes of llama-server that use a model, or for the list of models.

    A preflight is what it asks about. Routes that change a model's settings or write files are not among them.
    """
    method = _meant(request)
    if method == "POST":
        return request.path in _INFERENCE
    return method in ("GET", "HEAD") and request.path in _OPEN_LISTS and not request.query


def is_for_windows(request: Request) -> bool:
    """Return whether the request asks a model, or for the lists of models: what an editor or a chat program needs.

    Every other route is closed to windows of desktop applications, and so is a new one. See `is_inference` for
    preflights.
    """
    method, path = _meant(request), request.path
    if method == "POST":
        return path in _OF_WINDOWS
    lists = path in _LISTS_OF_WINDOWS or path.startswith((f"{_MODEL_LISTS[0]}/", "/api/v0/models/"))
    return method in ("GET", "HEAD") and lists and not request.query


def _meant(request: Request) -> str:
    method = request.method
    return request.header(b"access-control-request-method") or method if method == "OPTIONS" else method


def changes_by_get(request: Request) -> bool:
    """Return whether a GET here loads or unloads a model, reads presets again, or does what its server makes of it.

    A path with a slash behind it is answered as well.
    """
    path = request.path.rstrip("/")
    reloads = path in _MODEL_LISTS and "reload" in request.query
    return reloads or path == UNLOAD or path in _LISTS or is_passed(request.path)


def is_passed(path: str) -> bool:
    """True if the rest of a (decoded) path goes to a model's server as it is."""
    return path.startswith((UPSTREAM, COMFY)) or path == COMFY[:-1]


def below(request: Request) -> str:
    """The raw path of such a request behind ``/upstream/``, or from the slash of ``/comfyui/`` on."""
    prefix = UPSTREAM if request.path.startswith(UPSTREAM) else COMFY[:-1]
    raw = request.target.partition("?")[0]
    return raw[len(prefix) :] if raw.startswith(prefix) else quote(request.path[len(prefix) :])


def passed_route(method: str, path: str) -> Route:
    """Return the model route that a request below ``/upstream/<model>`` is recorded as, if its rest is one."""
    known = _POST.get(path) if method == "POST" else None
    if known is None:
        return Route(name=UPSTREAM, metered=False)
    return structs.replace(known, strip="", loading_state=False)


def dialect_of(path: str) -> Dialect:
    """Return the format of errors on a path, for every method."""
    route = _POST.get(path)
    return route.dialect if route else Dialect.OPENAI
