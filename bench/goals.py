"""The goals of the program: each a limit of one figure, most of them beside another figure of the same run."""

from __future__ import annotations

import statistics
from typing import NamedTuple

from ends import Figures
from relays import CAPTURES_OFF, DIRECT, FORGETTING, HISTORY, KEEPING, LARGE, NGINX, PROGRAM, SMALL

Samples = dict[str, dict[str, list[Figures]]]
"""By row and relay, a sample for each round."""
Combined = dict[str, dict[str, Figures]]
READING = "read a configuration, 300 models"


class Cell(NamedTuple):
    """One figure of the report."""

    row: str
    figure: str
    relay: str = PROGRAM

    def of(self, found: Combined) -> float | None:
        return found.get(self.row, {}).get(self.relay, {}).get(self.figure)


class Goal(NamedTuple):
    """A limit of one cell, of its ratio to another, or of its difference."""

    title: str
    own: Cell
    aim: float
    least: float
    unit: str
    times: Cell | None = None
    """It is divided by this."""
    over: Cell | None = None
    """This is taken away from it."""
    at_least: bool = False
    """The more the better."""

    def value(self, found: Combined) -> float | None:
        """None where it was not measured."""
        own, other = self.own.of(found), self.times or self.over
        if own is None or other is None:
            return own
        base = other.of(found)
        if base is None or (self.times and not base):
            return None
        return own / base if self.times else own - base

    def verdict(self, value: float | None) -> str:
        if value is None:
            return "not measured"
        sign = -1 if self.at_least else 1
        if sign * value <= sign * self.aim:
            return "met"
        return "enough" if sign * value <= sign * self.least else "MISSED"


def _ratio(title: str, row: str, figure: str, to: Cell, aim: float, least: float, at_least: bool = False) -> Goal:
    return Goal(title, Cell(row, figure), aim, least, "x", times=to, at_least=at_least)


def _of_streams(count: int, first: tuple[float, float], instant: tuple[float, float]) -> list[Goal]:
    chunk, ring, told = f"chunk-{count}", f"ring-{count}", f"{count} streams"
    return [
        _ratio(f"CPU per chunk against nginx, {told}", chunk, "cpu_us", Cell(chunk, "cpu_us", NGINX), 1.5, 1.7),
        _ratio(f"CPU per chunk with a ring against without, {told}", ring, "cpu_us", Cell(chunk, "cpu_us"), 1.15, 1.25),
        Goal(
            *(f"p99 lateness more than nginx's, {told}", Cell(chunk, "late_p99"), 1, 3, "ms"),
            over=Cell(chunk, "late_p99", NGINX),
        ),
        Goal(f"first byte p50, {told} begun together", Cell(chunk, "first_p50"), *first, "ms"),
        Goal(f"first byte p50, {told} begun at an instant", Cell(f"burst-{count}", "first_p50"), *instant, "ms"),
    ]


def _of_body(size: str, label: str) -> Goal:
    row, figure = f"bodies-{size}", "cpu_ms_mib"
    return _ratio(f"CPU per MiB of a body of {label} against nginx", row, figure, Cell(row, figure, NGINX), 2, 3)


def _of_captures(row: str, what: str) -> Goal:
    to = Cell(row, "cpu_us", CAPTURES_OFF)
    return _ratio(f"CPU per {what} with captures against without", row, "cpu_us", to, 1.04, 1.08)


def _of_contexts(row: str, what: str) -> Goal:
    own, to = Cell(row, "cpu_us", KEEPING), Cell(row, "cpu_us", FORGETTING)
    return Goal(f"CPU per {what} with contexts kept against without", own, 1.05, 1.08, "x", times=to)


def _of_dialect(name: str) -> Goal:
    own, to = Cell(f"{name}-48", "cpu_us", FORGETTING), Cell("kept-48", "cpu_us", FORGETTING)
    return Goal(f"CPU per chunk in {name} against chat completions", own, 1.3, 1.5, "x", times=to)


def _added(part: str, aim: float, least: float) -> Goal:
    own, to = Cell("json-rate", f"took_{part}"), Cell("json-rate", f"took_{part}", DIRECT)
    return Goal(f"JSON at 200 a second, added {part}", own, aim, least, "ms", over=to)


