"""The counts of each model, which follow requests, the timeline and waits. Counting costs a microsecond."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

from msgspec import Struct, field

from appliance.core.records.ended import EndedRequest
from appliance.core.records.history import Happening
from appliance.core.scheduling.effects import Rule
from appliance.traffic.metrics import Metrics

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""Upper bounds in seconds: from a token of a tiny model to the load of a huge one."""


class Durations(Struct, eq=False):
    """A histogram of seconds. ``counts`` are per bucket, not cumulative; the last is for what exceeds `BUCKETS`."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    sum: float = 0.0

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.sum += seconds


class ModelCounts(Struct, eq=False):
    """Everything counted of one model since the program's start."""

    requests: Counter[tuple[str, int]] = field(default_factory=Counter[tuple[str, int]])
    seconds: Durations = field(default_factory=Durations)
    first_byte: Durations = field(default_factory=Durations)
    first_token: Durations = field(default_factory=Durations)
    waits: Durations = field(default_factory=Durations)
    loads: Durations = field(default_factory=Durations)
    prompt_tokens: int = 0
    generated_tokens: int = 0
    cached_tokens: int = 0
    evictions: Counter[Rule] = field(default_factory=Counter[Rule])
    load_failures: int = 0
    deaths: int = 0
    restarts: int = 0
    died: bool = False
    """Its last process ended by itself; the next load is a restart."""


class Counters:
    """The counts of models, beside those of the ``server``; values that can be read on demand are not here."""

    def __init__(self, server: Metrics) -> None:
        self.server = server
        self.models: dict[str, ModelCounts] = {}

    def on_request_ended(self, ended: EndedRequest) -> None:
        """Count a request for a model, waiting and loading included, and the tokens of a good answer.

        There is no first byte, and no first token, where it never had one. Negative numbers are unknown.
        """
        if not ended.known:
            return
        counts, began = self.models.get(ended.model) or self._of(ended.model), ended.began
        counts.requests[ended.route, ended.status] += 1
        counts.seconds.observe(ended.ended - began)
        if ended.first_byte is not None:
            counts.first_byte.observe(ended.first_byte - began)
        if (usage := ended.usage) is not None and ended.status == 200:
            if (first_token := ended.first_token_ms()) >= 0:
                counts.first_token.observe(first_token / 1000)
            counts.prompt_tokens += max(usage.tokens.input_tokens, 0)
            counts.generated_tokens += max(usage.tokens.output_tokens, 0)
            counts.cached_tokens += max(usage.tokens.cache_tokens, 0)

    def on_wait(self, model: str, seconds: float) -> None:
        """A request got its lease after waiting so long for it; its model's load is part of the wait."""
        self._of(model).waits.observe(seconds)

    def on_entry(self, entry: Happening) -> None:
        """Count what becomes of model processes: loads, evictions, failed loads, deaths."""
        rule = entry.cause.rule if entry.cause is not None else None
        if entry.kind == "loaded":
            counts = self._of(entry.model)
            counts.loads.observe(entry.seconds)
            if counts.died:
                counts.died = False
                counts.restarts += 1
        elif entry.kind == "evicted" and rule is not None:
            self._of(entry.model).evictions[rule] += 1
        elif entry.kind == "failed":
            self._of(entry.model).load_failures += 1
        elif entry.kind in ("crashed", "hung") or rule == "condemned":
            counts = self._of(entry.model)
            counts.deaths += 1
            counts.died = True

    def _of(self, model: str) -> ModelCounts:
        counts = self.models.get(model)
        if counts is None:
            counts = self.models.setdefault(self.server.label(model), ModelCounts())
        return counts
