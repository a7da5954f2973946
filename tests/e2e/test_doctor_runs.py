"""``doctor`` as a user has it: on a bare machine, with sick engines, with a server, and as a support bundle."""

from __future__ import annotations

import json
import os
import platform
import socket
import tempfile
import threading
import zipfile
from collections.abc import Callable, Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from engine_folders import Lie, make_build
from homes import Home
from program import ANY_PORT, Server, StartServer
from waiting import wait

from appliance.engines import embedded

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the engines of these tests are shell scripts")

SECRET = "qSecretOfTheTest7Z"
WORDS = "Zebedee whistles at noon"


class Machine(Home):
    """A home with a folder of engines."""

    in_process = True

    def __init__(self, folder: Path) -> None:
        self.root = folder / "engines"
        super().__init__(folder, {"LLAMA_APPLIANCE_ENGINES_DIR": str(self.root)})

    def findings(self, url: str) -> dict[str, dict[str, Any]]:
        done = self.run("doctor", "--json", "--url", url)
        told = json.loads(done.stdout)
        assert done.returncode == (0 if told["ok"] else 1), done.stderr
        assert told["ok"] == all(finding["severity"] == "note" for finding in told["findings"])
        return {finding["id"]: finding for finding in told["findings"]}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def near() -> Generator[Machine]:
    """Its commands find its server: a home that is deep in the file system has no room for a socket's address."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="m") as folder:
        yield Machine(Path(folder))


@pytest.fixture
def nobody(free_port: Callable[[], int]) -> str:
    return f"http://127.0.0.1:{free_port()}"


def test_a_bare_machine_without_a_server(machine: Machine, nobody: str) -> None:
    told = machine.run("doctor", "--url", nobody)
    for word in ("machine", "memory", "engine", "models    starter", "[server-not-running]", "llama-appliance serve"):
        assert word in told.stdout, told.stdout + told.stderr


def test_one_line_tells_of_a_machine(machine: Machine, nobody: str) -> None:
    whole = make_build(machine.root, build="b1")
    (whole / "llama-server").write_bytes(b"#!/bin/sh\nexit 0\n")
    done = machine.run("doctor", "--line", "--url", nobody)
    assert done.stdout.count("\n") == 1
    told = json.loads(done.stdout)
    assert (done.returncode, told["ok"], told["host"]) == (1, False, platform.node())
    assert told["findings"][: told["errors"] + told["warnings"]] == ["damaged-build"]
    assert len(told["findings"]) == 1 + told["notes"]


def test_sick_engines_are_named(machine: Machine, nobody: str) -> None:
    whole = make_build(machine.root, build="b1")
    (whole / "llama-server").write_bytes(b"#!/bin/sh\nexit 0\n")
    make_build(machine.root, "vulkan", build="b2", lie=Lie(list="crash"))
    found = machine.findings(nobody)
    damaged = found["damaged-build"]
    assert damaged["severity"] == "warning"
    assert "cpu/b1" in damaged["title"]
    assert "llama-server is changed" in damaged["evidence"][0]
    assert "vulkan/b2" in found["engine-cannot-list"]["title"]


@pytest.mark.skipif(not embedded.available(), reason="the embedded engine is not here")
def test_a_running_server_is_asked_and_its_bundle_tells_no_secret(
    serve: StartServer, machine: Machine, tmp_path: Path
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(f"# our keys\napiKeys:\n  - {SECRET}\n", encoding="utf-8")
    server = serve("--config", str(config), "--", "--verbosity", "5", engine="embedded")
    assert machine.findings(server.url)["server-wants-key"]["severity"] == "warning"
    access = ("--url", server.url, "--api-key", SECRET)
    answer = machine.run("run", "starter", WORDS, *access)
    assert answer.returncode == 0, answer.stderr
    said = answer.stdout.strip()
    assert said in machine.run("logs", "starter", *access).stdout, "at this verbosity the engine prints what it answers"

    doctor = ("doctor", *access, "--config", str(config))
    told = machine.run(*doctor)
    assert "starter loaded" in told.stdout, told.stderr
    shown = machine.run(*doctor, "--report", "bundle.zip", "--logs")
    assert shown.returncode == 2
    assert "logs/model-1.log" in shown.stdout
    assert "read them before you send them" in shown.stdout
    assert "--yes" in shown.stderr
    assert not (tmp_path / "bundle.zip").exists()

    machine.env |= {"OTHER_API_KEY": "qOtherSecret7Z", "LLAMA_ARG_ALIAS": "xqOtherSecret7Zx"}
    machine.good(*doctor, "--report", "bundle.zip", "--yes")
    files = unpacked(tmp_path / "bundle.zip")
    assert set(files) == {"report.json"}
    report = json.loads(files["report.json"])
    assert report["models"][0]["state"] == "loaded"
    assert report["models"][0]["options"]["--threads"] == "1"
    assert report["environment"]["LLAMA_ARG_ALIAS"] == "set"
    for private in (SECRET, "OtherSecret", "Zebedee", str(tmp_path), said, str(Path.home() / ""), socket.gethostname()):
        assert private not in files["report.json"], private

    (tmp_path / "bundle.zip").unlink()
    machine.good(*doctor, "--report", "bundle.zip", "--yes", "--logs")
    files = unpacked(tmp_path / "bundle.zip")
    assert set(files) == {"report.json", "logs/program.log", "logs/model-1.log"}
    assert " I print_info: " in files["logs/model-1.log"]
    for name, text in files.items():
        assert SECRET not in text, name
        assert "qOtherSecret7Z" not in text, name


def closed() -> list[str]:
    """What runs a program without root's right to read every file; nothing for another user."""
    return ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []


