"""Findings are compared with those before, and counted. Times are Unix times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec import Struct, structs

from appliance.core.findings import SEVERITIES, Finding, Severity

WRONG: tuple[Severity, ...] = ("error", "warning")
"""The severities that make the exit status 1."""


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
