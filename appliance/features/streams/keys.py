"""The keys of the configuration that are this feature's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from msgspec import Meta, structs

from appliance.core.config.additions import FeatureKeys, Section, doc


class StreamsConfig(Section, frozen=True):
    """Generations that go on, and can be read again, when their client's connection is gone."""

    max_bytes: Annotated[int, doc("Addition: bytes kept of one stream, the newest"), Meta(ge=1)] = 4 << 20
    keep: Annotated[int, doc("Addition: a stream that has ended is kept for so long"), Meta(ge=0)] = 300
    max_total: Annotated[int, doc("Addition: bytes kept of all streams; the oldest go first"), Meta(ge=1)] = 256 << 20
    path: Annotated[str, doc("Addition: folder where streams survive a restart; empty: in memory alone")] = ""


class StreamKeys(FeatureKeys, frozen=True):
    streams: Annotated[StreamsConfig, doc("Addition: streams that survive a dropped connection")] = StreamsConfig()

    over_http = tuple(("streams", name) for name in ("keep", "max_bytes", "max_total"))

    def for_trial(self, copied: Callable[[str, str], str]) -> StreamKeys:
        return StreamKeys(streams=structs.replace(self.streams, path=""))
