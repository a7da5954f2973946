"""What the doctor says: one thing that is wrong or worth knowing, what it is known by, and what helps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct, structs

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
WRONG: tuple[Severity, ...] = ("error", "warning")
"""What makes the exit status 1. A note is for who wonders; nothing has to be done about it."""
LONGEST = 300
"""Characters of a line."""
SHOWN = 5
"""Lines of many that are shown."""


class Finding(Struct, frozen=True, kw_only=True):
    """``commands`` can be typed as they stand; ``advice`` is a sentence. At least one of them is there."""

    id: str
    severity: Severity
    title: str
    evidence: tuple[str, ...]
    """One line each, never none."""
    advice: str = ""
    commands: tuple[str, ...] = ()


def is_wrong(findings: Iterable[Finding]) -> bool:
    """Whether anything has to be done."""
    return any(finding.severity in WRONG for finding in findings)


def one_line(text: str) -> str:
    """The first line of what others said, so that a page stays one."""
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return first if len(first) <= LONGEST else f"{first[: LONGEST - 3]}..."


def some(lines: Iterable[str]) -> tuple[str, ...]:
    """The first of many lines, and how many more there are."""
    every = tuple(one_line(line) for line in lines)
    more = len(every) - SHOWN
    return every if more <= 1 else (*every[:SHOWN], f"and {more} more")


def tidied(finding: Finding) -> Finding:
    """Every line one line, and none empty, whatever names and messages the facts have."""
    evidence = tuple(line for line in map(one_line, finding.evidence) if line)
    return structs.replace(
        finding,
        title=one_line(finding.title),
        evidence=evidence or ("no more is known",),
        commands=tuple(one_line(" ".join(command.splitlines())) for command in finding.commands),
    )
