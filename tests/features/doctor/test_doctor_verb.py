"""``doctor`` as a user has it: on a bare machine, with sick engines, with a server, and as a support bundle."""

from __future__ import annotations

import json
import os
import platform
import socket
import tempfile
import zipfile
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest
from answering import answering
from command_line import Command
from engine_folders import Lie, make_build
from program import ANY_PORT, COMMAND, Server, StartServer, run_command
from waiting import wait

from appliance.features import embedded

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the engines of these tests are shell scripts")

SECRET = "qSecretOfTheTest7Z"
WORDS = "Zebedee whistles at noon"
ENGINES = "LLAMA_APPLIANCE_ENGINES_DIR"
NOBODY = ("--url", "http://127.0.0.1:9")


@pytest.fixture
def engines(command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of installed engines; a damaged one is there."""
    monkeypatch.setenv(ENGINES, str(tmp_path / "engines"))
    return damaged(tmp_path)


def damaged(home: Path) -> Path:
    whole = make_build(home / "engines", build="b1")
    (whole / "llama-server").write_bytes(b"#!/bin/sh\nexit 0\n")
    return home / "engines"


def findings(command: Command, *words: str) -> dict[str, dict[str, Any]]:
    done = command("doctor", "--json", *words)
    told = json.loads(done.out)
    assert done.status == (0 if told["ok"] else 1), done.err
    assert told["ok"] == all(finding["severity"] == "note" for finding in told["findings"])
    return {finding["id"]: finding for finding in told["findings"]}


def test_a_bare_machine_without_a_server(command: Command) -> None:
    told = command("doctor", *NOBODY).out
    for word in ("machine", "memory", "engine", "models    starter", "[server-not-running]", "llama-appliance serve"):
        assert word in told


def test_one_line_tells_of_a_machine(command: Command, engines: Path) -> None:
    done = command("doctor", "--line", *NOBODY)
    assert done.out.count("\n") == 1
    told = json.loads(done.out)
    assert (done.status, told["ok"], told["host"]) == (1, False, platform.node())
    assert told["findings"][: told["errors"] + told["warnings"]] == ["damaged-build"]
    assert len(told["findings"]) == 1 + told["notes"]


def test_sick_engines_are_named(command: Command, engines: Path) -> None:
    make_build(engines, "vulkan", build="b2", lie=Lie(list="crash"))
    found = findings(command, *NOBODY)
    build = found["damaged-build"]
    assert build["severity"] == "warning"
    assert "cpu/b1" in build["title"]
    assert "llama-server is changed" in build["evidence"][0]
    assert "vulkan/b2" in found["engine-cannot-list"]["title"]


def test_a_server_of_before_is_named_and_the_command_looks_itself(command: Command, engines: Path) -> None:
    with answering({"/api/version": {"version": "0.9", "llama_appliance": "0.0.1"}}) as url:
        found = findings(command, "--url", url)
    assert "server: 0.0.1" in found["other-version"]["evidence"][0]
    assert found["damaged-build"]["since"] is None


@pytest.mark.skipif(not embedded.available(), reason="the embedded engine is not here")
def test_a_running_server_is_asked_and_its_bundle_tells_no_secret(
    start_server: StartServer, command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(f"# our keys\napiKeys:\n  - {SECRET}\n", encoding="utf-8")
    engine = ("--engine", "embedded", "--threads", "1", "--", "--verbosity", "5")
    server = start_server("serve", *ANY_PORT, "--config", str(config), *engine)
    assert findings(command, "--url", server.url)["server-wants-key"]["severity"] == "warning"
    access = ("--url", server.url, "--api-key", SECRET)
    said = command.good("run", "starter", WORDS, *access).strip()
    # At this verbosity the engine prints what it answers.
    wait(lambda: command.good("logs", "starter", *access), lambda logs: said in logs)

    doctor = ("doctor", *access, "--config", str(config))
    assert "starter loaded" in command(*doctor).out
    shown = command(*doctor, "--report", "bundle.zip", "--logs")
    assert shown.status == 2
    assert "logs/model-1.log" in shown.out
    assert "read them before you send them" in shown.out
    assert "--yes" in shown.err
    assert not (tmp_path / "bundle.zip").exists()

    monkeypatch.setenv("OTHER_API_KEY", "qOtherSecret7Z")
    monkeypatch.setenv("LLAMA_ARG_ALIAS", "xqOtherSecret7Zx")
    command.good(*doctor, "--report", "bundle.zip", "--yes")
    files = unpacked(tmp_path / "bundle.zip")
    assert set(files) == {"report.json"}
    report = json.loads(files["report.json"])
    assert report["models"][0]["state"] == "loaded"
    assert report["models"][0]["options"]["--threads"] == "1"
    assert report["environment"]["LLAMA_ARG_ALIAS"] == "set"
    for private in (SECRET, "OtherSecret", "Zebedee", str(tmp_path), said, str(Path.home() / ""), socket.gethostname()):
        assert private not in files["report.json"], private

    (tmp_path / "bundle.zip").unlink()
    command.good(*doctor, "--report", "bundle.zip", "--yes", "--logs")
    files = unpacked(tmp_path / "bundle.zip")
    assert set(files) == {"report.json", "logs/program.log", "logs/model-1.log"}
    assert " I print_info: " in files["logs/model-1.log"]
    for name, text in files.items():
        assert SECRET not in text, name
        assert "qOtherSecret7Z" not in text, name


def unpacked(file: Path) -> dict[str, str]:
    with zipfile.ZipFile(file) as packed:
        return {name: packed.read(name).decode() for name in packed.namelist()}


# ---- by the server at its home ---------------------------------------------------------------------------------------


class Near:
    """A home whose commands find its server: one that is deep in the file system has no room for a socket's address."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.env = folder, {ENGINES: str(folder / "engines")}
        self.models = folder / "models"
        self.models.mkdir()

    def started(self, *words: str, under: Sequence[str] = ()) -> Server:
        return Server(words, self.folder, self.env, under=under)

    def serve(self, *words: str, under: Sequence[str] = ()) -> Server:
        words = ("serve", *ANY_PORT, "--models-dir", str(self.models), *words)
        return self.started(*words, under=under).wait_listening()

    def told(self, *words: str) -> str:
        return run_command(*words, cwd=self.folder, env=self.env, program=[*closed(), COMMAND]).stdout

    def listed(self, *words: str) -> dict[str, tuple[str, str, list[str]]]:
        """Severity, title and evidence by id."""
        found = json.loads(self.told("doctor", "--json", *words))["findings"]
        return {one["id"]: (one["severity"], one["title"], one["evidence"]) for one in found}


@pytest.fixture
def near() -> Generator[Near]:
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="m") as folder:
        yield Near(Path(folder))


