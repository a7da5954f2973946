"""What a run found, beside its goals: as text, as Markdown, as JSON."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from ends import Figures
from relays import CAPTURES_OFF, DIRECT, NGINX, PROGRAM
from rows import WHAT

DOCUMENT = Path(__file__).parents[1] / "docs" / "performance.md"
BEGIN, END = "<!-- figures: written by `bench --publish` -->", "<!-- end of figures -->"
UNITS = {
    "cpu_us": "CPU us",
    "cpu_ms_mib": "CPU ms/MiB",
    "mib_s": "MiB/s",
    "per_second": "/s",
    "kb_stream": "kB/stream",
    "listening_ms": "listening ms",
    "slowest_ms": "slowest ms",
    "list_ms": "list ms",
    "rss_mb": "MB",
    "asked_mb": "model asked MB",
    "control_mb": "control route MB",
    "thousand_mb": "1,000 requests MB",
    "before_mb": "before MB",
    "during_mb": "during MB",
    "after_mb": "after MB",
    "cold_ms": "nothing loaded ms",
    "swap_ms": "another goes ms",
    "loaded_ms": "loaded ms",
    "median_us": "median us",
    "p99_us": "p99 us",
}
"""Of figures; for the others their name with the unit of all of them, ms."""

Samples = dict[str, dict[str, list[Figures]]]
"""By row and relay, a sample for each round."""
Combined = dict[str, dict[str, Figures]]
Against = Literal["x", "-", "alone"]


class Goal(NamedTuple):
    """One figure of the program, beside another one of the same run, or by itself."""

    row: str
    figure: str
    against: Against
    """x: so many times the other; -: so much more than it."""
    other: str
    """``ROW|RELAY|FIGURE``; what is left out is the goal's own row, the program, the goal's own figure."""
    aim: float
    least: float
    what: str
    unit: str = "ms"
    at_least: bool = False
    relay: str = PROGRAM

    def value(self, found: Combined) -> float | None:
        """None where it was not measured."""
        own = found.get(self.row, {}).get(self.relay, {}).get(self.figure)
        if own is None or self.against == "alone":
            return own
        row, relay, figure = (*self.other.split("|"), "", "")[:3]
        other = found.get(row or self.row, {}).get(relay or PROGRAM, {}).get(figure or self.figure)
        if other is None or (self.against == "x" and not other):
            return None
        return own / other if self.against == "x" else own - other

    def verdict(self, value: float | None) -> str:
        if value is None:
            return "not measured"
        if self.at_least:
            return "met" if value >= self.aim else "enough" if value >= self.least else "MISSED"
        return "met" if value <= self.aim else "enough" if value <= self.least else "MISSED"

    def cells(self, found: Combined) -> tuple[str, str, str, str]:
        """What, how much, the goal, the verdict."""
        value = self.value(found)
        unit = "x" if self.against == "x" else f" {self.unit}"
        sign = "at least" if self.at_least else "at most"
        told = "-" if value is None else f"{_short(value)}{unit}"
        return self.what, told, f"{sign} {self.aim:g}{unit} ({self.least:g})", self.verdict(value)


def _both(
    what: str, figure: str, against: Against, other: str, limits: Sequence[tuple[float, float]], row: str
) -> list[Goal]:
    """The same goal for 48 and for 200 streams."""
    return [
        Goal(f"{row}-{count}", figure, against, other.format(count=count), aim, least, f"{what}, {count} streams")
        for count, (aim, least) in zip((48, 200), limits, strict=True)
    ]


GOALS = (
    *_both("CPU per chunk, against nginx", "cpu_us", "x", "|nginx", [(1.6, 2.0)] * 2, "chunk"),
    *_both("CPU per chunk with a ring, against without", "cpu_us", "x", "chunk-{count}|", [(1.2, 1.4)] * 2, "ring"),
    *_both("chunks late, p99, more than nginx", "late_p99", "-", "|nginx", [(1, 3)] * 2, "chunk"),
    *_both("first byte, p50, begun together", "first_p50", "alone", "", [(2, 5), (5, 15)], "chunk"),
    Goal("json", "per_second", "x", "|nginx", 0.5, 0.35, "JSON requests a second, against nginx", at_least=True),
    Goal("json", "cpu_us", "x", "|nginx", 2.5, 4, "CPU per JSON request, against nginx"),
    Goal("json-rate", "took_p50", "-", f"|{DIRECT}", 0.2, 0.4, "JSON, added p50 at 200 a second"),
    Goal("json-rate", "took_p99", "-", f"|{DIRECT}", 1, 2, "JSON, added p99 at 200 a second"),
    Goal("json-new", "cpu_us", "alone", "", 150, 300, "CPU per JSON request, a new connection each", "us"),
    *(
        Goal(f"bodies-{size}", "cpu_ms_mib", "x", "|nginx", 2, 3, f"CPU per MiB of a body, {label}, against nginx")
        for size, label in (("64k", "64 KiB"), ("1m", "1 MiB"), ("20m", "20 MiB"))
    ),
    Goal("stall", "late_max", "alone", "", 20, 60, "the latest chunk while bodies of 20 MiB are posted"),
    Goal("settings-10", "cpu_us", "x", f"|{CAPTURES_OFF}", 1.05, 1.1, "CPU per chunk with captures, against without"),
    Goal(
        "settings-json",
        "cpu_us",
        "x",
        f"|{CAPTURES_OFF}",
        1.05,
        1.1,
        "CPU per JSON request with captures, against without",
    ),
    Goal("start", "listening_ms", "alone", "", 250, 350, "start to listening"),
    Goal("idle", "control_mb", "alone", "", 50, 60, "idle memory after a control route", "MB"),
    *(
        Goal(f"idle-{count}", "kb_stream", "alone", "", 12, 25, f"memory of a stream, {count} of them", "kB")
        for count in (500, 2000)
    ),
    Goal("idle-2000", "late_p99", "alone", "", 10, 30, "chunks late, p99, 2000 idle streams"),
    Goal("growth", "list_ms", "alone", "", 8, 15, "list of 1,000 models"),
    Goal(
        "decisions",
        "median_us",
        "alone",
        "",
        60000,
        120000,
        "reading a configuration of 300 models",
        "us",
        relay="read a configuration, 300 models",
    ),
)


def goals(found: Combined) -> list[Goal]:
    """Those of the rows that were measured; of swaps for every engine and way, beside the bare engine's start."""
    swaps = [
        Goal("swap", figure, "-", f"|{bare}|cold_ms", 5, 10, f"first token, {name}, {how}, more than bare", relay=name)
        for name in found.get("swap", {})
        for bare in [name.partition(": ")[0] + ": bare"]
        for figure, how in (("cold_ms", "nothing loaded"), ("swap_ms", "another goes"))
        if name != bare
    ]
    return [goal for goal in (*GOALS, *swaps) if found.get(goal.row)]


