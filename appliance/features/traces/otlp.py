"""Traces in the words of OTLP, as protobuf. Imported when the first batch is sent: it brings 3 MB."""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1 import trace_pb2 as otlp

from appliance import __version__
from appliance.features.traces.rules import Attribute, OwnTrace, Span, TraceContext, spans_of

SCOPE = "llama-appliance"
_SAMPLED = 1


def encode(service: str, requests: Sequence[OwnTrace]) -> bytes:
    """Return the body of one export; each request becomes its spans here."""
    spans = [
        _span(span, context) for context, request, root_id in requests for span in spans_of(request, context, root_id)
    ]
    scope = otlp.ScopeSpans(scope=InstrumentationScope(name=SCOPE, version=__version__), spans=spans)
    resource = Resource(attributes=[_attribute("service.name", service), _attribute("service.version", __version__)])
    export = ExportTraceServiceRequest(resource_spans=[otlp.ResourceSpans(resource=resource, scope_spans=[scope])])
    return export.SerializeToString()


def rejection(answer: bytes) -> tuple[int, str]:
    """Return how many spans a collector did not take, and why; 0 for an answer that says nothing of it."""
    try:
        said = ExportTraceServiceResponse.FromString(answer).partial_success
    except DecodeError:
        return 0, ""
    return said.rejected_spans, said.error_message


def _span(span: Span, context: TraceContext) -> otlp.Span:
    status = (
        otlp.Status(code=otlp.Status.STATUS_CODE_ERROR, message=_text(span.error)) if span.error is not None else None
    )
    return otlp.Span(
        trace_id=context.trace_id,
        span_id=span.span_id,
        parent_span_id=span.parent_id,
        trace_state=context.state,
        flags=_SAMPLED,
        name=_text(span.name),
        kind=otlp.Span.SPAN_KIND_SERVER if span.root else otlp.Span.SPAN_KIND_INTERNAL,
        start_time_unix_nano=span.began,
        end_time_unix_nano=span.ended,
        attributes=[_attribute(name, value) for name, value in span.attributes.items()],
        status=status,
    )


def _attribute(name: str, value: Attribute) -> KeyValue:
    held = AnyValue(string_value=_text(value)) if isinstance(value, str) else AnyValue(int_value=value)
    return KeyValue(key=_text(name), value=held)


def _text(value: str) -> str:
    """Protobuf refuses a surrogate without its pair, and one in a model's name would cost the whole batch."""
    return value.encode("utf-8", "replace").decode("utf-8")
