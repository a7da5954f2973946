"""A configuration that changes while the installed program runs: by signal, request, watching, and by an editor."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest
from command_line import run_here
from config_files import ConfigFile, ask, running
from homes import NEVER, Home, changes_of
from program import COMMAND, Server, StartServer, fresh_environment, http, wait_gone
from waiting import wait

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals, shells and editors of POSIX")

RELOAD = "/api/config/reload"


def apart(*models: str) -> dict[str, object]:
    return {"all": {"swap": False, "members": list(models)}}


def pids(server: Server) -> dict[str, int]:
    """The port that a model process was given, to its process id."""
    found = {child.cmdline()[-1]: child.pid for child in server.children() if "--port" in child.cmdline()}
    assert all(port.isdigit() for port in found)
    return found


def heard(server: Server, text: str) -> None:
    wait(lambda: text in server.told(), within=10)


def test_a_hangup_reloads_and_spares_what_has_not_changed(serve: StartServer, file: ConfigFile) -> None:
    server = serve("--config", file.write({"m": (), "old": ()}, groups=apart("m", "old")))
    ask(server, "m")
    ask(server, "old")
    (m_port, m_pid), (_, old_pid) = sorted(pids(server).items())
    file.write({"a": (), "m": ()}, groups=apart("a", "m"))
    server.signal(signal.SIGHUP)
    heard(server, "processes out of date: old")
    ask(server, "a")
    ask(server, "m")
    wait(lambda: len(pids(server)) == 2)
    assert pids(server)[m_port] == m_pid
    assert old_pid not in pids(server).values()
    file.path.write_text("models:\n  m: {ttl: never}\n")
    server.signal(signal.SIGHUP)
    heard(server, f"[WARN] {file.path}:2:12: error: models.m.ttl")
    assert pids(server)[m_port] == m_pid
    here = fresh_environment(file.path.parent)
    checked = run_here(("config", "check", "--config", str(file.path)), file.path.parent, here)
    assert checked.returncode == 2
    assert f"{file.path}:2:12: error: models.m.ttl" in checked.stderr
    check_hangups_end_nothing(server)


def check_hangups_end_nothing(server: Server) -> None:
    """Many at once, and one after the signal that does end it."""
    for _ in range(20):
        server.signal(signal.SIGHUP)
    ask(server, "m")
    server.signal(signal.SIGINT)
    server.signal(signal.SIGHUP)
    assert server.wait(20) == 0


def test_files_are_watched(serve: StartServer, file: ConfigFile, tmp_path: Path) -> None:
    folder = tmp_path / "conf.d"
    folder.mkdir()
    server = serve("--config", file.write({"m": ()}), "--config-dir", str(folder), "--watch-config")
    ask(server, "m")
    before = pids(server)
    (folder / "more.yaml").write_text(json.dumps({"models": {"n": {"cmd": file.cmd()}}}))
    heard(server, "processes out of date: none")
    assert pids(server) == before
    assert {model["id"] for model in http(server, "GET", "/v1/models").json()["data"]} == {"m", "n"}
    ask(server, "n")
    replacement = tmp_path / "config.yaml.new"
    replacement.write_text(file.path.read_text().replace('"m"', '"renamed"'))
    (folder / "more.yaml").unlink()
    replacement.replace(file.path)
    wait(lambda: {m["id"] for m in http(server, "GET", "/v1/models").json()["data"]} == {"renamed"})
    wait(lambda: running(server) == {})
    file.path.unlink()
    ask(server, "renamed")


def test_a_drop_in_file_is_read_and_read_again(serve: StartServer, file: ConfigFile, tmp_path: Path) -> None:
    root = tmp_path / "etc"
    drop = root / "conf.d" / "10-fleet.yaml"
    drop.parent.mkdir(parents=True)
    drop.write_text(json.dumps({"models": {"m": {"cmd": file.cmd()}}}))
    server = serve("--config-root", str(root))
    ask(server, "m")
    drop.with_name("20-more.yaml").write_text(json.dumps({"models": {"n": {"cmd": file.cmd()}}}))
    server.signal(signal.SIGHUP)
    heard(server, "processes out of date: none")
    ask(server, "n")


def test_a_longer_time_to_stop_counts_for_the_end_of_the_program(serve: StartServer, file: ConfigFile) -> None:
    """Also for the watchdog, which was not told of it at the start."""
    # longer than a watchdog that knew of the old time would wait
    slow = "sh -c 'sleep 7; kill -9 $0' ${PID}"
    model = {"cmd": file.cmd("--ignore-sigterm"), "unloadTimeout": 1}
    server = serve("--grace", "0", "--config", file.write({"m": model}))
    ask(server, "m")
    children = server.children()
    file.write({"m": {**model, "unloadTimeout": 9, "cmdStop": slow}})
    assert http(server, "POST", RELOAD).json()["changed"] == []
    server.signal(signal.SIGINT)
    assert server.wait(12) == 0
    wait_gone(children)


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
    here = fresh_environment(file.path.parent)
    done = run_here(argv, file.path.parent, {**here, "EDITOR": "sed -i s/555/666/"})
    assert done.returncode == 0, done.stderr
    assert "processes out of date: none" in done.stdout
    assert json.loads(file.path.read_text())["models"]["m"]["ttl"] == 666
    ask(server, "m")
    wait(lambda: {child.pid for child in server.children()}, before.__eq__)  # a look at the machine has ended as well
