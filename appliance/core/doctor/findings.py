"""A finding of the doctor: one thing that is wrong or worth knowing, its evidence, and the remedy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct, structs

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
WRONG: tuple[Severity, ...] = ("error", "warning")
"""The severities that make the exit status 1. A note is informational and needs no action."""
LONGEST = 300
"""Longest line, in characters."""
SHOWN = 5
"""Largest number of lines shown."""


class Finding(Struct, frozen=True, kw_only=True):
    """``commands`` can be typed as they stand; ``advice`` is a sentence. At least one of them is set."""

    id: str
    severity: Severity
    title: str
    evidence: tuple[str, ...]
    """One line each; never empty."""
    advice: str = ""
    commands: tuple[str, ...] = ()


def is_wrong(findings: Iterable[Finding]) -> bool:
    """True if something has to be done."""
    return any(finding.severity in WRONG for finding in findings)


def one_line(text: str) -> str:
    """Return the first line of somebody else's message, so that a page stays one page."""
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return first if len(first) <= LONGEST else f"{first[: LONGEST - 3]}..."


def some(lines: Iterable[str]) -> tuple[str, ...]:
    """Return the first of many lines, and the number of the others."""
    every = tuple(one_line(line) for line in lines)
    more = len(every) - SHOWN
    return every if more <= 1 else (*every[:SHOWN], f"and {more} more")


def tidied(finding: Finding) -> Finding:
    """Make every line one line, and none empty, whatever names and messages the facts contain."""
    evidence = tuple(line for line in map(one_line, finding.evidence) if line)
    return structs.replace(
        finding,
        title=one_line(finding.title),
        evidence=evidence or ("nothing more is known",),
        commands=tuple(one_line(" ".join(command.splitlines())) for command in finding.commands),
    )
