"""A finding: one thing that is wrong or worth knowing, its evidence, and the remedy. Findings are compared and tidied.

Times are Unix times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Literal

from msgspec import Struct, structs

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
WRONG: tuple[Severity, ...] = ("error", "warning")
"""The severities that make the exit status 1. A note is informational and needs no action."""
LONGEST = 300  # longest line, in characters
SHOWN = 5  # largest number of lines shown


class Finding(Struct, frozen=True, kw_only=True):
    """``commands`` can be typed as they stand; ``advice`` is a sentence. At least one of them is set."""

    id: str
    severity: Severity
    title: str
    evidence: tuple[str, ...]  # one line each; never empty
    model: str = ""  # the model that it is about; empty: none, or many
    advice: str = ""
    commands: tuple[str, ...] = ()
    since: float | None = None  # when a running server first found it; None without one


def dated(findings: Iterable[Finding], known: Iterable[Finding], now: float | None = None) -> tuple[Finding, ...]:
    """Return the findings, each with the time of the same one among those ``known``, else with ``now``."""
    times = {_about(finding): finding.since for finding in known}
    return tuple(structs.replace(one, since=times.get(_about(one), now)) for one in findings)


def changes(before: Sequence[Finding], after: Sequence[Finding]) -> tuple[list[Finding], list[Finding]]:
    """Return the findings that came and those that went."""
    old, new = set(map(_about, before)), set(map(_about, after))
    came = [finding for finding in after if _about(finding) not in old]
    return came, [finding for finding in before if _about(finding) not in new]


def _about(finding: Finding) -> tuple[str, str]:
    """Return the subject of the finding: the evidence may change while the finding stays the same."""
    return finding.id, finding.title


def is_wrong(findings: Iterable[Finding]) -> bool:
    """True if something has to be done."""
    return any(finding.severity in WRONG for finding in findings)


def one_line(text: str) -> str:
    """Return the first line of another program's message, so that a page stays one page."""
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return first if len(first) <= LONGEST else f"{first[: LONGEST - 3]}..."


def some(lines: Iterable[str]) -> tuple[str, ...]:
    """Return the first of many lines, and the number of the others."""
    every = tuple(one_line(line) for line in lines)
    more = len(every) - SHOWN
    return every if more <= 1 else (*every[:SHOWN], f"and {more} more")


def found(
    severity: Severity, id: str, title: str, evidence: str | Iterable[str], advice: str, *commands: str, model: str = ""
) -> Finding:
    """Make every line one line, and none empty, whatever names and messages the facts contain."""
    told = (evidence,) if isinstance(evidence, str) else evidence
    return Finding(
        id=id,
        severity=severity,
        title=one_line(title),
        evidence=tuple(line for line in map(one_line, told) if line) or ("it gave no reason",),
        model=model,
        advice=advice,
        commands=tuple(one_line(" ".join(command.splitlines())) for command in commands),
    )


error, warning, note = (partial(found, severity) for severity in SEVERITIES)


class MachineLine(Struct, frozen=True, kw_only=True):
    """The output of ``doctor --line``, and of ``GET /api/doctor?line=1``. ``findings`` are ids, the worst first."""

    host: str
    version: str
    ok: bool
    errors: int
    warnings: int
    notes: int
    findings: tuple[str, ...]


def machine_line(host: str, version: str, findings: Sequence[Finding]) -> MachineLine:
    """The line of one machine in a list of many."""
    counts = Counter(f"{finding.severity}s" for finding in findings)
    numbers = {f"{severity}s": counts[f"{severity}s"] for severity in SEVERITIES}
    ids = tuple(finding.id for finding in findings)
    return MachineLine(host=host, version=version, ok=not is_wrong(findings), findings=ids, **numbers)
