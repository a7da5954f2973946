"""Traces of requests as a collector gets them, and their sender, where collectors are slow, away, or refuse."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import h11
import pytest
import trio
from ended_requests import ended
from fleet_harness import fake_engine
from http_harness import CHAT, Appliance, OpenServer, chat
from msgspec import structs
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from swap_harness import Configure
from test_fallback import DIES, serving
from tool_files import LOOKS, SAYS, Files, asked
from waiting import until
from whole_config import WHOLE

from appliance import __version__
from appliance.features.tools.box import OpenToolbox
from appliance.features.traces import otlp
from appliance.features.traces import tracer as sending
from appliance.features.traces.keys import TracingConfig
from appliance.features.traces.rules import TraceContext
from appliance.features.traces.tracer import BATCH, MOST, Tracer
from appliance.traffic.metrics import Metrics

AWAY = "http://127.0.0.1:9"


class Collector:
    """A real server that decodes what it is sent.

    ``status`` is its answer to every export; ``gate``, if it is closed, holds the answers back.
    """

    def __init__(self, port: int) -> None:
        self.endpoint = f"http://127.0.0.1:{port}"
        self.status = 200
        self.rejects = 0
        self.gate = trio.Event()
        self.gate.set()
        self.asked = 0
        self.heads: list[tuple[bytes, dict[str, str]]] = []
        self.taken: list[ExportTraceServiceRequest] = []

    @property
    def spans(self) -> list[Span]:
        """Every span that was taken, in order."""
        return [
            span for export in self.taken for of in export.resource_spans for s in of.scope_spans for span in s.spans
        ]

    @property
    def roots(self) -> list[Span]:
        return [span for span in self.spans if span.kind == Span.SPAN_KIND_SERVER]

    def parts(self, root: Span) -> list[Span]:
        """The spans below this one, as they began."""
        return sorted(
            (span for span in self.spans if span.parent_span_id == root.span_id),
            key=lambda span: span.start_time_unix_nano,
        )

    async def serve(self, stream: trio.SocketStream) -> None:
        self.asked += 1
        connection = h11.Connection(h11.SERVER)
        body = b""
        async with stream:
            while not isinstance(event := connection.next_event(), h11.EndOfMessage):
                if event is h11.NEED_DATA:
                    connection.receive_data(await stream.receive_some(1 << 16))
                elif isinstance(event, h11.Request):
                    named = {name.decode(): value.decode() for name, value in event.headers}
                    self.heads.append((event.target, named))
                elif isinstance(event, h11.Data):
                    body += bytes(event.data)
                else:
                    return
            await self.gate.wait()
            said = ExportTraceServiceResponse()
            if self.status == 200:
                self.taken.append(ExportTraceServiceRequest.FromString(body))
                said.partial_success.rejected_spans = self.rejects
            content = said.SerializeToString()
            head = h11.Response(status_code=self.status, headers=[("Content-Length", str(len(content)))])
            out = [connection.send(head), connection.send(h11.Data(data=content)), connection.send(h11.EndOfMessage())]
            await stream.send_all(b"".join(part or b"" for part in out))


def told(attributes: object) -> Mapping[str, Any]:
    """Attributes as a mapping."""
    pairs: list[KeyValue] = list(attributes)  # pyright: ignore[reportArgumentType, reportUnknownVariableType]
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value") or "") for pair in pairs}


@asynccontextmanager
async def open_collector() -> AsyncGenerator[Collector]:
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    collector = Collector(listener.socket.getsockname()[1])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, collector.serve, [listener])
        yield collector
        nursery.cancel_scope.cancel()


def tracer_for(endpoint: str, models: Sequence[str]) -> Tracer:
    tracer = Tracer(Metrics())
    tracer.adopt(TracingConfig(endpoint=endpoint))
    for model in models:
        tracer.on_request_ended(ended(model=model))
    return tracer


def counted(tracer: Tracer) -> tuple[int, int]:
    """Return how many were sent, and how many dropped."""
    return tracer.sent.value, tracer.dropped.value


def models(collector: Collector) -> list[str]:
    return [span.name.removeprefix("chat ") for span in collector.roots]


async def test_batches_go_out_in_order():
    names = [f"m{number}" for number in range(BATCH + 5)]
    async with open_collector() as collector:
        tracer = tracer_for(collector.endpoint, names)
        assert await tracer.send()
    assert models(collector) == names
    assert len(collector.taken) == 2
    assert counted(tracer) == (len(names), 0)


async def test_a_collector_that_comes_later_gets_what_waited_and_the_log_has_two_lines(
    caplog: pytest.LogCaptureFixture,
):
    caplog.set_level(logging.INFO, sending.__name__)
    async with open_collector() as collector:
        tracer = tracer_for(AWAY, ["one", "two"])
        for _ in range(3):
            assert not await tracer.send()
        [line] = caplog.messages
        assert line.startswith(f"the collector at {AWAY} does not take traces: ")
        assert "correct 'tracing' in the configuration" in line
        tracer.adopt(TracingConfig(endpoint=collector.endpoint))
        collector.status = 503
        assert not await tracer.send()
        collector.status = 200
        assert await tracer.send()
    assert models(collector) == ["one", "two"]
    assert counted(tracer) == (2, 0)
    assert caplog.messages[-1] == f"the collector at {collector.endpoint} takes traces again"
    assert len(caplog.messages) == 3


async def test_a_collector_that_is_away_costs_the_oldest():
    names = [f"m{number}" for number in range(MOST + 10)]
    tracer = tracer_for(AWAY, names)
    assert tracer.dropped.value == 10
    assert not await tracer.send()
    for number in range(7):
        tracer.on_request_ended(ended(model=f"new{number}"))
    async with open_collector() as collector:
        tracer.adopt(TracingConfig(endpoint=collector.endpoint))
        assert await tracer.send()
    assert models(collector) == [*names[17:], *(f"new{number}" for number in range(7))]
    assert counted(tracer) == (MOST, 17)


async def test_a_batch_that_is_refused_is_not_sent_again(caplog: pytest.LogCaptureFixture):
    async with open_collector() as collector:
        collector.status = 401
        tracer = tracer_for(collector.endpoint, ["one"])
        assert await tracer.send()
        assert await tracer.send()
        assert collector.asked == 1
        assert tracer.dropped.value == 1
        assert "it answered 401" in caplog.text
        collector.status, collector.rejects = 200, 1
        tracer.on_request_ended(ended())
        assert await tracer.send()
    assert counted(tracer) == (0, 2)


async def test_a_collector_that_does_not_answer_is_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(sending, "TIMEOUT", 0.2)
    async with open_collector() as collector:
        collector.gate = trio.Event()
        tracer = tracer_for(collector.endpoint, ["one"])
        assert not await tracer.send()
    assert "it did not answer within 0.2 s" in caplog.text
    await tracer.flush()
    assert counted(tracer) == (0, 1)


async def test_a_collector_that_does_not_take_them_now_is_asked_seldom(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sending, "PAUSE", 0.01)
    async with open_collector() as collector, trio.open_nursery() as nursery:
        collector.status = 503
        tracer = tracer_for(collector.endpoint, ["one"])
        nursery.start_soon(tracer.run)
        await until(lambda: collector.asked)
        for _ in range(50):
            tracer.on_request_ended(ended())
            await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    assert collector.asked == 1


def test_a_batch_that_is_sent_again_has_the_same_ids():
    """A collector that had taken it, and answered too late, sees no second request."""
    batch = [(TraceContext(bytes(range(16))), ended(), b"12345678")]
    assert otlp.encode("box", batch) == otlp.encode("box", batch)


async def test_switched_off_it_keeps_nothing():
    tracer = tracer_for(AWAY, ["one"])
    tracer.adopt(None)
    tracer.on_request_ended(ended())
    assert await tracer.send()
    await tracer.flush()
    assert tracer.dropped.value == 0


async def test_a_name_that_is_not_unicode_costs_nobody_a_trace():
    async with open_collector() as collector:
        tracer = tracer_for(collector.endpoint, ["\ud800", "alpha"])
        assert await tracer.send()
    assert models(collector) == ["?", "alpha"]


TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def names(collector: Collector, root: Span) -> list[str]:
    return [span.name for span in collector.parts(root)]


def send_to(server: Appliance, collector: Collector) -> None:
    """Let a server that has no configuration follow one with this collector."""
    for part in server.opened.parts:
        if part.adopt is not None:
            part.adopt(structs.replace(WHOLE(), tracing=TracingConfig(endpoint=collector.endpoint)))


def check_order(collector: Collector, root: Span) -> None:
    """Each part lies within the whole, and begins where the one before it is over."""
    last = root.start_time_unix_nano
    for span in collector.parts(root):
        assert last <= span.start_time_unix_nano < span.end_time_unix_nano <= root.end_time_unix_nano
        assert span.trace_id == root.trace_id
        last = span.end_time_unix_nano


async def test_a_load_a_prompt_and_an_answer_join_the_trace_of_the_client(
    open_server: OpenServer, configured: Configure
):
    slow = {"alpha": {"args": ("--load-delay", "0.5"), "aliases": ["al"]}}
    async with open_collector() as collector:
        tracing = {"endpoint": collector.endpoint, "headers": {"X-Team": "llama"}, "service": "box"}
        async with open_server(config=configured(slow, tracing=tracing)) as server:
            parent = [("traceparent", f"00-{TRACE}-{PARENT}-01"), ("tracestate", "vendor=1")]
            body = chat("al", stream=True, tokens=5, token_delay=0.02, slow_prompt=0.1)
            assert (await server.ask("POST", CHAT, body, parent)).status == 200
            assert (await server.ask("POST", CHAT, chat())).status == 200
            assert (await server.ask("POST", CHAT, chat("nothing"))).status == 404
            unsampled = [("traceparent", f"00-{TRACE}-{PARENT}-00")]
            assert (await server.ask("POST", CHAT, chat(), unsampled)).status == 200
    heads = {(target, head["content-type"], head["x-team"]) for target, head in collector.heads}
    assert heads == {(b"/v1/traces", "application/x-protobuf", "llama")}
    [resource] = {str(of.resource) for export in collector.taken for of in export.resource_spans}
    of = told(collector.taken[0].resource_spans[0].resource.attributes)
    assert of == {"service.name": "box", "service.version": __version__}, resource
    first, second, third = collector.roots
    assert (first.trace_id.hex(), first.parent_span_id.hex(), first.trace_state) == (TRACE, PARENT, "vendor=1")
    assert first.name == "chat alpha"
    attributes = told(first.attributes)
    assert attributes["gen_ai.usage.input_tokens"] > 0
    assert attributes.items() >= {
        ("gen_ai.operation.name", "chat"), ("gen_ai.response.model", "alpha"), ("gen_ai.request.model", "al"),
        ("gen_ai.usage.output_tokens", 5), ("server.address", "localhost"), ("http.route", CHAT),
        ("http.response.status_code", 200),
    }  # fmt: skip
    assert "error.type" not in attributes
    assert [name for name in names(collector, first) if name != "wait"] == ["load", "prompt", "answer"]
    check_order(collector, first)
    [load] = [span for span in collector.parts(first) if span.name == "load"]
    assert load.end_time_unix_nano - load.start_time_unix_nano > 0.4e9
    assert second.trace_id.hex() != TRACE
    assert not second.parent_span_id
    assert "load" not in names(collector, second)
    assert "answer" in names(collector, second)
    assert told(third.attributes)["error.type"] == "404"
    assert names(collector, third) == []
    assert third.status.code == Status.STATUS_CODE_UNSET


async def test_a_fallback_lies_between_two_answers(open_server: OpenServer):
    async with (
        open_collector() as collector,
        serving(open_server, fake_engine("first:GPU", *DIES), fake_engine("second:CPU")) as server,
    ):
        send_to(server, collector)
        body = chat(stream=True, token_delay=0.02) | {"max_tokens": 8}
        assert (await server.ask("POST", CHAT, body)).status == 200
    [root] = collector.roots
    found = [name for name in names(collector, root) if name != "wait"]
    assert found == ["load", "prompt", "answer", "fallback", "load", "answer"]
    check_order(collector, root)
    [fallback] = [span for span in collector.parts(root) if span.name == "fallback"]
    note = "continued; from=first:GPU; on=second:CPU"
    assert told(fallback.attributes) == {"llama_appliance.fallback": note}


async def test_tools_lie_between_turns(open_server: OpenServer):
    async with open_collector() as collector, open_server(tools=OpenToolbox([Files()])) as server:
        send_to(server, collector)
        assert (await server.ask("POST", CHAT, asked(LOOKS, SAYS))).status == 200
    [root] = [span for span in collector.roots if "execute_tool read_file" in names(collector, span)]
    found = [name for name in names(collector, root) if name != "wait"]
    assert (found[0], found[-1]) == ("load", "answer")
    check_order(collector, root)
    [tool] = [span for span in collector.parts(root) if span.name.startswith("execute_tool")]
    assert told(tool.attributes) == {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "read_file"}


async def test_a_broken_answer_is_an_error(open_server: OpenServer):
    async with open_collector() as collector, open_server() as server:
        send_to(server, collector)
        await server.ask("POST", CHAT, chat(stream=True, close_after_tokens=2))
    [root] = collector.roots
    assert root.status.code == Status.STATUS_CODE_ERROR
    assert told(root.attributes)["error.type"] == "answer_broken"


async def test_a_reload_switches_traces_on_and_off(open_server: OpenServer, configured: Configure):
    async with open_collector() as collector, open_server(config=configured({"alpha": {}})) as server:
        assert (await server.ask("POST", CHAT, chat())).status == 200
        configured({"alpha": {}}, tracing={"endpoint": collector.endpoint})
        assert (await server.ask("POST", "/api/config/reload")).status == 200
        assert (await server.ask("POST", CHAT, chat())).status == 200
        await server.rows()
        await until(lambda: collector.roots)
        configured({"alpha": {}})
        assert (await server.ask("POST", "/api/config/reload")).status == 200
        assert (await server.ask("POST", CHAT, chat())).status == 200
    assert len(collector.roots) == 1


async def test_requests_and_the_end_do_not_wait_for_a_collector(open_server: OpenServer, configured: Configure):
    async with open_collector() as collector:
        collector.gate = trio.Event()
        config = configured({"alpha": {}}, tracing={"endpoint": collector.endpoint})
        async with open_server(config=config) as server:
            for _ in range(3):
                assert (await server.ask("POST", CHAT, chat())).status == 200
                await server.rows()
            began = trio.current_time()
        assert trio.current_time() - began < 15
        own = server.traffic.metrics.own
        counters = {counter.name: counter.value for counter in own if counter.name.startswith("traces")}
        assert counters == {"traces_sent_total": 0, "traces_dropped_total": 3}
        assert not collector.taken
