"""Measure relay, swap, plugins, decisions, start and weight of the program, in one run, against yardsticks.

`python3 bootstrap.py bench [--quick] [--json] [--only PART] [--engine ENGINE]`. Numbers of different runs do not
compare, since the machine's load differs; the goals are therefore ratios within one run (nginx, a bare engine), where
they are not times that any machine keeps. Loopback only; everything that is started is ended. Takes about three
minutes, with --quick one.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple, TypeVar

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent))
sys.path.append(str(HERE.parent))

import chain  # noqa: E402 - the program is found only now
import decisions  # noqa: E402
import measures  # noqa: E402
import swaps  # noqa: E402
from contestants import FROZEN, NGINX, PROGRAM, STARTER, names, serve, serve_configuration  # noqa: E402
from peers import Peers, prepare  # noqa: E402
from processes import Failed  # noqa: E402
from speed_cases import configuration_text  # noqa: E402

from appliance.engines.found import EMBEDDED, find_engine  # noqa: E402
from appliance.errors import ApplianceError  # noqa: E402

Found = TypeVar("Found")

CHUNK_RATIO = 2.0
JSON_RATIO = 0.4
SWAP_EXTRA_MS = 15.0
WHOLE_EXTRA_MS = 1.0
FIRST_EXTRA_MS = 5.0
IDLE_MB = 60.0
FROZEN_START_S = 0.7
CONFIGURED_MODELS = 60
SOURCE, SOURCE_CONFIGURED = "from source", f"from source, {CONFIGURED_MODELS} models configured"
FROZEN_ALONE, FROZEN_CONFIGURED = "frozen", f"frozen, {CONFIGURED_MODELS} models configured"
PARTS = ("relay", "start", "swap", "chain", "decisions")


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
        return f"  {self.what:<56} {value:>9}   goal {'>=' if self.at_least else '<='} {self.limit:g}   {verdict}"


class Report:
    """What one run found, and what it left out."""

    def __init__(self, parts: Sequence[str], quiet: bool) -> None:
        self.parts = parts
        self.quiet = quiet
        self.skipped: list[str] = []
        self.relays: dict[str, measures.Relayed] = {}
        self.swaps: dict[str, swaps.Took] = {}
        self.chain: dict[str, chain.Added] = {}
        self.decisions: list[decisions.Decision] = []
        self.starts: dict[str, measures.Start] = {}

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
        """Those of the parts that were asked for; the decisions' are in their own table."""
        return [
            *(self._relay_goals() if "relay" in self.parts else ()),
            *(self._swap_goals() if "swap" in self.parts else ()),
            *(self._chain_goals() if "chain" in self.parts else ()),
            *(self._start_goals() if "start" in self.parts else ()),
        ]

    def _relay_goals(self) -> list[Goal]:
        chunk = rate = None
        if (own := self.relays.get(PROGRAM)) and (yardstick := self.relays.get(NGINX)):
            chunk = own.chunk_us / yardstick.chunk_us
            rate = own.json_rps / yardstick.json_rps
        return [
            Goal("CPU per chunk / nginx", chunk, CHUNK_RATIO, "x"),
            Goal("JSON requests/s / nginx", rate, JSON_RATIO, "x", True),
        ]

    def _swap_goals(self) -> list[Goal]:
        extra = {name: took.median - self.swaps[swaps.BARE].median for name, took in self.swaps.items()}
        return [Goal(f"{name} - bare", extra.get(name), SWAP_EXTRA_MS, "ms") for name in swaps.LOADS]

    def _chain_goals(self) -> list[Goal]:
        extra = {name: added.extra for name, added in self.chain.items()}
        limits = {chain.WHOLE: WHOLE_EXTRA_MS, chain.FIRST: FIRST_EXTRA_MS}
        return [Goal(f"four plugins, added to {what}", extra.get(what), limit, "ms") for what, limit in limits.items()]

    def _start_goals(self) -> list[Goal]:
        memory = [
            Goal(f"idle memory, {name}", found.rss if found else None, IDLE_MB, "MB")
            for name in (SOURCE, SOURCE_CONFIGURED, FROZEN_ALONE, FROZEN_CONFIGURED)
            for found in (self.starts.get(name),)
        ]
        frozen = self.starts.get(FROZEN_ALONE)
        return [*memory, Goal("start to answer, frozen", frozen.answering if frozen else None, FROZEN_START_S, "s")]

    def as_json(self) -> str:
        facts = {
            "machine": machine(),
            "relays": {name: relayed._asdict() for name, relayed in self.relays.items()},
            "swaps_ms": {name: took._asdict() for name, took in self.swaps.items()},
            "chain_ms": {name: added._asdict() for name, added in self.chain.items()},
            "decisions_us": {d.what: d.time._asdict() | {"goal": d.goal} for d in self.decisions},
            "starts": {name: found._asdict() for name, found in self.starts.items()},
            "goals": [goal._asdict() | {"met": goal.met()} for goal in self.goals()],
            "skipped": self.skipped,
        }
        return json.dumps(facts, indent=2)

    def as_text(self) -> str:
        lines = [machine(), ""]
        if self.relays:
            lines += [*self._relay_lines(), ""]
        if self.swaps:
            lines += [*swaps.table(self.swaps), ""]
        if self.chain:
            lines += [*chain.table(self.chain), ""]
        if self.decisions:
            lines += [*decisions.table(self.decisions), ""]
        for name, found in self.starts.items():
            lines.append(
                f"  {name}: accepts after {found.listening:.2f} s, answers after {found.answering:.2f} s; idle "
                f"{found.rss_unasked:.1f} MB, {found.rss:.1f} MB once asked, its children {found.rss_below:.1f} MB"
            )
        if self.starts:
            lines.append("")
        lines += [goal.line() for goal in self.goals()]
        lines += ["", *(f"  left out: {line}" for line in self.skipped)] if self.skipped else []
        return "\n".join(lines)

    def _relay_lines(self) -> list[str]:
        load = (
            f"{measures.CONNECTIONS} streams of 200 chunks 5 ms apart, JSON at {measures.JSON_CONNECTIONS} connections"
        )
        lines = [
            f"  {load}",
            f"  {'relay':<28}{'us/chunk':>9}{'/nginx':>8}{'children':>9}{'JSON/s':>9}{'/nginx':>8}{'us/JSON':>9}",
        ]
        base = self.relays.get(NGINX)
        for name, r in self.relays.items():
            chunk, rate = (r.chunk_us / base.chunk_us, r.json_rps / base.json_rps) if base else (0.0, 0.0)
            lines.append(
                f"  {name:<28}{r.chunk_us:>9.1f}{chunk:>8.2f}{r.children_us:>9.1f}"
                f"{r.json_rps:>9.0f}{rate:>8.2f}{r.json_us:>9.0f}"
            )
        return lines


