"""An upgrade of the program that is killed before any change it makes to the disk leaves a program that starts."""

from __future__ import annotations

import json
import shutil
import signal
import sys
from pathlib import Path

import pytest
from homes import NEVER, Home, changes_of
from payload_folders import NAME, make_payload, name_of, write_key

if sys.platform == "win32":
    pytest.skip("'upgrade' refuses to work there", allow_module_level=True)

CHEAP = ("os.rename", "os.symlink")
"""Kinds of changes that every second one is killed at without --deep: they decide which version is found."""


class Machine(Home):
    """A folder with the program, a newer payload, and the publisher's key."""

    def __init__(self, folder: Path) -> None:
        self.old, self.new = make_payload(folder / "base", "0.2.0"), make_payload(folder / "new", "0.3.0")
        self.programs = folder / "programs"
        write_key(folder / "key.pub")
        told = {"LLAMA_APPLIANCE_PROGRAMS_DIR": str(self.programs), "STARTED_AS": str(self.old / NAME)}
        super().__init__(folder, told, self.old / NAME)

    def upgrade(self, last: int = NEVER) -> int:
        """Killed right before change number ``last`` of the folder of versions; the exit status."""
        words = ("upgrade", "install", self.new, "--key", self.folder / "key.pub")
        return self.run_until(last, self.programs, *words).returncode

    def check_starts_and_tidies(self) -> None:
        """The user's command starts a whole version, and clears up what was left."""
        roles = {row["name"]: row["role"] for row in self.json("upgrade", "list")}
        old, new = name_of(self.old), name_of(self.new)
        assert roles in ({}, {old: ""}, {old: "previous", new: "current"}), roles
        assert not (self.programs / ".staged").exists()
        assert not (self.programs / ".work").exists()
        if (self.programs / "state.json").exists():
            assert json.loads((self.programs / "state.json").read_text())["state"]["journal"] is None


@pytest.mark.slow
def test_killed_before_any_of_its_changes_the_program_starts_and_clears_up(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    whole = Machine(tmp_path / "whole")
    assert whole.upgrade() == 0
    changes = changes_of(whole.programs)
    assert any(f"programs/{name_of(whole.new)}" in path for _, _, path in changes)
    deep = bool(request.config.getoption("--deep") or request.config.getoption("--kills"))
    chosen = [number for number, event, _ in changes if deep or event in CHEAP]
    numbers = chosen if deep else [*chosen[:-1:2], chosen[-1]]
    for number in numbers:
        machine = Machine(tmp_path / f"killed-{number}")
        assert machine.upgrade(number) == -signal.SIGKILL, number
        machine.check_starts_and_tidies()
        if number == numbers[len(numbers) // 2]:
            assert machine.upgrade() == 0
            machine.check_starts_and_tidies()
        shutil.rmtree(machine.folder)
        print(f"killed at {number} of {len(changes)}: it starts")
