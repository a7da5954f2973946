"""A finding: one thing that is wrong or worth knowing, its evidence, and the remedy; and the order of findings.

Each feature says its own, and the feature ``doctor`` shows them all.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Literal, get_args

from msgspec import Struct

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)
Stage = Literal[
    "missing", "start", "failures", "engines", "room", "machine", "updates", "server", "others", "choice", "limits"
]
"""The subjects of findings in their order, causes before their effects: what nothing works without, what keeps a server
from its start, what failed, cards and builds, the room for models, the rest of the machine, updates, the server's own
words, other servers, better choices, and limits that somebody has set."""
STAGES: tuple[Stage, ...] = get_args(Stage)
LONGEST = 300  # longest line, in characters
SHOWN = 5  # largest number of lines shown


class Trouble(Struct, frozen=True, kw_only=True):
    """Something that a person has to mend. ``id`` stays the same as long as it is the same trouble."""

    id: str
    text: str
    fix: str


class Finding(Struct, frozen=True, kw_only=True):
    """``commands`` can be typed as they stand; ``advice`` is a sentence. At least one of them is set."""

    id: str
    severity: Severity  # a note is informational and needs no action
    title: str
    evidence: tuple[str, ...]  # one line each; never empty
    model: str = ""  # the model that it is about; empty: none, or many
    advice: str = ""
    commands: tuple[str, ...] = ()
    since: float | None = None  # Unix time at which a running server first found it; None without one


Told = tuple[Stage, Iterable[Finding]]
"""Findings on one subject."""


def in_order(told: Iterable[Told]) -> list[Finding]:
    """Return each finding once, the gravest first; those that are as grave by stage, then in their present order."""
    by_stage = sorted(told, key=lambda one: STAGES.index(one[0]))
    unique = dict.fromkeys(finding for _, findings in by_stage for finding in findings)
    return sorted(unique, key=lambda finding: SEVERITIES.index(finding.severity))


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
