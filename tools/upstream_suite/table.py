"""The comparison of two columns, as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from columns import Outcome
from known import Reasons, reason_for

Suites = Mapping[str, Sequence[Outcome]]

SHOWN = ("passed", "failed", "skipped")


def table(columns: Mapping[str, Suites]) -> str:
    """A line for each suite, with passed/failed/skipped and the seconds of its tests in each column, and the sums."""
    suites = list(dict.fromkeys(suite for one in columns.values() for suite in one))
    rows = [["suite", *columns]]
    rows += [[suite, *(_counts(one.get(suite, ())) for one in columns.values())] for suite in suites]
    everything = {name: [outcome for suite in one.values() for outcome in suite] for name, one in columns.items()}
    rows.append(["all", *(_counts(outcomes) for outcomes in everything.values())])
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([f"({'/'.join(SHOWN)} seconds)", *lines])


def lost(real: Suites, ours: Suites) -> list[Outcome]:
    """What ours says of the tests that the real program passes and ours does not, one that did not run included."""
    said = {outcome.test: outcome for suite in ours.values() for outcome in suite}
    wanted = [one.test for suite, outcomes in real.items() if suite in ours for one in outcomes if _passed(one)]
    found = [said.get(test) or Outcome(test, "missing", reason="did not run") for test in wanted]
    return [outcome for outcome in found if not _passed(outcome)]


def neither(real: Suites, ours: Suites) -> list[Outcome]:
    """What ours says of the tests that both fail."""
    failed = {one.test for outcomes in real.values() for one in outcomes if one.outcome == "failed"}
    return [one for outcomes in ours.values() for one in outcomes if one.outcome == "failed" and one.test in failed]


def gained(real: Suites, ours: Suites) -> list[str]:
    """The tests that only ours passes."""
    passed = {one.test for outcomes in real.values() for one in outcomes if _passed(one)}
    return [one.test for outcomes in ours.values() for one in outcomes if _passed(one) and one.test not in passed]


def explained(outcomes: Sequence[Outcome], known: Reasons) -> tuple[list[str], list[Outcome]]:
    """A line for each reason that is known, with how many tests it is for, and the tests without one."""
    reasons = Counter(reason for one in outcomes if (reason := reason_for(one.test, known)))
    return (
        [f"{count} x {reason}" for reason, count in reasons.items()],
        [one for one in outcomes if reason_for(one.test, known) is None],
    )


def _passed(outcome: Outcome) -> bool:
    return outcome.outcome == "passed"


def _counts(outcomes: Sequence[Outcome]) -> str:
    counts = "/".join(str(sum(one.outcome == kind for one in outcomes)) for kind in SHOWN)
    return f"{counts} {sum(one.seconds for one in outcomes):.1f}"
