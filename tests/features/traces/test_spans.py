"""Finished requests as spans, and the trace context of their clients."""

from __future__ import annotations

from itertools import pairwise

import pytest
from ended_requests import ended
from hypothesis import given
from hypothesis import strategies as st

from appliance.core.records.accounting import Usage
from appliance.core.records.activity import Tokens
from appliance.core.records.ended import Step, parts_text
from appliance.features.traces.rules import Span, TraceContext, operation_of, read_parent, spans_of, trace_context

TRACE, PARENT = b"0af7651916cd43dd8448eb211c80319c", b"b7ad6b7169203331"
FRESH = bytes(range(16))
ROOT = b"\xff" * 8
CONTEXT = TraceContext(FRESH)
MOMENTS = st.floats(0, 100)
HEX = st.text("0123456789abcdef", min_size=2, max_size=2)


def test_a_tool_and_a_fallback_say_which():
    steps = (Step("wait", 1.0, 1.0), Step("tool", 4.0, 5.0, "see"), Step("fallback", 6.0, 7.0, "continued"))
    _, *rest = spans_of(ended(steps=steps), CONTEXT, ROOT)
    assert [(span.name, span.attributes) for span in rest] == [
        ("answer", {}),
        ("execute_tool see", {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "see"}),
        ("fallback", {"llama_appliance.fallback": "continued"}),
    ]


def test_the_root_has_the_attributes_of_the_conventions():
    usage = Usage(tokens=Tokens(output_tokens=5, cache_tokens=3, input_tokens=7), prompt=10)
    [root, *_] = spans_of(ended(usage=usage, metadata={"selector": "fast"}), CONTEXT, ROOT)
    assert root.name == "chat alpha"
    assert root.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "llama_appliance",
        "gen_ai.request.model": "al",
        "gen_ai.response.model": "alpha",
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.usage.cache_read.input_tokens": 3,
        "http.route": "/v1/chat/completions",
        "http.response.status_code": 200,
        "server.address": "box",
        "server.port": 8080,
        "llama_appliance.selector": "fast",
    }
    assert root.error is None


@pytest.mark.parametrize(
    ("facts", "kind", "error"),
    [
        ({"status": 404}, "404", None),
        ({"status": 503}, "503", ""),
        ({"fault": "it died\nsecret words of its log"}, "answer_broken", "it died"),
    ],
)
def test_failures(facts: dict[str, object], kind: str, error: str | None):
    [root, *_] = spans_of(ended(**facts), CONTEXT, ROOT)
    assert (root.attributes["error.type"], root.error) == (kind, error)


@pytest.mark.parametrize("host", ["", "box:8080:1", "box:999999999999999999999", "a b", "böx", "[::1"])
def test_a_host_that_is_none_is_not_told(host: str):
    [root, *_] = spans_of(ended(headers=[(b"Host", host.encode("latin-1"))]), CONTEXT, ROOT)
    assert not {"server.address", "server.port"} & set(root.attributes)


@pytest.mark.parametrize(
    ("route", "operation"),
    [
        ("/v1/messages", "chat"),
        ("/completion", "text_completion"),
        ("/v1/embeddings", "embeddings"),
        ("/v1/messages/count_tokens", "count_tokens"),
    ],
)
def test_operations(route: str, operation: str):
    assert operation_of(route) == operation


@st.composite
def steps(draw: st.DrawFn) -> tuple[Step, ...]:
    """Steps as requests have them: none begins before the one in front of it."""
    made: list[Step] = []
    for began in sorted(draw(st.lists(MOMENTS, max_size=6))):
        ended = draw(st.none() | st.floats(0, 50).map(lambda more, began=began: began + more))
        load = draw(st.none() | st.tuples(st.floats(0, 60), st.floats(0, 60)).map(lambda two: (max(two), min(two))))
        name = draw(st.sampled_from(("wait", "tool", "fallback")))
        made.append(Step(name, began, ended, label="x", load=load if name == "wait" else None))
    return tuple(made)


@given(MOMENTS, MOMENTS, st.none() | MOMENTS, steps(), st.booleans(), st.booleans(), st.floats(0, 2e9))
def test_parts_lie_within_the_request_in_order(
    one: float,
    other: float,
    first_token: float | None,
    found: tuple[Step, ...],
    known: bool,
    streaming: bool,
    epoch: float,
):
    request = ended(
        began=min(one, other),
        ended=max(one, other),
        first_token=first_token,
        steps=found,
        known=known,
        streaming=streaming,
        epoch=epoch,
    )
    root, *rest = spans_of(request, CONTEXT, ROOT)
    last = root.began
    for span in rest:
        assert root.began <= span.began <= span.ended <= root.ended
        assert span.began >= last
        assert span.parent_id == root.span_id
        last = span.began
    ids = [span.span_id for span in (root, *rest)]
    assert len(set(ids)) == len(ids)
    assert [span for span in (root, *rest) if span.root] == [root]


