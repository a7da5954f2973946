"""The rows of the report: loads for relays that run, and measurements that start a relay for themselves."""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

from ends import Ends, Figures, run_load, told
from first_day import export, files, table
from processes import Failed, Machine, get, memory, opened_pages, used, wait_accepting
from relays import (
    CAPTURES_OFF,
    DIRECT,
    FORGETTING,
    HISTORY,
    KEEPING,
    KEY,
    LARGE,
    NGINX,
    PLUGINS,
    PROGRAM,
    SMALL,
    Contestant,
    Relay,
)

SETTLE = 0.3
"""Seconds after the last answer in which a relay may still work for it, so that its notes of the answers count."""
AT_REST = 2.0
"""Seconds without a request before memory is read."""
MINUTE = 60.0
"""Seconds in which the memory of readers that did not read is given back."""
MANY_MODELS = 1000
USUAL_CLIENTS = 4000
"""The places that the program has by itself."""
MANY_STREAMS = min(10_000, resource.getrlimit(resource.RLIMIT_NOFILE)[1] // 2 - 200)
"""Each takes two of a relay's open files."""
MIB = 1 << 20
SETTINGS = (NGINX, PROGRAM, CAPTURES_OFF, KEY, PLUGINS)
FILES = (FORGETTING, KEEPING)
DIALECTS = ("messages", "responses")
"""Translated for a model's file; a configured server is asked in them as it is."""


STREAM = ("cpu_us", "sleeps", "late_p50", "late_p99", "late_max", "first_p50", "first_p99", "post_p50", "others")
JSON = ("per_second", "cpu_us", "took_p50", "took_p95", "took_p99", "others")
"""The clients' figures that are told."""


class Bench(NamedTuple):
    """How much of everything: ends, seconds of a load, starts of which the median is taken."""

    ends: Ends
    seconds: float
    starts: int


class Row(NamedTuple):
    """One measurement, which the relays go through in turn."""

    name: str
    title: str
    command: str
    """As the report prints it."""
    under_load: Callable[[Relay, Bench], Figures] | None = None
    """Measures a relay that runs beside the others."""
    alone: Callable[[Contestant, Bench], Figures] | None = None
    """Measures a relay that is started for this row."""
    needs_models: bool = False
    """Only of one that reads a configuration of models."""
    relays: tuple[str, ...] | None = None
    """Which ones; None: all but the program's other settings."""


# ---- of relays that run ----------------------------------------------------------------------------------------------


def _loaded(relay: Relay, bench: Bench, kind: str, *options: object) -> Figures:
    """Run the clients once; CPU is from before the first request until after the last answer."""
    before = used(relay.pid, bench.ends.engine) if relay.pid else None
    whole = Machine.now()
    found = run_load(bench.ends, kind, relay.port, *options, *relay.options)
    count = found["chunks" if kind == "streams" else "answers"]
    if relay.pid and before:
        time.sleep(SETTLE)
        after = used(relay.pid, bench.ends.engine)
        found |= {"cpu_us": (after.cpu - before.cpu) * 1e6 / count, "sleeps": after.sleeps_since(before) / count}
    now = Machine.now()
    found["others"] = 100 * (now.others - whole.others) / (now.total - whole.total)
    return {name: found[name] for name in (STREAM if kind == "streams" else JSON) if name in found}


def _load_row(
    name: str,
    title: str,
    kind: str,
    *options: object,
    relays: tuple[str, ...] | None = None,
    share: float = 1.0,
) -> Row:
    """``share``: of the seconds that a load lasts."""

    def measure(relay: Relay, bench: Bench) -> Figures:
        return _loaded(relay, bench, kind, *options, "--seconds", bench.seconds * share)

    return Row(name, title, told(kind, *options), under_load=measure, relays=relays)


def streams(name: str, count: int, pace_ms: int, *more: object, relays: tuple[str, ...] | None = None) -> Row:
    """Streams of which each says something once in the pace, and which begin one by one within one pace."""
    pace, how = pace_ms * 1000, {"--burst": "all at the same instant", "--key": "each of a conversation (ring)"}
    said = [how.get(str(option), f"in {option}") for option in more if option != "--dialect"] or ["each chunk alone"]
    title = f"{count} streams, a chunk each {pace_ms} ms, {', '.join(said)}"
    begin = ("--over-us", 0 if "--burst" in more else pace)
    return _load_row(name, title, "streams", "--streams", count, "--pace-us", pace, *begin, *more, relays=relays)


def with_pages(name: str, count: int, pace_ms: int, pages: int) -> Row:
    """The streams of another row while so many browsers have the page open: each follows the server's events."""
    like = streams(name, count, pace_ms)

    def measure(relay: Relay, bench: Bench) -> Figures:
        assert like.under_load is not None
        with opened_pages(relay.port, pages):
            return like.under_load(relay, bench)

    return like._replace(title=f"{like.title}, {pages} pages open", under_load=measure, relays=(PROGRAM,))


def asked(name: str, title: str, *options: object, relays: tuple[str, ...] | None = None) -> Row:
    return _load_row(name, title, "json", *options, relays=relays, share=0.5)


def bodies(name: str, size: int, label: str) -> Row:
    """CPU and rate for each MiB that travels up."""
    options = ("--connections", 2, "--body", size)

    def measure(relay: Relay, bench: Bench) -> Figures:
        found = _loaded(relay, bench, "json", *options, "--seconds", bench.seconds)
        each = {"mib_s": found.pop("per_second") * size / MIB}
        if "cpu_us" in found:
            each["cpu_ms_mib"] = found.pop("cpu_us") / 1000 / (size / MIB)
        return each | found

    return Row(name, f"bodies of {label}, 2 connections", told("json", *options), under_load=measure)


# ---- of relays that are started for it -------------------------------------------------------------------------------


def start(contestant: Contestant, bench: Bench) -> Figures:
    """Milliseconds from the command to the first connection that is accepted; the first start writes bytecode."""
    times: list[float] = []
    for _ in range(bench.starts + 1):
        began = time.monotonic()
        with contestant.spawned(bench.ends) as (process, port):
            wait_accepting(process, port)
            times.append((time.monotonic() - began) * 1000)
    return {"listening_ms": statistics.median(times[1:]), "slowest_ms": max(times[1:])}


def probe(contestant: Contestant, bench: Bench) -> Figures:
    """Milliseconds that the first question to a fresh start takes, as a monitor asks it."""
    times: list[float] = []
    for _ in range(bench.starts):
        with contestant.spawned(bench.ends) as (process, port):
            wait_accepting(process, port)
            time.sleep(AT_REST)
            began = time.monotonic()
            if get(port, "/health")[0] != 200:
                raise Failed("/health is not answered")
            times.append((time.monotonic() - began) * 1000)
    return {"health_ms": statistics.median(times), "slowest_ms": max(times)}


def idle(contestant: Contestant, bench: Bench) -> Figures:
    """Megabytes at rest: before any question, after control routes, after requests to the model."""

    def weight() -> float:
        time.sleep(AT_REST)
        return memory(process.pid, bench.ends.engine)

    with contestant.spawned(bench.ends) as (process, port):
        wait_accepting(process, port)
        found = {"unasked_mb": weight()}
        for path in ("/health", "/v1/models", "/running"):
            get(port, path)
        found["control_mb"] = weight()
        run_load(bench.ends, "json", port, "--connections", 16, "--seconds", 30, "--most", 1000)
        return found | {"thousand_mb": weight()}


def held(contestant: Contestant, bench: Bench, count: int, *options: object) -> Figures:
    """The memory of a stream that is open: growth since a hundred requests were answered."""
    ends = bench.ends
    with contestant.started(ends, clients=count + 50 if count > USUAL_CLIENTS else 0) as relay:
        pid, during = relay.pid or 0, list[float]()
        run_load(ends, "json", relay.port, "--connections", 4, "--seconds", 30, "--most", 100)
        time.sleep(AT_REST)
        before, worked = memory(pid, ends.engine), used(pid, ends.engine)

        def weigh() -> None:
            time.sleep(2 * AT_REST)
            during.append(memory(pid, ends.engine))

        found = run_load(ends, "streams", relay.port, "--streams", count, *options, speaking=weigh)
        time.sleep(AT_REST)
        cpu_us = (used(pid, ends.engine).cpu - worked.cpu) * 1e6 / found["chunks"]
        late = {} if "--slow" in options else {name: found[name] for name in ("late_p50", "late_p99")}
        kb_stream = (during[0] - before) * 1000 / count
        weights = {"before_mb": before, "during_mb": during[0], "after_mb": memory(pid, ends.engine)}
        if "--slow" in options:
            time.sleep(MINUTE)
            weights["minute_mb"] = memory(pid, ends.engine)
        return {"cpu_us": cpu_us, "kb_stream": kb_stream, **weights, **late}


def held_row(name: str, title: str, count: int, *options: object) -> Row:
    def measure(contestant: Contestant, bench: Bench) -> Figures:
        return held(contestant, bench, count, *options)

    return Row(name, title, told("streams", "--streams", count, *options), alone=measure)


def growth(contestant: Contestant, bench: Bench) -> Figures:
    """The same program with many models in its configuration."""
    times: list[float] = []
    for _ in range(3):
        with contestant.spawned(bench.ends, MANY_MODELS) as (process, port):
            times.append(wait_accepting(process, port) * 1000)
    with contestant.spawned(bench.ends, MANY_MODELS) as (process, port):
        wait_accepting(process, port)
        while get(port, "/v1/models")[0] != 200:
            time.sleep(0.05)
        options = ("--get", "--path", "/v1/models", "--connections", 1, "--seconds", 20, "--most", 50)
        found = run_load(bench.ends, "json", port, *options)
        rss = memory(process.pid, bench.ends.engine)
    return {"listening_ms": statistics.median(times), "list_ms": found["took_p50"], "rss_mb": rss}


IDLE = ("--pace-us", 1000000, "--over-us", 1000000)
SLOW = ("--pace-us", 100000, "--record-bytes", 8192, "--slow", "--seconds", 6)

ALONE = (
    Row("start", "from the command to listening, median", "connect", alone=start),
    Row("probe", "the first question to a fresh start, median", "GET /health", alone=probe),
    Row("idle", "memory at rest", "GET /health /v1/models /running", alone=idle),
    Row(
        "growth",
        f"{MANY_MODELS} models configured",
        told("json", "--get", "--path", "/v1/models"),
        alone=growth,
        needs_models=True,
    ),
    held_row("idle-500", "500 streams, a chunk a second", 500, *IDLE, "--seconds", 6),
    held_row("idle-2000", "2,000 streams, a chunk a second", 2000, *IDLE, "--seconds", 10),
    held_row("idle-10000", f"{MANY_STREAMS:,} streams, a chunk a second", MANY_STREAMS, *IDLE, "--seconds", 20),
    Row("files", "200 model files, each with 303,000 strings", "GET, POST", alone=files, relays=(LARGE,)),
    Row("files-small", "5,000 model files, small headers", "GET /api/ls", alone=table, relays=(SMALL,)),
    Row("export", "a history of 100,000 requests", "GET /api/metrics/activity/export", alone=export, relays=(HISTORY,)),
    held_row("slow-500", "500 streams of 80 KiB/s that nobody reads", 500, *SLOW),
)

UNDER_LOAD = (
    streams("chunk-48", 48, 5),
    streams("chunk-200", 200, 20),
    streams("burst-48", 48, 5, "--burst"),
    streams("burst-200", 200, 20, "--burst"),
    streams("ring-48", 48, 5, "--key"),
    streams("ring-200", 200, 20, "--key"),
    with_pages("pages-48", 48, 5, 10),
    streams("settings-10", 10, 5, relays=SETTINGS),
    streams("ring-10", 10, 5, "--key", relays=SETTINGS),
    asked("json", "JSON of 2 KiB in and 1 KiB out, 16 connections", "--connections", 16),
    asked("json-varied", "the same, each body of another length", "--connections", 16, "--vary"),
    asked("json-new", "the same, a new connection each", "--connections", 16, "--new", "--most", 10000),
    _load_row("json-rate", "JSON, 200 a second, each at its moment", "json", "--rate", 200),
    *(
        asked(f"json-{count}", f"JSON, {count} connection{'s' * (count > 1)}", "--connections", count)
        for count in (1, 4, 64)
    ),
    *(
        asked(
            f"json-{count}-20ms",
            f"JSON from an engine that takes 20 ms, {count} connection{'s' * (count > 1)}",
            *("--connections", count, "--delay-us", 20000),
        )
        for count in (1, 4, 16, 64)
    ),
    asked("settings-json", "JSON, 1 connection", "--connections", 1, relays=(DIRECT, *SETTINGS)),
    asked("kept-json", "JSON as above, a model file", "--connections", 16, relays=FILES),
    asked("kept-long", "JSON of 16 KiB in, a model file", "--connections", 16, "--body", 16384, relays=FILES),
    streams("kept-48", 48, 5, relays=FILES),
    *(streams(f"{name}-48", 48, 5, "--dialect", name, relays=(FORGETTING,)) for name in DIALECTS),
    bodies("bodies-64k", 64 * 1024, "64 KiB"),
    bodies("bodies-1m", MIB, "1 MiB"),
    bodies("bodies-20m", 20 * MIB, "20 MiB"),
    _load_row(
        "stall",
        "20 streams, a chunk each 20 ms, while one client posts 20 MiB every half second",
        "streams",
        *("--streams", 20, "--pace-us", 20000, "--over-us", 20000, "--post", 20 * MIB),
    ),
)

SWAP = Row("swap", "to the first token of a real engine", "POST /v1/chat/completions, stream")
DECISIONS = Row("decisions", "decisions without a socket", "bench/decisions.py")
ROWS = {row.name: row for row in (*ALONE, SWAP, DECISIONS, *UNDER_LOAD)}
