"""The figures of a run, beside the goals: as text, as Markdown, as JSON."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ends import Figures
from goals import Combined, Goal, Samples, combined, goals
from relays import NGINX, PROGRAM
from rows import ROWS

DOCUMENT = Path(__file__).parents[1] / "docs" / "performance.md"
BEGIN, END = "<!-- figures: written by `bench --publish` -->", "<!-- end of figures -->"
QUIET = 5.0
"""Percent of the machine that other work may take."""
COLUMNS = {
    "cpu_us": "CPU us",
    "sleeps": "sleeps",
    "cpu_ms_mib": "CPU ms/MiB",
    "per_second": "/s",
    "mib_s": "MiB/s",
    "added_p50": "added p50 ms",
    "added_p99": "added p99 ms",
    **{
        f"{what}_{part}": f"{what} {part} ms"
        for what in ("took", "late", "first", "post")
        for part in ("p50", "p95", "p99", "max")
    },
    "listening_ms": "listening ms",
    "health_ms": "/health ms",
    "slowest_ms": "slowest ms",
    "list_ms": "list ms",
    "chat_ms": "chat ms",
    **{f"first_{name}_ms": f"first start: {name} ms" for name in ("listening", "list", "chat")},
    "first_cpu_s": "first start: CPU s",
    "table_ms": "/api/ls ms",
    "csv_ms": "CSV ms",
    "jsonl_ms": "JSON lines ms",
    "rss_mb": "MB",
    "unasked_mb": "unasked MB",
    "control_mb": "control route MB",
    "thousand_mb": "1,000 requests MB",
    "kb_stream": "kB/stream",
    "before_mb": "before MB",
    "during_mb": "during MB",
    "after_mb": "after MB",
    "minute_mb": "a minute later MB",
    "cold_ms": "nothing loaded ms",
    "swap_ms": "another goes ms",
    "loaded_ms": "loaded ms",
    "median_us": "median us",
    "p99_us": "p99 us",
    "others": "other work %",
}
"""The heads of figures, in the order of the columns."""


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


# ---- tables ----------------------------------------------------------------------------------------------------------

Table = list[list[str]]
"""The first line is the head."""


def table_of(relays: dict[str, Figures]) -> Table:
    """One row of the report: a line for each relay, and the program's figures as so many times nginx's."""
    names = [name for name in COLUMNS if any(name in figures for figures in relays.values())]
    lines = [["", *(COLUMNS[name] for name in names)]]
    for relay, figures in relays.items():
        lines.append([relay, *(_short(figures[name]) if name in figures else "-" for name in names)])
    own, base = relays.get(PROGRAM), relays.get(NGINX)
    if own and base:
        ratios = [_ratio(own, base, name) for name in names]
        lines.append([f"{PROGRAM} / {NGINX}", *ratios])
    return lines


def _ratio(own: Figures, base: Figures, name: str) -> str:
    """Empty for differences, and for a figure that is not there."""
    if name.startswith(("added", "others")) or not own.get(name) or not base.get(name):
        return ""
    return f"{own[name] / base[name]:.2f}x"


def goals_table(found: Combined) -> Table:
    return [["goal", "measured", "wanted (at the least)", ""], *(list(_told(goal, found)) for goal in goals(found))]


def _told(goal: Goal, found: Combined) -> tuple[str, str, str, str]:
    """Title, value, limits, verdict."""
    value = goal.value(found)
    unit = "x" if goal.times else f" {goal.unit}"
    limits = f"{'at least' if goal.at_least else 'at most'} {goal.aim:,g}{unit} ({goal.least:,g})"
    return goal.title, "-" if value is None else f"{_short(value)}{unit}", limits, goal.verdict(value)


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
    """One run: its machine, the commit of the program, its command, and the samples."""

    machine: str
    commit: str
    command: str
    samples: Samples
    left_out: list[str]

    def others(self) -> float:
        """The share of the machine, in percent, that other work took during the median load."""
        samples = [s for relays in self.samples.values() for rounds in relays.values() for s in rounds if "others" in s]
        return statistics.median(sample["others"] for sample in samples) if samples else 0.0

    def text(self) -> str:
        found = combined(self.samples)
        lines = [f"machine: {self.machine}", f"commit:  {self.commit}", f"command: {self.command}", ""]
        for row, relays in found.items():
            lines += [f"{row}: {ROWS[row].title}", f"  $ {ROWS[row].command}", as_text(table_of(relays)), ""]
        lines += [as_text(goals_table(found)), *(f"  left out: {line}" for line in self.left_out)]
        if self.others() > QUIET:
            lines.append(f"  other work took {self.others():.0f} % of the machine: do not trust these figures")
        return "\n".join(lines)

    def markdown(self) -> str:
        found = combined(self.samples)
        where = [f"{self.machine}; other work took {self.others():.0f} % of it", self.commit, f"`{self.command}`"]
        lines = [as_markdown([["machine", "commit", "command"], where]), ""]
        lines += ["### Goals", "", as_markdown(goals_table(found)), ""]
        for row, relays in found.items():
            lines += [f"### {row}: {ROWS[row].title}", "", f"`{ROWS[row].command}`", ""]
            lines += [as_markdown(table_of(relays)), ""]
        return "\n".join([*lines, *(f"Left out: {line}." for line in self.left_out)])

    def json(self) -> Mapping[str, object]:
        """Each row with where and how it was measured, all samples and the figures made of them."""
        found = combined(self.samples)
        where = {"machine": self.machine, "commit": self.commit, "run": self.command}
        rows = {
            row: {**where, "command": ROWS[row].command, "samples": relays, "combined": found[row]}
            for row, relays in self.samples.items()
        }
        return {"rows": rows, "goals": goals_table(found)[1:], "left out": self.left_out}

    def publish(self, document: Path) -> None:
        """Put the figures between the two marks of the document."""
        before, _, rest = document.read_text(encoding="utf-8").partition(BEGIN)
        _, _, after = rest.partition(END)
        document.write_text(f"{before}{BEGIN}\n\n{self.markdown()}\n\n{END}{after}", encoding="utf-8")
