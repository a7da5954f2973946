"""An update that is killed before any change it makes to the disk leaves a machine that serves."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from engine_folders import Lie, make_build, pack
from program import Server, fresh_environment, http

if sys.platform == "win32":
    pytest.skip("the lying engine is a shell script", allow_module_level=True)

DRIVER = Path(__file__).with_name("killed_at.py")
OLD, NEW = "linux-x64-cpu/b100", "linux-x64-cpu/b200"
NEVER = 1 << 30
RARE = 10
"""Kills of the program for each one of an update."""
SHARES = 6
"""Of the points of death: each takes some seconds."""


def engines(machine: Path, *words: str, last: int = NEVER) -> subprocess.CompletedProcess[str]:
    """Run a verb on the machine in this folder, killed right before its change number ``last``."""
    return subprocess.run(
        [sys.executable, str(DRIVER), str(last), str(machine / "engines"), "engines", *words],
        cwd=machine,
        env={**fresh_environment(machine), "LLAMA_APPLIANCE_ENGINES_DIR": str(machine / "engines")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture(scope="module")
def proven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A machine with one proven build, to be copied."""
    home = tmp_path_factory.mktemp("proven") / "machine"
    make_build(home / "engines", build="b100")
    done = engines(home, "prove", OLD)
    assert done.returncode == 0, done.stderr
    return home


@pytest.fixture
def machine(proven: Path, tmp_path: Path) -> Path:
    return shutil.copytree(proven, tmp_path / "machine", symlinks=True)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("archive")
    return pack(make_build(folder / "source", build="b200"), folder / "llama-b200-bin-linux.tar.gz")


@pytest.fixture(scope="module")
def changes(proven: Path, archive: Path) -> str:
    """The log of an update that nobody disturbs: every change it makes, by its number."""
    whole = copy_of(proven, "whole")
    done = engines(whole, *update_from(archive))
    assert done.returncode == 0, done.stderr
    log = (whole / "engines.log").read_text()
    assert str(whole / "engines" / NEW) in log
    check_tidy(whole)
    return log


def update_from(archive: Path) -> tuple[str, ...]:
    return ("update", "--from", str(archive), "--yes")


def copy_of(machine: Path, name: str) -> Path:
    return shutil.copytree(machine, machine.with_name(name), symlinks=True)


def changes_of(machine: Path) -> dict[str, object]:
    return json.loads((machine / "engines" / "state.json").read_text())["state"]


def points(log: str, *, deep: bool, kills: int) -> list[int]:
    """Numbers of the changes to be killed at: every renaming of a folder, with --deep and --kills all.

    There are ``kills`` at least: then those at the beginning come again.
    """
    lines = [line.split(" ", 2) for line in log.splitlines()]
    chosen = [int(number) for number, event, _ in lines if deep or event == "os.rename"]
    return [*chosen, *chosen[: max(0, kills - len(chosen))], len(lines) + 1]