@pytest.mark.needs("setpriv")
def test_a_server_says_what_the_command_says_at_its_home(near: Machine, nobody: str) -> None:
    whole = make_build(near.root, build="b1")
    (whole / "llama-server").write_bytes(b"#!/bin/sh\nexit 0\n")
    folder = near.folder / "models"
    folder.mkdir()
    (folder / "torn.gguf").write_bytes(b"GGUF\3\0\0\0")
    (folder / "closed.gguf").write_bytes(b"GGUF")
    (folder / "closed.gguf").chmod(0)
    config = near.folder / "config.yaml"
    config.write_text("models:\n  gone:\n    cmd: /bin/false --port ${PORT}\n    env: [JUST_A_NAME]\n", "utf-8")
    words = ("--config", str(config), "--models-dir", str(folder))
    argv = ["serve", *ANY_PORT, *words]
    with Server(argv, near.folder, near.env, under=closed()).wait_listening() as server:
        assert near.run("load", "gone").returncode == 1
        told = wait(lambda: listed(near, "doctor", "--json"), lambda found: "model-failed" in found)
        assert told["model-failed"][0] == "error"
        assert told["damaged-build"][0] == "warning"
        evidence = "\n".join(told["broken-models"][2])
        assert "torn" in evidence
        assert "Permission denied" in evidence
        assert "JUST_A_NAME" in told["config-warnings"][2][0]
        own = listed(near, "doctor", "--json", "--url", nobody, *words)
        changing = {"model-failed", "server-not-running", "untried"}
        assert {id: one for id, one in told.items() if id not in changing} == {
            id: one for id, one in own.items() if id not in changing
        }
        assert "models/torn.gguf" in near.run("doctor").stdout, server.told()


def listed(machine: Machine, *words: str) -> dict[str, tuple[str, str, list[str]]]:
    """Severity, title and evidence by id, as the verb tells."""
    done = machine.run(*words, under=[*closed(), machine.program])
    return {one["id"]: (one["severity"], one["title"], one["evidence"]) for one in json.loads(done.stdout)["findings"]}


class OfBefore(BaseHTTPRequestHandler):
    """A server of a version that cannot tell what it finds."""

    def do_GET(self) -> None:
        known = self.path == "/api/version"
        body = json.dumps({"version": "0.9", "llama_appliance": "0.0.1"} if known else {"error": {"message": "no"}})
        self.send_response(200 if known else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def test_a_server_of_before_is_named_and_the_command_looks_itself(machine: Machine) -> None:
    whole = make_build(machine.root, build="b1")
    (whole / "llama-server").write_bytes(b"#!/bin/sh\nexit 0\n")
    with ThreadingHTTPServer(("127.0.0.1", 0), OfBefore) as server:
        answering = threading.Thread(target=server.serve_forever)
        answering.start()
        try:
            found = machine.findings(f"http://127.0.0.1:{server.server_address[1]}")
        finally:
            server.shutdown()
            answering.join()
    assert "server: 0.0.1" in found["other-version"]["evidence"][0]
    assert found["damaged-build"]["since"] is None


@pytest.mark.needs("namespaces")
def test_a_disk_that_fills_up_is_named_with_the_folder_of_models(near: Machine) -> None:
    folder = near.folder / "models"
    folder.mkdir()
    mount = f'mount -t tmpfs -o size=4m none {folder} && exec "$@"'
    argv = ["serve", *ANY_PORT, "--models-dir", str(folder)]
    with Server(argv, near.folder, near.env, under=["unshare", "--mount", "sh", "-c", mount, "-"]).wait_listening():
        found = json.loads(near.run("doctor", "--json").stdout)["findings"]
        (full,) = [one for one in found if one["id"] == "disk-full"]
        assert full["severity"] == "error"
        assert full["evidence"][0].startswith(f"{folder}: 4.0 MiB of 4.0 MiB free")


def test_watching_prints_what_comes_and_what_goes(near: Machine) -> None:
    folder = near.folder / "models"
    folder.mkdir()
    with (
        Server(["serve", *ANY_PORT, "--models-dir", str(folder)], near.folder, near.env).wait_listening(),
        Server(["doctor", "--watch"], near.folder, near.env) as watching,
    ):
        watching.wait_for(lambda: "models    starter" in watching.told())
        (folder / "torn.gguf").write_bytes(b"GGUF")
        watching.wait_for(lambda: "[broken-models]" in watching.told())
        (folder / "torn.gguf").unlink()
        watching.wait_for(lambda: "gone    A model cannot be used  [broken-models]" in watching.told())


def unpacked(file: Path) -> dict[str, str]:
    with zipfile.ZipFile(file) as packed:
        return {name: packed.read(name).decode() for name in packed.namelist()}