@given(st.data())
def test_the_parts_of_steps_that_follow_each_other_do_not_overlap(data: st.DataObject):
    moments = sorted(data.draw(st.lists(MOMENTS, min_size=4, max_size=10)))
    names = st.sampled_from(("wait", "tool", "fallback"))
    made = [
        Step(data.draw(names), began, ended, load=((ended - began) * 0.8, (ended - began) * 0.2))
        for began, ended in zip(moments[1:-1:2], moments[2:-1:2], strict=False)
    ]
    made = [step if step.name == "wait" else Step(step.name, step.began, step.ended) for step in made]
    request = ended(
        began=moments[0], ended=moments[-1], steps=tuple(made), first_token=data.draw(st.sampled_from(moments))
    )
    spans: list[Span] = spans_of(request, CONTEXT, ROOT)[1:]
    assert all(one.ended <= other.began + 1 for one, other in pairwise(spans))
    told = [part.rpartition(" ") for part in parts_text(request).split(", ") if part]
    names = [span.name.replace("execute_tool", "tool") for span in spans]
    assert [name for name, _, _ in told] == (names if {*names} - {"prompt", "answer"} else [])
    for (_, _, took), span in zip(told, spans, strict=False):
        assert int(took) == pytest.approx((span.ended - span.began) / 1e6, abs=1)


def headers(*values: bytes, state: bytes | None = None) -> list[tuple[bytes, bytes]]:
    given = [(b"TraceParent", value) for value in values]
    return given if state is None else [*given, (b"tracestate", state)]


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"00-%b-%b-1" % (TRACE, PARENT),
        b"00-%b-%b-01-" % (TRACE, PARENT),
        b"00-%b-%b-01-more" % (TRACE, PARENT),
        b"01-%b-%b-01more" % (TRACE, PARENT),
        b"ff-%b-%b-01" % (TRACE, PARENT),
        b"00-%b-%b-01" % (TRACE.upper(), PARENT),
        b"00-%b-%b-01" % (b"0" * 32, PARENT),
        b"00-%b-%b-01" % (TRACE, b"0" * 16),
        b"00-%b-%b-0x" % (TRACE, PARENT),
        b"00_%b_%b_01" % (TRACE, PARENT),
    ],
)
def test_what_is_not_a_traceparent_begins_a_trace(value: bytes):
    assert read_parent(headers(value)) is None
    assert trace_context(headers(value), FRESH, 1.0) == TraceContext(FRESH)


def test_a_repeated_traceparent_is_none():
    value = b"00-%b-%b-01" % (TRACE, PARENT)
    assert read_parent(headers(value, value)) is None


@given(HEX.filter(lambda text: text != "ff"), st.binary(min_size=16, max_size=16), st.binary(min_size=8, max_size=8))
def test_every_good_traceparent_is_joined(version: str, trace: bytes, span: bytes):
    for flags in range(256):
        value = f"{version}-{trace.hex()}-{span.hex()}-{flags:02x}".encode()
        found = read_parent(headers(value))
        if not any(trace) or not any(span):
            assert found is None
        else:
            assert found == TraceContext(trace, span, bool(flags & 1))


def test_a_version_of_the_future_may_have_more():
    found = read_parent(headers(b" 01-%b-%b-01-more " % (TRACE, PARENT), state=b"a=1"))
    assert found == TraceContext(bytes.fromhex(TRACE.decode()), bytes.fromhex(PARENT.decode()), True, "a=1")


@given(st.lists(st.tuples(st.sampled_from((b"traceparent", b"tracestate", b"other")), st.binary(max_size=80))))
def test_nothing_that_a_client_sends_breaks_it(given: list[tuple[bytes, bytes]]):
    context = trace_context(given, FRESH, 1.0)
    assert context is None or (len(context.trace_id), len(context.span_id)) in ((16, 0), (16, 8))


@given(st.binary(min_size=16, max_size=16), st.floats(0, 1))
def test_the_share_decides_for_traces_that_begin_here_alone(fresh: bytes, share: float):
    assert trace_context((), fresh, 1.0) is not None
    assert trace_context((), fresh, 0.0) is None
    if trace_context((), fresh, share) is not None:
        assert trace_context((), fresh, min(1.0, share * 1.1)) is not None
    parent = b"00-%b-%b-" % (TRACE, PARENT)
    assert trace_context(headers(parent + b"00"), fresh, 1.0) is None
    assert trace_context(headers(parent + b"01"), fresh, 0.0) is not None