def closed() -> list[str]:
    """What runs a program without root's right to read every file; nothing for another user."""
    return ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []


@pytest.mark.slow
@pytest.mark.needs("setpriv")
def test_a_server_says_what_the_command_says_at_its_home(near: Near) -> None:
    damaged(near.folder)
    (near.models / "torn.gguf").write_bytes(b"GGUF\3\0\0\0")
    (near.models / "closed.gguf").write_bytes(b"GGUF")
    (near.models / "closed.gguf").chmod(0)
    config = near.folder / "config.yaml"
    config.write_text("models:\n  gone:\n    cmd: /bin/false --port ${PORT}\n    env: [JUST_A_NAME]\n", "utf-8")
    with near.serve("--config", str(config), under=closed()) as server:
        near.told("load", "gone")
        told = wait(near.listed, lambda found: "model-failed" in found)
        assert told["model-failed"][0] == "error"
        assert told["damaged-build"][0] == "warning"
        evidence = "\n".join(told["broken-models"][2])
        assert "torn" in evidence
        assert "Permission denied" in evidence
        assert "env[0]" in told["config-warnings"][2][0]
        own = near.listed(*NOBODY, "--config", str(config), "--models-dir", str(near.models))
        changing = {"model-failed", "server-not-running", "untried"}
        assert {id: one for id, one in told.items() if id not in changing} == {
            id: one for id, one in own.items() if id not in changing
        }
        assert "models/torn.gguf" in near.told("doctor"), server.told()


@pytest.mark.slow
@pytest.mark.needs("namespaces")
def test_a_disk_that_fills_up_is_named_with_the_folder_of_models(near: Near) -> None:
    mount = f'mount -t tmpfs -o size=4m none {near.models} && exec "$@"'
    with near.serve(under=["unshare", "--mount", "sh", "-c", mount, "-"]):
        severity, _, evidence = near.listed()["disk-full"]
        assert severity == "error"
        assert evidence[0].startswith(f"{near.models}: 4.0 MiB of 4.0 MiB free")


@pytest.mark.slow
def test_watching_prints_what_comes_and_what_goes(near: Near) -> None:
    with near.serve(), near.started("doctor", "--watch") as watching:
        watching.wait_for(lambda: "models    starter" in watching.told())
        (near.models / "torn.gguf").write_bytes(b"GGUF")
        watching.wait_for(lambda: "[broken-models]" in watching.told())
        (near.models / "torn.gguf").unlink()
        watching.wait_for(lambda: "gone    A model cannot be used  [broken-models]" in watching.told())
