"""The paths of Ollama's API."""

from __future__ import annotations

from appliance.traffic.request import Request

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
