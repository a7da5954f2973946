"""What is made of the outcomes of two programs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from columns import Outcome, read
from known import stale
from table import explained, gained, lost, neither, table

RUN = Path(__file__).parents[1] / "tools" / "upstream_suite" / "run.py"
REAL = {"basic": [Outcome("basic.py::a", "passed"), Outcome("basic.py::b", "failed", 0.1, "no page")], "lora": []}
OURS = {"basic": [Outcome("basic.py::a", "failed", 0.1, "assert 501 == 200"), Outcome("basic.py::b", "passed")]}


def line(test: str, outcome: str, when: str = "call", reason: str = "") -> str:
    return json.dumps({"test": test, "when": when, "outcome": outcome, "seconds": 0.5, "reason": reason})


def test_what_only_one_of_them_passes_and_what_both_fail() -> None:
    assert [outcome.reason for outcome in lost(REAL, OURS)] == ["assert 501 == 200"]
    assert gained(REAL, OURS) == ["basic.py::b"]
    [missing] = lost(REAL, {"basic": []})
    assert (missing.test, missing.outcome) == ("basic.py::a", "missing")
    assert lost(REAL, {}) == []  # it was not asked for
    failing = {"basic": [Outcome("basic.py::a", "passed"), Outcome("basic.py::b", "failed", 0.1, "no page here")]}
    assert [outcome.reason for outcome in neither(REAL, failing)] == ["no page here"]
    assert neither(REAL, OURS) == []


def test_reasons_are_for_suites_tests_and_parameters() -> None:
    known = {"lora.py": "no adapter", "basic.py::a": "a page", "basic.py::b[1-x]": "only one"}
    tests = ("lora.py::z", "lora.py::z[3]", "basic.py::a[2]", "basic.py::b[1-x]", "basic.py::b[1]", "basic.py::ab")
    outcomes = [Outcome(test, "failed") for test in tests]
    reasons, unknown = explained(outcomes, known)
    assert reasons == ["2 x no adapter", "1 x a page", "1 x only one"]
    assert [one.test for one in unknown] == ["basic.py::b[1]", "basic.py::ab"]


def test_a_reason_without_a_test_is_stale_once_its_suite_was_run() -> None:
    known = {"lora.py": "no adapter", "basic.py::a": "a page"}
    missed = [Outcome("basic.py::ab", "failed")]
    assert stale(known, missed, {"basic"}) == ["basic.py::a"]
    assert stale(known, missed, {"basic", "lora"}) == ["lora.py", "basic.py::a"]
    assert stale(known, [Outcome("basic.py::a[1]", "failed")], {"basic"}) == []


def test_a_line_for_each_suite_and_their_sum() -> None:
    text = table({"real": REAL, "ours": OURS})
    assert text.splitlines() == [
        "(passed/failed/skipped seconds)",
        "suite  real       ours",
        "basic  1/1/0 0.1  1/1/0 0.1",
        "lora   0/0/0 0.0  0/0/0 0.0",
        "all    1/1/0 0.1  1/1/0 0.1",
    ]


def test_a_failure_behind_a_test_counts_and_a_success_behind_it_does_not(tmp_path: Path) -> None:
    path = tmp_path / "basic.jsonl"
    lines = [
        line("unit/test_basic.py::a", "passed"),
        line("unit/test_basic.py::a", "failed", "teardown", "left a process"),
        line("unit/test_basic.py::b", "failed", reason="assert 1 == 2"),
        line("unit/test_basic.py::c", "skipped", "setup", "no docker"),
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    found = {outcome.test: (outcome.outcome, outcome.reason) for outcome in read(path)}
    assert found == {
        "basic.py::a": ("failed", "left a process"),
        "basic.py::b": ("failed", "assert 1 == 2"),
        "basic.py::c": ("skipped", "no docker"),
    }


def test_the_page_is_not_begun_where_it_cannot_be_driven(tmp_path: Path) -> None:
    missing, home = str(tmp_path / "missing"), str(tmp_path)
    env = {"PATH": missing, "CHROMIUM": missing, "HOME": home, "XDG_CACHE_HOME": home}
    command = [sys.executable, str(RUN.with_name("page.py"))]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert [word for word in ("chromium (", "node (", "npm (") if word not in done.stderr] == []
    assert list(tmp_path.iterdir()) == []


def test_the_command_finds_everything_that_it_builds_on() -> None:
    done = subprocess.run([sys.executable, RUN, "--help"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "--columns" in done.stdout
