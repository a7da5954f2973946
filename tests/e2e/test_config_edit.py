"""A configuration edited on the machine: killed at any write, by two people at once, and under a running server."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest
from config_files import ConfigFile, ask
from homes import NEVER, Home, changes_of
from program import COMMAND, StartServer, run_command

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="editors here are POSIX's shells")

OLD = "# mine\nmodels:\n  m: {cmd: 'sleep ${PORT}', ttl: 5}  # five\n"
NEW = OLD.replace("ttl: 5", "ttl: 6")
SIX = "sed -i 's/ttl: 5/ttl: 6/'"
NOBODY = "http://127.0.0.1:9"


class Editing(Home):
    """A home whose configuration and kept versions are in one folder, ``watched``; the editor makes a 5 a 6."""

    def __init__(self, folder: Path, editor: str = SIX) -> None:
        self.watched = folder / "watched"
        super().__init__(folder, {"XDG_DATA_HOME": str(self.watched / "data"), "EDITOR": editor})
        self.watched.mkdir(exist_ok=True)
        self.file = self.watched / "config.yaml"
        self.file.write_text(OLD)
        self.edit = ("config", "edit", "--config", str(self.file), "--yes", "--url", NOBODY)

    def kept(self) -> list[int]:
        return [one["number"] for one in self.json("config", "versions", "--config", str(self.file))]


@pytest.mark.slow
def test_killed_before_any_of_its_changes_the_file_is_the_old_or_the_new_one(tmp_path: Path) -> None:
    whole = Editing(tmp_path / "whole")
    assert whole.run_until(NEVER, whole.watched, *whole.edit).returncode == 0
    assert whole.file.read_text() == NEW
    changes = changes_of(whole.watched)
    renamed = [path for _, event, path in changes if event == "os.rename"]
    assert [Path(path).name for path in renamed] == ["000001", "config.yaml"]
    seen: set[str] = set()
    for number, _, _ in changes:
        home = Editing(tmp_path / f"killed-{number}")
        assert home.run_until(number, home.watched, *home.edit).returncode == -signal.SIGKILL, number
        left = home.file.read_text()
        assert left in (OLD, NEW), number
        seen.add(left)
        home.file.write_text(OLD)
        home.good(*home.edit)
        assert home.file.read_text() == NEW
        assert home.good("config", "check", "--config", str(home.file)) == "OK: 1 model\n"
        assert home.kept() == [1], "the text before is kept once"
    assert OLD in seen
    print(f"killed at each of {len(changes)} changes")


def test_of_two_edits_at_once_neither_is_lost(tmp_path: Path) -> None:
    """The first one's editor is open while the second one is made from beginning to end."""
    home = Editing(tmp_path)
    second = " ".join(["EDITOR='sed -i s/mine/hers/'", str(COMMAND), *home.edit])
    (tmp_path / "editor").write_text(f'#!/bin/sh\n{second} >/dev/null 2>&1 || exit 1\n{SIX} "$1"\n')
    (tmp_path / "editor").chmod(0o755)
    done = home.run(*home.edit, env={"EDITOR": str(tmp_path / "editor")})
    assert done.returncode == 2
    assert "has changed since you read it" in done.stderr
    assert home.file.read_text() == OLD.replace("mine", "hers")
    assert "your text is kept as version 2" in done.stderr
    shown = home.good("config", "restore", "2", "--config", str(home.file), "--yes", "--url", NOBODY)
    assert "-# hers" in shown
    assert home.file.read_text() == NEW
    assert home.kept() == [3, 2, 1]


def test_a_text_with_mistakes_is_not_written(tmp_path: Path) -> None:
    home = Editing(tmp_path, "sed -i 's/ttl: 5/ttl: never/'")
    assert f"{home.file}:3:34: error: models.m.ttl" in home.bad(*home.edit)
    assert home.file.read_text() == OLD
    assert "nothing was changed" in home.run(*home.edit, env={"EDITOR": "true"}).stderr
    assert "--yes writes without asking" in Editing(tmp_path).bad(*home.edit[:4])
    assert "there is no version 7" in home.bad("config", "restore", "7", "--config", str(home.file))
    assert "name it with --config FILE" in home.bad("config", "versions")


def test_the_running_server_reads_it_and_every_process_goes_on(serve: StartServer, file: ConfigFile) -> None:
    server = serve("--config", file.write({"m": {"ttl": 555}}))
    ask(server, "m")
    before = {child.pid for child in server.children()}
    argv = ("config", "edit", "--config", str(file.path), "--yes", "--url", server.url)
    done = run_command(*argv, cwd=file.path.parent, env={"EDITOR": "sed -i s/555/666/"})
    assert done.returncode == 0, done.stderr
    assert "processes out of date: none" in done.stdout
    assert json.loads(file.path.read_text())["models"]["m"]["ttl"] == 666
    ask(server, "m")
    assert {child.pid for child in server.children()} == before
