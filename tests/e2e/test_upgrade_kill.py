"""An upgrade of the program that is killed before any change it makes to the disk leaves a program that starts."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from payload_folders import NAME, make_payload, name_of, write_key
from program import fresh_environment

if sys.platform == "win32":
    pytest.skip("'upgrade' refuses to work there", allow_module_level=True)

DRIVER = Path(__file__).with_name("killed_at.py")
NEVER = 1 << 30
CHEAP = ("os.rename", "os.symlink")
"""Kinds of changes that every second one is killed at without --deep: they decide which version is found."""


def machine(home: Path) -> Path:
    """A folder with the program, a newer payload, and the publisher's key."""
    make_payload(home / "base", "0.2.0")
    make_payload(home / "new", "0.3.0")
    write_key(home / "key.pub")
    return home


def environment(home: Path) -> dict[str, str]:
    return {
        **fresh_environment(home),
        "LLAMA_APPLIANCE_PROGRAMS_DIR": str(home / "programs"),
        "STARTED_AS": str(home / "base" / NAME),
    }


def driven(home: Path, last: int, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a verb, killed right before its change number ``last`` of the folder of versions."""
    command = [sys.executable, str(DRIVER), str(last), str(home / "programs"), *words]
    return subprocess.run(
        command, cwd=home, env=environment(home), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120
    )


def upgrade(home: Path, last: int = NEVER) -> subprocess.CompletedProcess[str]:
    return driven(home, last, "upgrade", "install", str(home / "new"), "--key", str(home / "key.pub"))


def check_starts_and_tidies(home: Path) -> None:
    """The user's command starts a whole version, and clears up what was left."""
    command = [str(home / "base" / NAME), "upgrade", "list", "--json"]
    done = subprocess.run(command, cwd=home, env=environment(home), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    roles = {row["name"]: row["role"] for row in json.loads(done.stdout)}
    old, new = name_of(home / "base"), name_of(home / "new")
    assert roles in ({}, {old: ""}, {old: "previous", new: "current"}), roles
    assert not (home / "programs" / ".staged").exists()
    assert not (home / "programs" / ".work").exists()
    if (home / "programs" / "state.json").exists():
        assert json.loads((home / "programs" / "state.json").read_text())["state"]["journal"] is None


@pytest.mark.slow
def test_killed_before_any_of_its_changes_the_program_starts_and_clears_up(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    whole = machine(tmp_path / "whole")
    done = upgrade(whole)
    assert done.returncode == 0, done.stderr
    lines = [line.split(" ", 2) for line in (whole / "programs.log").read_text().splitlines()]
    assert any(f"programs/{name_of(whole / 'new')}" in path for _, _, path in lines)
    deep = bool(request.config.getoption("--deep") or request.config.getoption("--kills"))
    chosen = [int(number) for number, event, _ in lines if deep or event in CHEAP]
    numbers = chosen if deep else [*chosen[:-1:2], chosen[-1]]
    for number in numbers:
        home = machine(tmp_path / f"killed-{number}")
        ended = upgrade(home, number)
        assert ended.returncode == -signal.SIGKILL, (number, ended.stderr)
        check_starts_and_tidies(home)
        if number == numbers[len(numbers) // 2]:
            again = upgrade(home)
            assert again.returncode == 0, again.stderr
            check_starts_and_tidies(home)
        shutil.rmtree(home)
        print(f"killed at {number} of {len(lines)}: it starts")
