"""Runs `bootstrap.py test` with these words, and the tests that failed once more: alone, one after the other.

A test may fail because others share its cores. One that fails alone as well has failed. One that passes alone is
flaky: the run succeeds, and says its name in a line that begins with "flaky: ", which `.ci/run` repeats at its end.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FAILED = ROOT / ".pytest_cache" / "v" / "cache" / "lastfailed"
TEST = [sys.executable, str(ROOT / "bootstrap.py"), "test", "-o", "faulthandler_exit_on_timeout=true"]
"""A test that hangs ends its process, with the traceback of where it hangs; it has failed, and the others go on."""
TESTS_FAILED = 1
"""Pytest's status when it has run all tests and some have failed; with any other there is nothing to run again."""


def failed() -> set[str]:
    """The tests that pytest remembers as failed."""
    return set(json.loads(FAILED.read_bytes())) if FAILED.exists() else set()


def main(words: list[str]) -> int:
    FAILED.unlink(missing_ok=True)
    status = subprocess.call([*TEST, *words], cwd=ROOT)
    first = failed()
    if status != TESTS_FAILED or not first:
        return status
    print(f"\n######## {len(first)} failed; again and alone", flush=True)
    status = subprocess.call([*TEST, *words, "--last-failed", "--last-failed-no-failures", "none", "-n", "0"], cwd=ROOT)
    for name in sorted(first - failed()):
        print(f"flaky: {name}")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
