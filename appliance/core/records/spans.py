"""A finished request as the spans of a trace, and the W3C trace context that joins it to its client's trace.

Names and attributes are those of OpenTelemetry's semantic conventions for HTTP servers and for generative AI. No span
holds a prompt, an answer, an argument of a tool or an address of a client.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import count, islice
from typing import Literal

from msgspec import Struct

from appliance.core.records.accounting import Usage

LEAST = 0.005
"""Seconds. A shorter wait is left out: the loop takes as long between two of its tasks."""
PROVIDER = "llama_appliance"
ERROR, SERVER_ERROR = 400, 500
MAX_STATE = 512
"""Characters of a tracestate that have to be passed on; a longer one is dropped."""
MOST_PARTS = 40
_NO_NAME = re.compile(r"[^\w. -]")
_CHATS = ("/chat/completions", "/messages", "/responses", "/api/chat")
_COMPLETIONS = ("/completion", "/completions", "/infill", "/api/generate")
_EMBEDDINGS = ("/embedding", "/embeddings", "/api/embed")
_PARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")
_STATE = re.compile(rb"[ -~]+")

Attribute = str | int
StepName = Literal["wait", "tool", "fallback"]


class TraceContext(Struct, frozen=True):
    """The trace that a request belongs to. ``span_id`` is the client's span; empty: the trace begins here."""

    trace_id: bytes
    span_id: bytes = b""
    sampled: bool = True
    state: str = ""


class Step(Struct):
    """One step on a request's way, in seconds of any clock. A step without an end has ended with its request."""

    name: StepName
    began: float
    ended: float | None = None
    label: str = ""
    """The tool's name, or what became of the answer."""
    load: tuple[float, float] | None = None
    """The model's load within a wait: how many seconds before the end of the wait it began, and was over."""


class TracedRequest(Struct, frozen=True, kw_only=True):
    """The facts of a finished request. Its times are of the clock of its steps; ``epoch`` is Unix time at 0 of it."""

    route: str
    requested: str
    """The model's name as the client wrote it."""
    model: str
    known: bool
    """There is such a model; nobody was asked otherwise."""
    streaming: bool
    host: str
    """The Host header."""
    status: int
    fault: str | None
    """Why the answer broke off."""
    usage: Usage | None
    metadata: Mapping[str, str]
    steps: Sequence[Step]
    began: float
    first_token: float | None
    """The time of the first token, where the answer is a stream."""
    build: str
    """The id of the engine that had it; empty if that is not known."""
    ended: float
    epoch: float


OwnTrace = tuple[TraceContext, TracedRequest, bytes]
"""A request with its trace, and the id of its own span there."""


class Span(Struct, frozen=True, kw_only=True):
    """Times are Unix nanoseconds. The root has no parent among the request's spans, and is the first of them."""

    name: str
    span_id: bytes
    parent_id: bytes
    began: int
    ended: int
    attributes: Mapping[str, Attribute]
    root: bool = False
    error: str | None = None
    """The reason, where the request failed by no fault of the client; it may be empty."""


def trace_context(headers: Sequence[tuple[bytes, bytes]], fresh: bytes, share: float) -> TraceContext | None:
    """Return the trace of a request with these headers: the client's, or one with the id ``fresh``. None: no trace.

    A client's trace is recorded if the client records it. ``share`` says how many of the others are, from 0 to 1.
    """
    parent = read_parent(headers)
    if parent is not None:
        return parent if parent.sampled else None
    return TraceContext(fresh) if int.from_bytes(fresh[8:], "big") < share * (1 << 64) else None


def read_parent(headers: Sequence[tuple[bytes, bytes]]) -> TraceContext | None:
    """Read ``traceparent`` and ``tracestate``; None for a missing, repeated or invalid ``traceparent``.

    A version from the future may have more behind what is known of it (W3C Trace Context, 3.2.4).
    """
    given = [value for name, value in headers if name.lower() == b"traceparent"]
    found = _PARENT.fullmatch(given[0].strip(b" \t")) if len(given) == 1 else None
    if found is None:
        return None
    version, trace, span, flags, more = found.groups()
    if version == b"ff" or (version == b"00" and more) or not trace.strip(b"0") or not span.strip(b"0"):
        return None
    state = b",".join(value.strip(b" \t") for name, value in headers if name.lower() == b"tracestate")
    kept = state.decode("ascii") if len(state) <= MAX_STATE and _STATE.fullmatch(state) else ""
    return TraceContext(bytes.fromhex(trace.decode()), bytes.fromhex(span.decode()), bool(int(flags, 16) & 1), kept)


