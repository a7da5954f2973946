"""How much of the tests runs: those that need more than is here, slow ones, what a landing draws, and flaky ones."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from landing import draw

TESTS = Path(__file__).parent
MARKED = """
import pytest

@pytest.fixture
def certificate():
    raise AssertionError("nothing is set up for a test that is skipped")

@pytest.mark.needs("no-such-program", "nor-this", "sh")
def test_marked(): ...

@pytest.mark.parametrize("way", ["plain", pytest.param("other", marks=pytest.mark.needs("no-such-program"))])
def test_in_part(way): ...

def test_by_its_fixture(certificate): ...
"""
SLOW = """
import pytest
from hypothesis import settings

def test_quick(): assert settings().max_examples == 20

@pytest.mark.slow
def test_slow(): ...
"""
FAMILY = """
import pytest

@pytest.mark.slow
@pytest.mark.parametrize("case", range(4))
def test_family(case): ...

@pytest.mark.slow(only_all=True)
def test_all(): ...

@pytest.mark.needs("sh")
def test_more(): ...

def test_quick(): ...
"""
FAILING = """
from pathlib import Path

def test_good(): ...

def test_flaky():
    seen = Path("seen")
    assert seen.exists() or seen.touch()

def test_bad():
    assert Path("mended").exists()
"""
BOOTSTRAP = "import os, sys; os.execv(sys.executable, [sys.executable, '-m', 'pytest', *sys.argv[2:]])"


def run(folder: Path, *words: str) -> tuple[int, str]:
    """Exit status and output of Python in this folder, with the conftest of all tests as a plugin and an empty PATH."""
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join((str(TESTS), str(TESTS.parent))),
        "PYTEST_PLUGINS": "conftest",
        "PATH": str(folder / "missing"),
        "PYTEST_ADDOPTS": "",
    }
    done = subprocess.run([sys.executable, *words], cwd=folder, env=env, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -rfE\ntrio_mode = true\nmarkers = slow\n")
    return tmp_path


def test_a_missing_need_skips_in_one_line_for_each_reason_or_fails(folder: Path) -> None:
    (folder / "test_it.py").write_text(MARKED.replace('"sh"', repr(sys.executable)))
    status, told = run(folder, "-m", "pytest", "-k", "not fixture")
    assert status == 0
    assert told.count("needs no-such-program") == told.count("SKIPPED [1] needs nor-this") == 1
    assert "SKIPPED [2] needs no-such-program (apt-get install no-such-program)" in told
    assert "1 passed, 2 skipped" in told
    status, told = run(folder, "-m", "pytest", "-k", "not fixture", "--all-needs")
    assert status == 1
    assert "1 passed" in told
    assert "2 errors" in told


def test_a_test_needs_what_its_fixture_needs(folder: Path) -> None:
    (folder / "test_it.py").write_text(MARKED)
    status, told = run(folder, "-m", "pytest", "-m", "needs", "--collect-only", "-q")
    assert status == 0
    assert {line for line in told.splitlines() if "::" in line} == {
        "test_it.py::test_marked", "test_it.py::test_in_part[other]", "test_it.py::test_by_its_fixture",
    }  # fmt: skip


@pytest.mark.slow
def test_slow_tests_run_with_all_or_named_and_each_folder_tells_its_time(folder: Path) -> None:
    (folder / "tests" / "part").mkdir(parents=True)
    (folder / "tests" / "part" / "test_it.py").write_text(SLOW)
    for words, done in (
        ((), "1 passed, 1 deselected in "),
        (("-n", "1"), "1 passed in "),
        (("-n", "1", "tests/part"), "2 passed in "),
        (("--all",), "1 failed, 1 passed in "),  # with more examples
    ):
        _, told = run(folder, "-m", "pytest", *words)
        assert f"= {done}" in told, told
        assert re.search(r"\ntests/part \d+\n", told), told


def test_a_landing_runs_what_needs_more_and_one_slow_test_of_each_file(folder: Path) -> None:
    for file in ("test_one.py", "test_other.py"):
        (folder / file).write_text(FAMILY)
    _, told = run(folder, "-m", "pytest", "--collect-only", "-q", "--landing", "0123abc")
    for file in ("test_one.py", "test_other.py"):
        drawn = draw("0123abc", file, range(4))
        found = [line for line in told.splitlines() if line.startswith(f"{file}::")]
        assert found == [f"{file}::test_family[{drawn}]", f"{file}::test_more"], told


def test_landings_draw_every_case_and_each_file_by_itself() -> None:
    commits = [f"{number:040x}" for number in range(100)]
    pairs = {(draw(commit, "one", range(4)), draw(commit, "other", range(4))) for commit in commits}
    assert len(pairs) == 16


@pytest.mark.slow
@pytest.mark.parametrize("mended", [True, False])
def test_a_test_that_passes_only_alone_is_named(folder: Path, mended: bool) -> None:
    (folder / "test_it.py").write_text(FAILING)
    (folder / "bootstrap.py").write_text(BOOTSTRAP)
    shutil.copytree(TESTS.parent / ".ci", folder / ".ci")
    if mended:
        (folder / "mended").touch()
    status, told = run(folder, ".ci/tests.py")
    assert status == (0 if mended else 1), told
    assert [line for line in told.splitlines() if line.startswith("flaky: ")] == ["flaky: test_it.py::test_flaky"]
    assert ("1 failed, 1 passed" in told) == (not mended)
