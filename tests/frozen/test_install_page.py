"""docs/install.md as a reader follows it: its commands are run as they stand there.

Those of packages and of the service are run by test_packages.py, in a machine that boots, and so are those of many
machines, by test_many_machines.py.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from booted import PACKAGES
from frozen_harness import DIST, PATIENCE, ROOT, commands_of_the_page

pytestmark = [pytest.mark.frozen, pytest.mark.skipif(sys.platform != "linux", reason="the packages are Linux's")]

COMMANDS = commands_of_the_page()
ELSEWHERE = re.compile("macOS|launchd|Windows")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder that holds every package, and is the home of the reader."""
    for path in PACKAGES.iterdir():
        (tmp_path / path.name).symlink_to(path)
    return tmp_path


def run(place: Path, commands: list[str]) -> str:
    """Run the commands as one script; it ends at the first that fails."""
    done = subprocess.run(
        ["bash", "-e", "-c", "\n".join(commands)],
        cwd=place,
        env={"PATH": os.environ["PATH"], "HOME": str(place)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=4 * PATIENCE,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_every_block_of_commands_is_run_by_a_test() -> None:
    """A block that is added here needs a test that runs it. Those of other systems cannot be run on this one."""
    here = {heading: len(blocks) for heading, blocks in COMMANDS.items() if not ELSEWHERE.search(heading)}
    assert here == {
        "The payload": 2,
        "Linux packages": 4,
        "The tarball": 1,
        "The one-file program (AppImage)": 2,
        "Containers": 3,
        "A systemd service": 2,
        "The service's key": 1,
        "Many machines": 4,
    }


@pytest.mark.parametrize(("heading", "script"), [("The payload", "freeze"), ("Linux packages", "linux")])
def test_what_makes_payload_and_packages_takes_the_words_of_the_page(heading: str, script: str) -> None:
    """.ci/run has made what these tests look at with the same verbs."""
    [command] = COMMANDS[heading][0]
    verb = command.split()[2]
    assert f"bootstrap.py {verb}" in (ROOT / ".ci" / "run").read_text("utf-8")
    [file] = ROOT.glob(f"*/{script}.py")
    said = subprocess.run([sys.executable, file, "--help"], capture_output=True, text=True, check=True).stdout
    for option in re.findall(r"--[a-z]+", command):
        assert option in said


def test_a_signature_is_made_and_checked(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "packaging"))
    contents: ModuleType = __import__("contents")
    shutil.copyfile(DIST / "payload.json", place / "payload.json")
    make_key, show_key, verify = COMMANDS["The payload"][1]
    run(place, [make_key, show_key])
    contents.sign(place, place / "key.pem")
    assert "Verified Successfully" in run(place, [verify])


def test_the_tarball(place: Path) -> None:
    assert "0.2.0" in run(place, COMMANDS["The tarball"][0])
    assert not [path for path in place.iterdir() if path.is_dir()]


def test_the_one_file_program(place: Path) -> None:
    """The page makes the file executable; here it is a copy, so that the package stays as it is."""
    link = place / COMMANDS["The one-file program (AppImage)"][0][0].split()[-1]
    target = link.resolve()
    link.unlink()
    shutil.copyfile(target, link)
    for block in COMMANDS["The one-file program (AppImage)"]:
        assert "0.2.0" in run(place, block)
    assert not (place / ".cache" / "llama-appliance" / "unpacked").exists()
