"""A finished request as the spans of a trace, and the W3C trace context that joins it to its client's trace.

Names and attributes are those of OpenTelemetry's semantic conventions for HTTP servers and for generative AI. No span
holds a prompt, an answer, an argument of a tool or an address of a client.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import count

from msgspec import Struct

from appliance.core.headers import Headers, field, fields
from appliance.core.records.ended import EndedRequest, TimePart, parts_of

HOST = b"host"
PROVIDER = "llama_appliance"
ERROR, SERVER_ERROR = 400, 500
MAX_STATE = 512  # characters of a tracestate that have to be passed on; a longer one is dropped
_CHATS = ("/chat/completions", "/messages", "/responses", "/api/chat")
_COMPLETIONS = ("/completion", "/completions", "/infill", "/api/generate")
_EMBEDDINGS = ("/embedding", "/embeddings", "/api/embed")
_PARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")
_STATE = re.compile(rb"[ -~]+")

Attribute = str | int


class TraceContext(Struct, frozen=True):
    """The trace that a request belongs to. ``span_id`` is the client's span; empty: the trace begins here."""

    trace_id: bytes
    span_id: bytes = b""
    sampled: bool = True
    state: str = ""


OwnTrace = tuple[TraceContext, EndedRequest, bytes]  # a request with its trace, and the id of its own span there


class Span(Struct, frozen=True, kw_only=True):
    """Times are Unix nanoseconds. The root has no parent among the request's spans, and is the first of them."""

    name: str
    span_id: bytes
    parent_id: bytes
    began: int
    ended: int
    attributes: Mapping[str, Attribute]
    root: bool = False
    error: str | None = None  # the reason, where the request failed by no fault of the client; it may be empty


def trace_context(headers: Headers, fresh: bytes, share: float) -> TraceContext | None:
    """Return the trace of a request with these headers: the client's, or one with the id ``fresh``. None: no trace.

    A client's trace is recorded if the client records it. ``share`` says how many of the others are, from 0 to 1.
    """
    parent = read_parent(headers)
    if parent is not None:
        return parent if parent.sampled else None
    return TraceContext(fresh) if int.from_bytes(fresh[8:], "big") < share * (1 << 64) else None


def read_parent(headers: Headers) -> TraceContext | None:
    """Read ``traceparent`` and ``tracestate``; None for a missing, repeated or invalid ``traceparent``.

    A version from the future may have more behind what is known of it (W3C Trace Context, 3.2.4).
    """
    given = fields(headers, b"traceparent")
    found = _PARENT.fullmatch(given[0].strip(b" \t")) if len(given) == 1 else None
    if found is None:
        return None
    version, trace, span, flags, more = found.groups()
    if version == b"ff" or (version == b"00" and more) or not trace.strip(b"0") or not span.strip(b"0"):
        return None
    state = b",".join(value.strip(b" \t") for value in fields(headers, b"tracestate"))
    kept = state.decode("ascii") if len(state) <= MAX_STATE and _STATE.fullmatch(state) else ""
    return TraceContext(bytes.fromhex(trace.decode()), bytes.fromhex(span.decode()), bool(int(flags, 16) & 1), kept)


def spans_of(request: EndedRequest, context: TraceContext, root_id: bytes) -> list[Span]:
    """Return the request's span, and behind it one for each part of its time, as they began.

    All lie within the first one, and only uses of tools overlap. Their ids count on from ``root_id``, so that a request
    that is sent twice has the same ones.
    """
    operation, ids = operation_of(request.route), count(int.from_bytes(root_id, "big") + 1)
    failed = request.status >= SERVER_ERROR or request.fault is not None

    def at(moment: float) -> int:
        return round((request.epoch + min(max(moment, request.began), request.ended)) * 1e9)

    root = Span(
        name=f"{operation} {request.model}".rstrip(),
        span_id=root_id,
        parent_id=context.span_id,
        began=at(request.began),
        ended=at(request.ended),
        attributes=_attributes(request, operation),
        root=True,
        error=(request.fault or "").partition("\n")[0] if failed else None,
    )
    parts = [
        Span(
            name=f"execute_tool {part.label}" if part.name == "tool" else part.name,
            span_id=(next(ids) % (1 << 64)).to_bytes(8, "big"),
            parent_id=root_id,
            began=at(part.began),
            ended=at(max(part.began, part.ended)),
            attributes=_part_attributes(part),
        )
        for part in parts_of(request)
    ]
    return [root, *sorted(parts, key=lambda span: span.began)]


def operation_of(route: str) -> str:
    """Return the word of the conventions for what a route does, and for others the last part of its path."""
    if route.endswith(_CHATS):
        return "chat"
    if route.endswith(_COMPLETIONS):
        return "text_completion"
    return "embeddings" if route.endswith(_EMBEDDINGS) else route.rstrip("/").rpartition("/")[2]


def _attributes(request: EndedRequest, operation: str) -> dict[str, Attribute]:
    told: dict[str, Attribute] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": request.requested,
        "http.route": request.route,
        "http.response.status_code": request.status,
    }
    if request.known:
        told["gen_ai.response.model"] = request.model
    if (host := _HOST.fullmatch((field(request.headers, HOST) or b"").decode("latin-1"))) is not None:
        told["server.address"] = host[1].strip("[]")
        if host[2]:
            told["server.port"] = int(host[2])
    if (usage := request.usage) is not None:
        counts = {
            "input_tokens": usage.prompt,
            "output_tokens": usage.tokens.output_tokens,
            "cache_read.input_tokens": usage.tokens.cache_tokens,
        }
        told |= {f"gen_ai.usage.{name}": number for name, number in counts.items() if number >= 0}
    if request.build:
        told[f"{PROVIDER}.build"] = request.build
    if request.fault is not None:
        told["error.type"] = "answer_broken"
    elif request.status >= ERROR:
        told["error.type"] = str(request.status)
    return told | {f"{PROVIDER}.{name}": value for name, value in request.metadata.items()}


def _part_attributes(part: TimePart) -> dict[str, Attribute]:
    if part.name == "tool":
        return {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": part.label}
    return {f"{PROVIDER}.fallback": part.label} if part.name == "fallback" else {}
