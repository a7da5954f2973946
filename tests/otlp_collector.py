"""A collector of traces: a real HTTP server that decodes what it is sent, and may misbehave."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import h11
import trio
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector:
    """``status`` is its answer to every export; ``gate``, if it is closed, holds the answers back."""

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
