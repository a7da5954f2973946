"""The paths of Ollama's API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from appliance.traffic.request import Request

if TYPE_CHECKING:
    from appliance.http.route_facts import DescribedRoute

PATHS = frozenset(
    f"/api/{name}"
    for name in (
        "tags", "show", "ps", "chat", "generate", "embed", "embeddings", "pull", "push", "delete", "copy", "create",
        "status", "me", "signout", "experimental/web_search", "experimental/web_fetch",
        "experimental/model-recommendations",
    )
)  # fmt: skip
BLOBS, USER_KEYS, VERSION = "/api/blobs/", "/api/user/keys/", "/api/version"
CHAT, GENERATE = "/api/chat", "/api/generate"


def is_ollamas(request: Request) -> bool:
    """True if a request is of Ollama's API alone; `/` and `VERSION` are others' as well.

    Clients of Ollama upload below `BLOBS`; boxes of a pool read there, with GET and HEAD.
    """
    if request.path.startswith(BLOBS):
        return request.method not in ("GET", "HEAD")
    return request.path in PATHS or request.path.startswith(USER_KEYS)


def is_answered(request: Request) -> bool:
    """True if a request may be answered without a model.

    Ollama's clients ask for ``/`` to check that the server runs; browsers ask for HTML there.
    """
    if request.method not in ("GET", "HEAD") or request.path not in ("/", VERSION):
        return is_ollamas(request)
    return request.path == VERSION or "text/html" not in (request.header(b"accept") or "")


def described_routes() -> Sequence[DescribedRoute]:
    """Its routes for documents and OpenAPI; the bodies are read member by member, as Ollama reads them."""
    from appliance.features.ollama.core.answering import ChatLine, PromptLine
    from appliance.http.route_facts import AS_MODELS, DescribedRoute, RouteFacts

    says, lines = "As Ollama's API has it.", {CHAT: ChatLine, GENERATE: PromptLine}
    listed = ("/api/tags", "/api/ps", "/api/status", VERSION, "/api/experimental/model-recommendations")
    posted = ("/api/show", "/api/embed", "/api/embeddings", "/api/pull", "/api/copy", "/api/create", *lines)
    return [
        *(DescribedRoute("GET", path, says=says) for path in listed),
        *(DescribedRoute("POST", path, RouteFacts(most=AS_MODELS, gives=lines.get(path)), says) for path in posted),
        DescribedRoute("DELETE", "/api/delete", RouteFacts(most=AS_MODELS), says),
    ]