def check_serves(machine: Path) -> None:
    """The program starts there and a model answers, on a build that is in its place."""
    environment = {"LLAMA_APPLIANCE_ENGINES_DIR": str(machine / "engines")}
    with Server(["serve", "--listen", "127.0.0.1:0"], machine, environment).wait_listening() as server:
        body = {"model": "starter", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
        answer = http(server, "POST", "/v1/chat/completions", body)
        assert answer.status == 200, (answer.body, server.told())
        assert answer.json()["choices"][0]["message"]["content"]
        used = [child.cmdline() for child in server.children()]
        builds = (str(machine / "engines" / OLD), str(machine / "engines" / NEW))
        assert any(word.startswith(builds) for words in used for word in words), used


def check_tidy(machine: Path) -> None:
    """The next command brings the update to its end, one way or the other, and leaves nothing behind."""
    listed = engines(machine, "ls", "--json")
    assert listed.returncode == 0, listed.stderr
    table = json.loads(listed.stdout)
    assert table["update"] is None
    assert table["used"] in (f"{OLD}:CPU", f"{NEW}:CPU")
    changes = changes_of(machine)
    assert changes["journal"] is None
    lines = changes["lines"]
    assert isinstance(lines, list)
    for line in lines:
        assert line["current"] == NEW
        assert line["previous"] == [OLD]
    root = machine / "engines"
    places = {path.parent.relative_to(root).as_posix() for path in root.glob("*/*/engine.json")}
    assert places == ({OLD, NEW} if lines else {OLD})
    assert not (root / ".staged").exists()
    assert not (root / ".work").exists()


@pytest.mark.slow
@pytest.mark.parametrize("share", range(SHARES))
def test_killed_before_any_of_its_changes_the_machine_serves_and_clears_up(
    machine: Path, archive: Path, changes: str, request: pytest.FixtureRequest, share: int
) -> None:
    command = update_from(archive)
    kills: int = request.config.getoption("--kills")
    numbers = points(changes, deep=bool(request.config.getoption("--deep") or kills), kills=kills // RARE)
    ours = numbers[share::SHARES]
    for number in ours:
        copy = copy_of(machine, f"killed-{number}")
        ended = engines(copy, *command, last=number)
        killed = ended.returncode == -signal.SIGKILL
        assert killed or number == numbers[-1], (number, ended.stderr, (copy / "engines.log").read_text())
        journal = changes_of(copy)["journal"]
        step = journal["step"] if isinstance(journal, dict) else "none"
        check_serves(copy)
        check_tidy(copy)
        if number == ours[-1]:  # a tidy machine is a tidy machine, wherever it was killed
            again = engines(copy, *command)
            assert again.returncode == 0, (number, again.stderr)
            lines = changes_of(copy)["lines"]
            assert isinstance(lines, list)
            assert lines[0]["current"] == NEW, number
        shutil.rmtree(copy)
        print(f"killed at {number} of {len(changes.splitlines())}, in the step '{step}': it serves")


@pytest.mark.parametrize(
    ("lie", "why"),
    [
        (Lie(work="garbage"), "does not work on CPU"),
        (Lie(load="abort"), "does not work on CPU"),
        (Lie(prompt_speed=500, generation_speed=50), "% of the speed"),
        (Lie(work="crash", after_requests=100), ""),
    ],
)
def test_a_build_that_lies_is_not_taken(machine: Path, tmp_path: Path, lie: Lie, why: str) -> None:
    archive = pack(make_build(tmp_path / "source", build="b200", lie=lie), tmp_path / "llama-b200.tar.gz")
    done = engines(machine, "update", "--from", str(archive), "--yes")
    changes = changes_of(machine)
    if why:
        assert done.returncode == 1, done.stderr
        assert f"{NEW} is not taken" in done.stderr
        assert why in done.stderr
        assert f"{OLD} stays in use" in done.stderr
        assert changes["lines"] == []
        assert not (machine / "engines" / NEW).exists()
    else:
        assert done.returncode == 0, done.stderr
    assert changes["journal"] is None
    assert not (machine / "engines" / ".staged").exists()


def test_interrupted_by_hand_it_changes_nothing(machine: Path, tmp_path: Path) -> None:
    """Ctrl-C while the new build loads for ever."""
    folder = make_build(tmp_path / "source", build="b200", lie=Lie(load="hang"))
    argv = [sys.executable, str(DRIVER), str(NEVER), str(machine / "engines")]
    environment = {**fresh_environment(machine), "LLAMA_APPLIANCE_ENGINES_DIR": str(machine / "engines")}
    with subprocess.Popen(
        [*argv, "engines", "update", "--from", str(folder), "--yes"],
        cwd=machine,
        env=environment,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stderr is not None
            assert any("2. proving" in line for line in process.stderr)
            os.kill(process.pid, signal.SIGINT)
            process.wait(30)
        finally:
            process.kill()
    changes = changes_of(machine)
    assert [changes[name] for name in ("lines", "withdrawn", "journal")] == [[], {}, None]
    assert not (machine / "engines" / ".staged").exists()
