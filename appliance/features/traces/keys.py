"""The keys of the configuration that are this feature's."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Annotated

from msgspec import Meta

from appliance.core.config.additions import FeatureKeys, Section, doc
from appliance.core.config.scalars import why_no_base_url

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[ -~]*")


class TracingConfig(Section, frozen=True):
    """Finished requests, sent to a collector as OpenTelemetry traces."""

    endpoint: Annotated[
        str, doc("Addition: base URL of a collector that takes OTLP over HTTP; /v1/traces is put behind it")
    ] = "http://127.0.0.1:4318"
    headers: Annotated[dict[str, str], doc("Addition: headers that the collector wants, such as Authorization")] = {}
    service: Annotated[str, doc("Addition: service.name of the traces")] = "llama-appliance"
    sample: Annotated[
        float,
        doc("Addition: the share of requests that are traced, from 0 to 1; a client's traceparent decides for its own"),
        Meta(ge=0, le=1),
    ] = 1.0


class TraceKeys(FeatureKeys, frozen=True):
    tracing: Annotated[TracingConfig | None, doc("Addition: traces of requests by OTLP; absent: none")] = None

    secrets = (("tracing", "headers"),)

    def check(self, error: Callable[[str, str], None]) -> None:
        """The messages never repeat a header's value: it may be a key."""
        if (tracing := self.tracing) is None:
            return
        if why := why_no_base_url(tracing.endpoint):
            advice = "http://127.0.0.1:4318"
            error("tracing.endpoint", f"{why}; write the collector's address for OTLP over HTTP, as in {advice}")
        elif re.search(r"[@?#]", tracing.endpoint) or not tracing.endpoint.isascii():
            error(
                "tracing.endpoint",
                "may be a host, a port and a path, in ASCII; a key belongs into tracing.headers, as in Authorization",
            )
        if not tracing.service.strip():
            error("tracing.service", "is empty; name the service, or remove the key to use llama-appliance")
        for name, value in tracing.headers.items():
            if not _HEADER_NAME.fullmatch(name):
                error(f"tracing.headers.{name}", "is not a header's name; write it as in Authorization")
            elif not _HEADER_VALUE.fullmatch(value):
                error(f"tracing.headers.{name}", "has a character that no header can hold; remove it")

    def urls(self) -> Iterable[tuple[str, str]]:
        if self.tracing is not None:
            yield "the collector of traces (tracing.endpoint)", self.tracing.endpoint
