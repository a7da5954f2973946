"""What is measured of a relay that runs: streams, JSON, bodies."""

from __future__ import annotations

import time
from typing import NamedTuple

from ends import Ends, Figures, run_load
from processes import cpu
from relays import Relay

SETTLE = 0.1
"""Seconds after the last answer in which a relay may still work for it: what it writes down later counts."""


class Bench(NamedTuple):
    """What every measurement is given."""

    ends: Ends
    seconds: float


class Row(NamedTuple):
    """One measurement, which every relay goes through in turn."""

    name: str
    what: str
    kind: str
    """Of the clients: streams or json."""
    options: tuple[object, ...]
    figures: tuple[str, ...]

    def measure(self, relay: Relay, bench: Bench) -> Figures:
        """Run the clients against it once. CPU is from before the first request until after the last answer."""
        options = (*self.options, "--seconds", bench.seconds, *relay.options)
        before = cpu(relay.pid, bench.ends.engine) if relay.pid else 0.0
        found = run_load(bench.ends, self.kind, relay.port, *options)
        if relay.pid:
            time.sleep(SETTLE)
            used = cpu(relay.pid, bench.ends.engine) - before
            found["cpu_us"] = used * 1e6 / found["chunks" if self.kind == "streams" else "answers"]
        return {name: found[name] for name in self.figures if name in found}


STREAM = ("cpu_us", "late_p50", "late_p99", "late_max", "first_p50", "first_p99")
JSON = ("per_second", "cpu_us", "took_p50", "took_p95", "took_p99")


def streams(name: str, count: int, pace_ms: int, *more: object) -> Row:
    """Streams of which each says something once in the pace, and which begin one by one within one pace."""
    pace = pace_ms * 1000
    how = {"--burst": "all at the same instant", "--key": "each of a conversation (ring)"}
    told = [how[str(option)] for option in more]
    what = ", ".join([f"{count} streams, a chunk each {pace_ms} ms", *(told or ["each chunk alone"])])
    over = 0 if "--burst" in more else pace
    return Row(name, what, "streams", ("--streams", count, "--pace-us", pace, "--over-us", over, *more), STREAM)


def json(name: str, what: str, *options: object) -> Row:
    return Row(name, what, "json", options, JSON)


ROWS = (
    streams("chunk-48", 48, 5),
    streams("chunk-200", 200, 20),
    streams("burst-48", 48, 5, "--burst"),
    streams("burst-200", 200, 20, "--burst"),
    streams("ring-48", 48, 5, "--key"),
    streams("ring-200", 200, 20, "--key"),
    json("json", "JSON of 2 KiB in and 1 KiB out, 16 connections", "--connections", 16),
    json("json-new", "the same, a new connection each", "--connections", 16, "--new", "--most", 10000),
    json("json-rate", "JSON, 200 requests a second at their moments", "--rate", 200),
)