GOALS = (
    *_of_streams(48, (0.8, 1.5), (3.5, 5)),
    Goal("first byte p50 with a ring, 48 streams begun together", Cell("ring-48", "first_p50"), 1, 2, "ms"),
    *_of_streams(200, (4, 7), (14, 18)),
    _ratio(
        "CPU per chunk with ten open pages, 48 streams", "pages-48", "cpu_us", Cell("chunk-48", "cpu_us"), 1.02, 1.04
    ),
    _of_captures("settings-10", "chunk"),
    _of_captures("settings-json", "JSON request"),
    _of_contexts("kept-48", "chunk"),
    _of_contexts("kept-json", "JSON request"),
    *(_of_dialect(name) for name in ("messages", "responses")),
    _ratio("JSON a second against nginx", "json", "per_second", Cell("json", "per_second", NGINX), 0.33, 0.28, True),
    _ratio("CPU per JSON request against nginx", "json", "cpu_us", Cell("json", "cpu_us", NGINX), 3, 3.5),
    _ratio("CPU per JSON request of another length", "json-varied", "cpu_us", Cell("json", "cpu_us"), 1.03, 1.06),
    Goal("CPU per JSON request, a new connection each", Cell("json-new", "cpu_us"), 150, 300, "us"),
    _added("p50", 0.2, 0.4),
    _added("p99", 1, 2),
    _of_body("64k", "64 KiB"),
    _of_body("1m", "1 MiB"),
    _of_body("20m", "20 MiB"),
    Goal("latest chunk while bodies of 20 MiB are posted", Cell("stall", "late_max"), 20, 60, "ms"),
    Goal("start to listening", Cell("start", "listening_ms"), 250, 350, "ms"),
    Goal("first /health of a fresh start", Cell("probe", "health_ms"), 2, 10, "ms"),
    Goal("idle memory after a control route", Cell("idle", "control_mb"), 46, 50, "MB"),
    Goal("memory of an idle stream, 500 of them", Cell("idle-500", "kb_stream"), 12, 25, "kB"),
    Goal("memory of an idle stream, 2,000 of them", Cell("idle-2000", "kb_stream"), 12, 25, "kB"),
    Goal("p99 lateness of 2,000 idle streams", Cell("idle-2000", "late_p99"), 10, 30, "ms"),
    Goal("list of 1,000 models", Cell("growth", "list_ms"), 8, 15, "ms"),
    Goal("start to listening, 200 files read before", Cell("files", "listening_ms", LARGE), 300, 350, "ms"),
    Goal("list of 200 files after a start", Cell("files", "list_ms", LARGE), 50, 100, "ms"),
    Goal("first chat after a start, 200 files", Cell("files", "chat_ms", LARGE), 100, 300, "ms"),
    Goal("CPU of the first start with 200 files", Cell("files", "first_cpu_s", LARGE), 3, 4, "s"),
    Goal("/api/ls of 5,000 files", Cell("files-small", "table_ms", SMALL), 200, 400, "ms"),
    Goal("CSV of 100,000 requests", Cell("export", "csv_ms", HISTORY), 1500, 2000, "ms"),
    Goal(
        "memory left a minute after 500 readers that do not read",
        Cell("slow-500", "minute_mb"),
        10,
        20,
        "MB",
        over=Cell("slow-500", "before_mb"),
    ),
    Goal("reading a configuration of 300 models", Cell("decisions", "median_us", READING), 60e3, 120e3, "us"),
)


def goals(found: Combined) -> list[Goal]:
    """Those of the rows that were measured; of swaps for every engine and way, beside the bare engine's start."""
    swaps = [
        Goal(f"first token, {name}, {how}, more than bare", Cell("swap", figure, name), 5, 10, "ms", over=bare)
        for name in found.get("swap", {})
        for bare in [Cell("swap", "cold_ms", name.partition(": ")[0] + ": bare")]
        for figure, how in (("cold_ms", "nothing loaded"), ("swap_ms", "another goes"))
        if name != bare.relay
    ]
    return [goal for goal in (*GOALS, *swaps) if goal.own.row in found]


def combined(samples: Samples) -> Combined:
    """Return the least CPU of all rounds, since other work only adds to it, and the median of all else."""
    found = {row: {relay: _of_rounds(rounds) for relay, rounds in relays.items()} for row, relays in samples.items()}
    for relays in found.values():
        base = relays.get(DIRECT, {})
        for figures in relays.values():
            parts = [part for part in ("p50", "p99") if f"took_{part}" in figures and f"took_{part}" in base]
            figures |= {f"added_{part}": figures[f"took_{part}"] - base[f"took_{part}"] for part in parts}
    return found


def _of_rounds(rounds: list[Figures]) -> Figures:
    names = dict.fromkeys(name for figures in rounds for name in figures)
    values = {name: [figures[name] for figures in rounds if name in figures] for name in names}
    return {name: (min if name.startswith("cpu") else statistics.median)(found) for name, found in values.items()}
