"""Another configuration for the installed program while it runs: by signal, by watching, by request."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest
from config_files import ConfigFile, ask, running
from program import Server, StartServer, http, run_command, wait_gone
from waiting import wait

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a signal of POSIX, and its shells")

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
    checked = run_command("config", "check", "--config", str(file.path), cwd=file.path.parent)
    assert checked.returncode == 2
    assert f"{file.path}:2:12: error: models.m.ttl" in checked.stderr


def test_hangups_at_any_moment_end_nothing(serve: StartServer, file: ConfigFile) -> None:
    server = serve("--config", file.write({"m": ()}))
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


def test_a_drop_in_file_is_read_and_read_again_and_none_is_needed(
    serve: StartServer, file: ConfigFile, tmp_path: Path
) -> None:
    root = tmp_path / "etc"
    bare = serve("--config-root", str(root))
    assert [model["id"] for model in http(bare, "GET", "/v1/models").json()["data"]] == ["starter"]
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
