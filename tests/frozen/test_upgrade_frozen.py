"""An upgrade of the frozen program: a start becomes the other version, with the environment that the user gave it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from frozen_harness import Server, bare_environment
from payload_folders import NAME, sign, write_key

pytestmark = [pytest.mark.frozen, pytest.mark.skipif(sys.platform == "win32", reason="'upgrade' refuses to work there")]
TIME = 300.0
ASKED: dict[str, object] = {"model": "starter", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}


def newer(program: Path, folder: Path) -> str:
    """A copy of the payload under a newer version, signed; its name. Its program is the same."""
    shutil.copytree(program.parent, folder, symlinks=True)
    return sign(folder, "99.0.0")


def test_an_upgrade_of_the_frozen_program_and_the_way_back(program: Path, tmp_path: Path) -> None:
    environment = bare_environment() | {"HOME": str(tmp_path), "LD_LIBRARY_PATH": "/mine", "LC_ALL": "C.UTF-8"}
    name = newer(program, tmp_path / "new")
    key = write_key(tmp_path / "key.pub")

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [str(program), "upgrade", *words]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=TIME)

    with Server(program, tmp_path, environment) as server:
        done = run("install", str(tmp_path / "new"), "--key", str(key))
        assert done.returncode == 0, done.stderr
        assert "starter answers" in done.stderr
        assert server.stop() == 0
    versions = tmp_path / ".local" / "share" / NAME / "programs"
    for folder in (versions / name, program.parent.resolve()):
        with Server(program, tmp_path, environment) as server:
            process = psutil.Process(server.process.pid)
            assert Path(process.exe()).parent == folder
            assert json.loads(server.ask("/v1/chat/completions", ASKED))["choices"]
            [engine] = [each for each in process.children(recursive=True) if "llama-server" in each.name()]
            assert Path(engine.exe()).is_relative_to(folder)
            assert engine.environ()["LD_LIBRARY_PATH"] == "/mine"
            assert server.stop() == 0
        unit = subprocess.run(
            [str(program), "service", "unit", "--user"], env=environment, capture_output=True, text=True
        )
        assert f'ExecStart="{program.resolve()}" serve' in unit.stdout, "the command that leads to the version in use"
        if folder == versions / name:
            assert run("rollback").returncode == 0