def combined(samples: Samples) -> Combined:
    """Of all rounds the least CPU, since other work of the machine only adds to it, and the median of all else."""
    found = {row: {relay: _of_rounds(rounds) for relay, rounds in relays.items()} for row, relays in samples.items()}
    for relays in found.values():
        base = relays.get(DIRECT, {})
        for figures in relays.values() if "took_p50" in base else ():
            figures |= {f"added_p{part}": figures[f"took_p{part}"] - base[f"took_p{part}"] for part in (50, 95, 99)}
    return found


def _of_rounds(rounds: list[Figures]) -> Figures:
    names = dict.fromkeys(name for figures in rounds for name in figures)
    values = {name: [figures[name] for figures in rounds if name in figures] for name in names}
    return {name: (min if name.startswith("cpu") else statistics.median)(found) for name, found in values.items()}


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


# ---- tables ----------------------------------------------------------------------------------------------------------

Table = list[list[str]]
"""The first line is the head."""


def table_of(relays: dict[str, Figures]) -> Table:
    """One row of the report: a line for each relay, and the program's figures as so many times nginx's."""
    names = list(dict.fromkeys(name for figures in relays.values() for name in figures))
    lines = [["", *(UNITS.get(name) or f"{name.replace('_', ' ')} ms" for name in names)]]
    for relay, figures in relays.items():
        lines.append([relay, *(_short(figures[name]) if name in figures else "-" for name in names)])
    own, base = relays.get(PROGRAM), relays.get(NGINX)
    if own and base:
        ratios = [f"{own[name] / base[name]:.2f}x" if own.get(name) and base.get(name) else "" for name in names]
        lines.append([f"{PROGRAM} / {NGINX}", *ratios])
    return lines


def goals_table(found: Combined) -> Table:
    lines = [["goal", "measured", "wanted (at the least)", ""]]
    lines += [list(goal.cells(found)) for goal in goals(found)]
    return lines


def as_text(table: Table) -> str:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return "\n".join(
        "  "
        + line[0].ljust(widths[0])
        + "".join(f"  {cell.rjust(width)}" for cell, width in zip(line[1:], widths[1:], strict=True))
        for line in table
    )


def as_markdown(table: Table) -> str:
    head, *rest = table
    lines = [head, ["---"] * len(head), *rest]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


class Run(NamedTuple):
    """What one run is told of: where, of what, how, and what came out."""

    machine: str
    commit: str
    command: str
    samples: Samples
    left_out: list[str]

    def text(self) -> str:
        found = combined(self.samples)
        lines = [f"machine: {self.machine}", f"commit:  {self.commit}", f"command: {self.command}", ""]
        for row, relays in found.items():
            lines += [f"{row}: {WHAT[row].what}", f"  $ {WHAT[row].command}", as_text(table_of(relays)), ""]
        lines += [as_text(goals_table(found)), *(f"  left out: {line}" for line in self.left_out)]
        return "\n".join(lines)

    def markdown(self) -> str:
        found = combined(self.samples)
        lines = [f"Machine: {self.machine}. Commit: {self.commit}. Command: `{self.command}`.", ""]
        lines += ["### Goals", "", as_markdown(goals_table(found)), ""]
        for row, relays in found.items():
            lines += [
                f"### {row}: {WHAT[row].what}",
                "",
                f"`{WHAT[row].command}`",
                "",
                as_markdown(table_of(relays)),
                "",
            ]
        return "\n".join([*lines, *(f"Left out: {line}." for line in self.left_out)])

    def json(self) -> Mapping[str, object]:
        """Each row with where and how it was measured, all samples and what was made of them."""
        found = combined(self.samples)
        return {
            row: {
                "machine": self.machine,
                "commit": self.commit,
                "command": WHAT[row].command,
                "run": self.command,
                "samples": relays,
                "combined": found[row],
                "goals": [
                    dict(zip(("what", "measured", "wanted", "verdict"), goal.cells(found), strict=True))
                    for goal in goals(found)
                    if goal.row == row
                ],
            }
            for row, relays in self.samples.items()
        } | {"left out": self.left_out}

    def publish(self, document: Path) -> None:
        """Put the figures between the two marks of the document."""
        before, _, rest = document.read_text(encoding="utf-8").partition(BEGIN)
        _, _, after = rest.partition(END)
        document.write_text(f"{before}{BEGIN}\n\n{self.markdown()}\n\n{END}{after}", encoding="utf-8")