def spans_of(request: TracedRequest, context: TraceContext, root_id: bytes) -> list[Span]:
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
            name=name,
            span_id=(next(ids) % (1 << 64)).to_bytes(8, "big"),
            parent_id=root_id,
            began=at(began),
            ended=at(max(began, ended)),
            attributes=attributes,
        )
        for name, began, ended, attributes in _parts(request)
    ]
    return [root, *sorted(parts, key=lambda span: span.began)]


def parts_text(request: TracedRequest) -> str:
    """Return the parts in words for a row of the activity log: ``wait 1200, load 3400, prompt 80, answer 2000``, in ms.

    Nothing if one engine had the request all the time, because then the row says all of that. A tool's name is behind
    the word. Of more than `MOST_PARTS` parts it has the first.
    """
    parts = list(islice(_parts(request), MOST_PARTS))
    if {name for name, *_ in parts} <= {"prompt", "answer"}:
        return ""
    return ", ".join(
        f"{_NO_NAME.sub('_', name.replace('execute_tool', 'tool'))} {round(1000 * max(ended - began, 0))}"
        for name, began, ended, _ in parts
    )


def operation_of(route: str) -> str:
    """Return the word of the conventions for what a route does, and for others the last part of its path."""
    if route.endswith(_CHATS):
        return "chat"
    if route.endswith(_COMPLETIONS):
        return "text_completion"
    return "embeddings" if route.endswith(_EMBEDDINGS) else route.rstrip("/").rpartition("/")[2]


def _attributes(request: TracedRequest, operation: str) -> dict[str, Attribute]:
    told: dict[str, Attribute] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": request.requested,
        "http.route": request.route,
        "http.response.status_code": request.status,
    }
    if request.known:
        told["gen_ai.response.model"] = request.model
    if (host := _HOST.fullmatch(request.host)) is not None:
        told["server.address"] = host[1].strip("[]")
        if host[2]:
            told["server.port"] = int(host[2])
    if (usage := request.usage) is not None:
        counts = (
            ("input_tokens", usage.prompt),
            ("output_tokens", usage.tokens.output_tokens),
            ("cache_read.input_tokens", usage.tokens.cache_tokens),
        )
        told |= {f"gen_ai.usage.{name}": number for name, number in counts if number >= 0}
    if request.build:
        told[f"{PROVIDER}.build"] = request.build
    if request.fault is not None:
        told["error.type"] = "answer_broken"
    elif request.status >= ERROR:
        told["error.type"] = str(request.status)
    return told | {f"{PROVIDER}.{name}": value for name, value in request.metadata.items()}


_Part = tuple[str, float, float, dict[str, Attribute]]


def _parts(request: TracedRequest) -> Iterator[_Part]:
    """Name, beginning, end and attributes of each part.

    Between the end of a wait and the next step an engine has the request. Between a tool or a fallback and the next
    wait only the program works, for less than a millisecond.
    """
    steps = sorted(request.steps, key=lambda step: step.began)
    waits_first = bool(steps) and steps[0].name == "wait"
    asked = request.began if request.known and not waits_first else None
    for step in steps:
        ended = request.ended if step.ended is None else step.ended
        if asked is not None:
            yield from _engine(request, asked, step.began, last=False)
        asked = ended if step.name == "wait" and step.ended is not None else None
        match step.name:
            case "wait":
                yield from _wait(step, ended)
            case "tool":
                named: dict[str, Attribute] = {
                    "gen_ai.operation.name": "execute_tool",
                    "gen_ai.tool.name": step.label,
                }
                yield f"execute_tool {step.label}", step.began, ended, named
            case "fallback":
                yield "fallback", step.began, ended, {f"{PROVIDER}.fallback": step.label}
    if asked is not None:
        yield from _engine(request, asked, request.ended, last=True)


def _wait(step: Step, ended: float) -> Iterator[_Part]:
    """A load is a part of its own; the request may have waited before it for room, and after it for its turn."""
    began, over = (ended - ago for ago in step.load) if step.load is not None else (ended, ended)
    for name, first, last in (("wait", step.began, began), ("load", began, over), ("wait", over, ended)):
        if last - first >= LEAST:
            yield name, first, last, {}


def _engine(request: TracedRequest, began: float, ended: float, *, last: bool) -> Iterator[_Part]:
    """The first token of a stream divides prompt and answer. Of a whole answer the engine tells how long it took."""
    first = request.first_token if request.streaming else None
    if first is None and last and (usage := request.usage) is not None and usage.answer_ms >= 0:
        first = ended - usage.answer_ms / 1000
    divide = began if first is None else min(max(first, began), ended)
    if divide > began:
        yield "prompt", began, divide, {}
    if ended > divide:
        yield "answer", divide, ended, {}
