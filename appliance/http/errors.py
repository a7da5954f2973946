"""The one table from error class to HTTP status, and the bodies that tell it."""

from __future__ import annotations

import math

import msgspec

from appliance.core.bodies.sse import ANTHROPIC_TYPES, Dialect, ErrorInfo
from appliance.core.headers import Headers
from appliance.errors import (
    ApplianceError,
    BadRequest,
    BodyTooLarge,
    BodyTooSlow,
    BoxFailed,
    Busy,
    CallerError,
    Conflict,
    DownloadNeeded,
    Forbidden,
    ModelError,
    ModelLoading,
    ModelNotFound,
    ModelUnloaded,
    NotFound,
    NotReady,
    PeerFailed,
    PluginFailed,
    RouteNotFound,
    ShuttingDown,
    SlotFilesClosed,
    TargetFailed,
    TooManyRequests,
    Unauthorized,
    UnsupportedCoding,
    UpstreamFailed,
    WillNotFit,
    WorkerFailed,
)

INVALID = "invalid_request_error"
TABLE: dict[type[ApplianceError], tuple[int, str]] = {
    ApplianceError: (500, "server_error"),
    CallerError: (400, INVALID),
    Unauthorized: (401, "authentication_error"),
    Forbidden: (403, "permission_error"),
    ModelNotFound: (404, "not_found_error"),
    DownloadNeeded: (409, INVALID),
    RouteNotFound: (404, "not_found_error"),
    NotFound: (404, "not_found_error"),
    BodyTooSlow: (408, INVALID),
    Conflict: (409, INVALID),
    NotReady: (409, INVALID),
    BodyTooLarge: (413, INVALID),
    UnsupportedCoding: (415, INVALID),
    TooManyRequests: (429, "rate_limit_error"),
    ModelError: (500, "server_error"),
    SlotFilesClosed: (501, "not_supported_error"),
    UpstreamFailed: (502, "server_error"),
    PeerFailed: (502, "server_error"),
    BoxFailed: (502, "server_error"),
    TargetFailed: (502, "server_error"),
    PluginFailed: (502, "server_error"),
    WillNotFit: (507, "server_error"),
    Busy: (503, "unavailable_error"),
    WorkerFailed: (503, "unavailable_error"),
    ModelLoading: (503, "unavailable_error"),
    ModelUnloaded: (503, "unavailable_error"),
    ShuttingDown: (503, "unavailable_error"),
}
"""Status and ``type`` of each class, in llama-server's words; a class that is missing is answered as its parent."""

JSON_TYPE = (b"Content-Type", b"application/json; charset=utf-8")


MAX_MESSAGE = 1 << 16
"""Characters of an error's message, which may hold the last lines of a log or all mistakes of a configuration."""


def describe(error: ApplianceError, dialect: Dialect = Dialect.OPENAI) -> ErrorInfo:
    """The error as the caller sees it, in a body or in a stream."""
    status, kind = next(TABLE[cls] for cls in type(error).__mro__ if cls in TABLE)
    if dialect is Dialect.ANTHROPIC:
        kind = ANTHROPIC_TYPES.get(status, "api_error")
    param = error.param if isinstance(error, BadRequest) else None
    message = str(error)
    if len(message) > MAX_MESSAGE:
        message = f"{message[:MAX_MESSAGE]}..."
    return ErrorInfo(message=message, type=kind, code=status, param=param, reason=error.reason)


def describe_bug(bug: str, dialect: Dialect = Dialect.OPENAI) -> ErrorInfo:
    """Return the answer to an error that nobody foresaw: it carries an id that the log has as well."""
    kind = "api_error" if dialect is Dialect.ANTHROPIC else "server_error"
    return ErrorInfo(message=f"internal error {bug}; the log says more", type=kind, code=500, reason="internal_error")


def disabled(option: str) -> ErrorInfo:
    """Return the answer of a route whose feature is switched off."""
    return ErrorInfo(
        message=f"this feature is disabled; start the server with {option} to enable it",
        type="feature_disabled",
        code=403,
        reason="feature_disabled",
    )


def body(info: ErrorInfo, dialect: Dialect = Dialect.OPENAI) -> bytes:
    """The JSON body of an error answer."""
    if dialect is Dialect.ANTHROPIC:
        details = {"error_code": info.reason}  # where its clients look for it
        return msgspec.json.encode({"type": "error", "error": {**msgspec.structs.asdict(info), "details": details}})
    return msgspec.json.encode({"error": info})


def headers(error: ApplianceError | None, *, close: bool) -> Headers:
    """Headers of an error answer. ``close``: the request's body was not read to its end."""
    found: list[tuple[bytes, bytes]] = [JSON_TYPE]
    if isinstance(error, Busy | TooManyRequests | ModelUnloaded):
        found.append((b"Retry-After", str(math.ceil(error.retry_after)).encode()))
    if isinstance(error, Unauthorized):
        found += [(b"WWW-Authenticate", b"Bearer"), (b"x-should-retry", b"false")]  # Anthropic's clients ask again
    if close:
        found.append((b"Connection", b"close"))
    return found
