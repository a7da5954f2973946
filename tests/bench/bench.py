"""Measure the relay, the swap, the start and the weight of the program, in one run, against yardsticks.

`python3 bootstrap.py bench [--quick] [--json] [--engine ENGINE]`. Numbers of different runs do not compare, since the
machine's load differs; the goals are therefore ratios within one run (nginx, a bare engine). Loopback only; everything
that is started is ended. Takes under three minutes, with --quick under one.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple, TypeVar

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent))

import measures  # noqa: E402 - the program is found only now
from contestants import FROZEN, NGINX, PROGRAM, names  # noqa: E402
from peers import prepare  # noqa: E402
from processes import Failed  # noqa: E402

from appliance.engines.found import EMBEDDED, find_engine  # noqa: E402
from appliance.errors import ApplianceError  # noqa: E402

Found = TypeVar("Found")

CHUNK_RATIO = 2.0
JSON_RATIO = 0.4
SWAP_EXTRA_MS = 15.0
IDLE_MB = 60.0
FROZEN_START_S = 0.7


class Goal(NamedTuple):
    """One line of the verdict. ``value`` is None where it could not be measured."""

    what: str
    value: float | None
    limit: float
    unit: str
    at_least: bool = False

    def met(self) -> bool | None:
        if self.value is None:
            return None
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def line(self) -> str:
        verdict = {True: "met", False: "MISSED", None: "not measured"}[self.met()]
        value = "-" if self.value is None else f"{self.value:.2f} {self.unit}"
        return f"  {self.what:<44} {value:>12}   goal {'>=' if self.at_least else '<='} {self.limit:g}   {verdict}"


class Report:
    """What one run found, and what it left out."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet
        self.skipped: list[str] = []
        self.relays: dict[str, measures.Relayed] = {}
        self.swap: measures.Swap | None = None
        self.source: measures.Start | None = None
        self.frozen: measures.Start | None = None

    def attempt(self, what: str, measure: Callable[[], Found]) -> Found | None:
        """One measurement; what keeps it from working is noted, and the run goes on."""
        began = time.monotonic()
        try:
            return measure()
        except (Failed, OSError, HTTPException) as cause:
            self.skipped.append(f"{what}: {cause}")
            return None
        finally:
            if not self.quiet:
                print(f"... {what}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)

    def goals(self) -> list[Goal]:
        chunk = rate = None
        if (own := self.relays.get(PROGRAM)) and (yardstick := self.relays.get(NGINX)):
            chunk = own.chunk_us / yardstick.chunk_us
            rate = own.json_rps / yardstick.json_rps
        swap = self.swap
        return [
            Goal("CPU per chunk / nginx", chunk, CHUNK_RATIO, "x"),
            Goal("JSON requests/s / nginx", rate, JSON_RATIO, "x", True),
            Goal("load to first token - bare cold start", swap.load - swap.cold if swap else None, SWAP_EXTRA_MS, "ms"),
            Goal("swap to first token - bare cold start", swap.swap - swap.cold if swap else None, SWAP_EXTRA_MS, "ms"),
            Goal("idle memory (from source)", self.source.rss if self.source else None, IDLE_MB, "MB"),
            Goal("idle memory (frozen)", self.frozen.rss if self.frozen else None, IDLE_MB, "MB"),
            Goal("start to listening (frozen)", self.frozen.listening if self.frozen else None, FROZEN_START_S, "s"),
        ]

    def as_json(self) -> str:
        facts = {
            "machine": machine(),
            "relays": {name: relayed._asdict() for name, relayed in self.relays.items()},
            "swap_ms": self.swap._asdict() if self.swap else None,
            "source": self.source._asdict() if self.source else None,
            "frozen": self.frozen._asdict() if self.frozen else None,
            "goals": [goal._asdict() | {"met": goal.met()} for goal in self.goals()],
            "skipped": self.skipped,
        }
        return json.dumps(facts, indent=2)

    def as_text(self) -> str:
        lines = [f"{machine()}; {measures.CONNECTIONS} streams of 200 chunks 5 ms apart, JSON at 16 connections", ""]
        lines += [f"  {'relay':<28}{'us/chunk':>9}{'/nginx':>8}{'children':>9}{'JSON/s':>9}{'/nginx':>8}{'us/JSON':>9}"]
        base = self.relays.get(NGINX)
        for name, r in self.relays.items():
            chunk, rate = (r.chunk_us / base.chunk_us, r.json_rps / base.json_rps) if base else (0.0, 0.0)
            lines.append(
                f"  {name:<28}{r.chunk_us:>9.1f}{chunk:>8.2f}{r.children_us:>9.1f}"
                f"{r.json_rps:>9.0f}{rate:>8.2f}{r.json_us:>9.0f}"
            )
        lines.append("")
        if self.swap:
            lines.append(f"  to first token: bare engine, cold start   {self.swap.cold:>8.1f} ms")
            lines.append(f"                  {PROGRAM}, load    {self.swap.load:>8.1f} ms")
            lines.append(f"                  {PROGRAM}, swap    {self.swap.swap:>8.1f} ms")
            lines.append(f"                  {PROGRAM}, loaded  {self.swap.loaded:>8.1f} ms")
        for kind, found in (("source", self.source), ("frozen", self.frozen)):
            if found:
                lines.append(
                    f"  {kind}: listens after {found.listening:.2f} s; idle {found.rss:.1f} MB, "
                    f"its children {found.rss_below:.1f} MB"
                )
        lines += ["", *(goal.line() for goal in self.goals())]
        lines += ["", *(f"  left out: {line}" for line in self.skipped)] if self.skipped else []
        return "\n".join(lines)


def machine() -> str:
    load = f", load {os.getloadavg()[0]:.1f} at the end" if hasattr(os, "getloadavg") else ""
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores{load}"


def run(report: Report, plan: measures.Plan, engine: str | None, folder: Path) -> None:
    peers = prepare(folder)
    if not peers.compiled:
        report.skipped.append("C compiler: not installed, upstream and clients are Python and may be the bottleneck")
    if peers.wrk is None:
        report.skipped.append("wrk: not installed, requests/s are counted by the bench's own clients")
    contestants, missing = names()
    report.skipped += missing
    for name in contestants:
        relayed = report.attempt(name, lambda name=name: measures.relay(name, peers, plan))
        if relayed:
            report.relays[name] = relayed
    report.source = report.attempt("start", lambda: measures.start(str(peers.upstream), plan, folder))
    if FROZEN.is_file():
        report.frozen = report.attempt(
            "start, frozen", lambda: measures.start(str(peers.upstream), plan, folder, FROZEN)
        )
    else:
        report.skipped.append("frozen program: not built ('python3 bootstrap.py freeze' does)")
    try:
        found = find_engine(engine)
    except ApplianceError as cause:
        report.skipped.append(f"swap: {cause}")
        return
    chosen = EMBEDDED if found.name == EMBEDDED else found.command[0]
    report.swap = report.attempt("swap", lambda: measures.swap(found.command, chosen, plan, folder))


def main() -> int:
    parser = argparse.ArgumentParser(prog="bootstrap.py bench", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, under a minute")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--engine", help="engine for the swap; default: the one that serve takes")
    options = parser.parse_args()
    report = Report(quiet=options.json)
    with tempfile.TemporaryDirectory(prefix="llama-appliance-bench-") as name:
        run(report, measures.QUICK if options.quick else measures.FULL, options.engine, Path(name))
    print(report.as_json() if options.json else report.as_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