def machine() -> str:
    load = f", load {os.getloadavg()[0]:.1f} at the end" if hasattr(os, "getloadavg") else ""
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores{load}"


def relays(report: Report, plan: measures.Plan, peers: Peers) -> None:
    contestants, missing = names()
    report.skipped += missing
    for name in contestants:
        relayed = report.attempt(name, lambda name=name: measures.relay(name, peers, plan))
        if relayed:
            report.relays[name] = relayed


def starts(report: Report, plan: measures.Plan, peers: Peers, folder: Path) -> None:
    many = folder / "many.yaml"
    many.write_text(configuration_text(CONFIGURED_MODELS), encoding="utf-8")
    found: dict[str, Callable[[int], Sequence[str]]] = {
        SOURCE: lambda port: serve(port, str(peers.upstream), {"one": STARTER}),
        SOURCE_CONFIGURED: lambda port: serve_configuration(port, many),
    }
    if FROZEN.is_file():
        found[FROZEN_ALONE] = lambda port: serve(port, str(peers.upstream), {"one": STARTER}, program=FROZEN)
        found[FROZEN_CONFIGURED] = lambda port: serve_configuration(port, many, FROZEN)
    else:
        report.skipped.append("frozen program: not built ('python3 bootstrap.py freeze' does)")
    for name, argv in found.items():
        start = report.attempt(f"start, {name}", lambda argv=argv: measures.start(argv, plan, folder))
        if start:
            report.starts[name] = start


def swapped(report: Report, plan: measures.Plan, engine: str | None, folder: Path) -> None:
    try:
        found = find_engine(engine)
    except ApplianceError as cause:
        report.skipped.append(f"swap: {cause}")
        return
    chosen = EMBEDDED if found.name == EMBEDDED else found.command[0]
    took = report.attempt("swap", lambda: swaps.swaps(found.command, chosen, plan.swaps, folder))
    report.swaps = took or {}


def run(report: Report, plan: measures.Plan, engine: str | None, folder: Path) -> None:
    parts = report.parts
    if {"relay", "start", "chain"} & set(parts):
        peers = prepare(folder)
        if not peers.compiled:
            report.skipped.append("C compiler: not installed, upstream and clients are Python, perhaps the bottleneck")
        if peers.wrk is None and "relay" in parts:
            report.skipped.append("wrk: not installed, requests/s are counted by the bench's own clients")
        if "relay" in parts:
            relays(report, plan, peers)
        if "start" in parts:
            starts(report, plan, peers, folder)
        if "chain" in parts:
            report.chain = report.attempt("chain", lambda: chain.chain(peers, plan.pairs)) or {}
    if "swap" in parts:
        swapped(report, plan, engine, folder)
    if "decisions" in parts:
        report.decisions = report.attempt("decisions", lambda: decisions.decisions(folder)) or []


def main() -> int:
    parser = argparse.ArgumentParser(prog="bootstrap.py bench", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--only", choices=PARTS, action="append", help="measure this alone; may be given several times")
    parser.add_argument("--engine", help="engine for the swap; default: the one that serve takes")
    options = parser.parse_args()
    report = Report(options.only or PARTS, quiet=options.json)
    plan = measures.QUICK if options.quick else measures.FULL
    with tempfile.TemporaryDirectory(prefix="llama-appliance-bench-") as name:
        run(report, plan, options.engine, Path(name))
    print(report.as_json() if options.json else report.as_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
