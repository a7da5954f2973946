"""An update that is killed before any change it makes to the disk leaves a machine that serves."""

from __future__ import annotations

import json
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from engine_folders import Lie, make_build, pack
from homes import NEVER, Home, changes_of
from program import Server

if sys.platform == "win32":
    pytest.skip("the lying engine is a shell script", allow_module_level=True)

OLD, NEW = "linux-x64-cpu/b100", "linux-x64-cpu/b200"
RARE = 10
"""Kills of the program for each one of an update."""
SHARES = 6
"""Of the points of death: each takes some seconds."""


class Machine(Home):
    """``engines`` on a machine."""

    front = ("engines",)

    def __init__(self, folder: Path) -> None:
        self.root = folder / "engines"
        super().__init__(folder, {"LLAMA_APPLIANCE_ENGINES_DIR": str(self.root)})

    def copy(self, folder: Path) -> Machine:
        return Machine(shutil.copytree(self.folder, folder, symlinks=True))

    def state(self) -> dict[str, Any]:
        """What is remembered of changes."""
        return json.loads((self.root / "state.json").read_text())["state"]


@pytest.fixture(scope="module")
def proven(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """A machine with one proven build, to be copied."""
    machine = Machine(tmp_path_factory.mktemp("proven") / "machine")
    make_build(machine.root, build="b100")
    machine.good("prove", OLD)
    return machine


@pytest.fixture
def machine(proven: Machine, tmp_path: Path) -> Machine:
    return proven.copy(tmp_path / "machine")


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("archive")
    return pack(make_build(folder / "source", build="b200"), folder / "llama-b200-bin-linux.tar.gz")


@pytest.fixture(scope="module")
def changes(proven: Machine, archive: Path) -> list[tuple[int, str, str]]:
    """Every change that an undisturbed update makes to the disk."""
    whole = proven.copy(proven.folder.with_name("whole"))
    done = whole.run_until(NEVER, whole.root, *update_from(archive))
    assert done.returncode == 0, done.stderr
    found = changes_of(whole.root)
    assert str(whole.root / NEW) in {path for _, _, path in found}
    check_tidy(whole)
    return found


def update_from(archive: Path) -> tuple[str, ...]:
    return ("update", "--from", str(archive), "--yes")


def points(changes: list[tuple[int, str, str]], *, deep: bool, kills: int) -> list[int]:
    """Numbers of the changes to be killed at: every renaming of a folder, with --deep and --kills all.

    There are ``kills`` at least: then those at the beginning come again.
    """
    chosen = [number for number, event, _ in changes if deep or event == "os.rename"]
    return [*chosen, *chosen[: max(0, kills - len(chosen))], len(changes) + 1]


def check_tidy(machine: Machine) -> None:
    """The next command brings the update to its end, one way or the other, and leaves nothing behind."""
    table = machine.json("ls")
    assert table["update"] is None
    assert table["used"] in (f"{OLD}:CPU", f"{NEW}:CPU")
    state = machine.state()
    assert state["journal"] is None
    for line in state["lines"]:
        assert (line["current"], line["previous"]) == (NEW, [OLD])
    places = {path.parent.relative_to(machine.root).as_posix() for path in machine.root.glob("*/*/engine.json")}
    assert places == ({OLD, NEW} if state["lines"] else {OLD})
    assert not (machine.root / ".staged").exists()
    assert not (machine.root / ".work").exists()


@pytest.mark.slow
@pytest.mark.parametrize("share", range(SHARES))
def test_killed_before_any_of_its_changes_the_machine_serves_and_clears_up(
    machine: Machine,
    archive: Path,
    changes: list[tuple[int, str, str]],
    request: pytest.FixtureRequest,
    share: int,
) -> None:
    kills: int = request.config.getoption("--kills")
    numbers = points(changes, deep=bool(request.config.getoption("--deep") or kills), kills=kills // RARE)
    ours = numbers[share::SHARES]
    for number in ours:
        copy = machine.copy(machine.folder.with_name(f"killed-{number}"))
        ended = copy.run_until(number, copy.root, *update_from(archive))
        assert ended.returncode == -signal.SIGKILL or number == numbers[-1], (number, ended.stderr)
        step = (copy.state()["journal"] or {"step": "none"})["step"]
        builds = (str(copy.root / OLD), str(copy.root / NEW))
        assert any(word.startswith(builds) for word in copy.check_serves())
        check_tidy(copy)
        if number == ours[-1]:  # a tidy machine is a tidy machine, wherever it was killed
            copy.good(*update_from(archive))
            assert copy.state()["lines"][0]["current"] == NEW, number
        shutil.rmtree(copy.folder)
        print(f"killed at {number} of {len(changes)}, in the step '{step}': it serves")


@pytest.mark.parametrize(
    ("lie", "why"),
    [
        (Lie(work="garbage"), "does not work on CPU"),
        pytest.param(Lie(prompt_speed=500, generation_speed=50), "% of the speed", marks=pytest.mark.slow),
        pytest.param(Lie(load="abort"), "does not work on CPU", marks=pytest.mark.slow),
        pytest.param(Lie(work="crash", after_requests=100), "", marks=pytest.mark.slow),
    ],
)
def test_a_build_that_lies_is_not_taken(machine: Machine, tmp_path: Path, lie: Lie, why: str) -> None:
    archive = pack(make_build(tmp_path / "source", build="b200", lie=lie), tmp_path / "llama-b200.tar.gz")
    done = machine.run(*update_from(archive))
    if why:
        assert done.returncode == 1, done.stderr
        for said in (f"{NEW} is not taken", why, f"{OLD} stays in use"):
            assert said in done.stderr
        assert machine.state()["lines"] == []
        assert why in machine.state()["refused"]["why"]
        assert not (machine.root / NEW).exists()
    else:
        assert done.returncode == 0, done.stderr
        assert machine.state()["refused"] is None
    assert machine.state()["journal"] is None
    assert not (machine.root / ".staged").exists()


@pytest.mark.slow
def test_the_two_before_are_kept_and_no_more(machine: Machine, tmp_path: Path) -> None:
    for number in (200, 300, 400):
        machine.good("update", "cpu", "--from", make_build(tmp_path / "source", build=f"b{number}"), "--yes")
    found = sorted(path.parent.name for path in machine.root.glob("*/*/engine.json"))
    assert found == ["b200", "b300", "b400"]
    assert "b300 is used again" in machine.good("rollback")


def test_interrupted_by_hand_it_changes_nothing(machine: Machine, tmp_path: Path) -> None:
    """Ctrl-C while the new build loads for ever."""
    folder = make_build(tmp_path / "source", build="b200", lie=Lie(load="hang"))
    with Server(("engines", *update_from(folder)), machine.folder, machine.env) as update:
        update.wait_for(lambda: "2. proving" in update.told())
        update.signal(signal.SIGINT)
        update.wait(30)
    assert [machine.state()[name] for name in ("lines", "withdrawn", "journal")] == [[], {}, None]
    assert not (machine.root / ".staged").exists()
