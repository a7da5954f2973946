"""``doctor`` as a user has it: on a bare machine, with sick engines, with a server, and as a support bundle."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest
from engine_folders import Lie, make_build
from program import StartServer, run_command

from appliance.engines import embedded

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the engines of these tests are shell scripts")

SECRET = "qSecretOfTheTest7Z"
WORDS = "Zebedee whistles at noon"


@pytest.fixture
def engines_dir(tmp_path: Path) -> Path:
    return tmp_path / "engines"


@pytest.fixture
def nobody(free_port: object) -> str:
    assert callable(free_port)
    return f"http://127.0.0.1:{free_port()}"


def doctor(cwd: Path, *argv: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    folders = {"LLAMA_APPLIANCE_ENGINES_DIR": str(cwd / "engines")}
    return run_command("doctor", *argv, cwd=cwd, env={**folders, **(env or {})}, timeout=120)


def findings(cwd: Path, *argv: str, env: dict[str, str] | None = None) -> dict[str, dict[str, Any]]:
    outcome = doctor(cwd, "--json", *argv, env=env)
    told = json.loads(outcome.stdout)
    assert outcome.returncode == (0 if told["ok"] else 1), outcome.stderr
    assert told["ok"] == all(finding["severity"] == "note" for finding in told["findings"])
    return {finding["id"]: finding for finding in told["findings"]}


def test_a_bare_machine_without_a_server(tmp_path: Path, nobody: str) -> None:
    outcome = doctor(tmp_path, "--url", nobody)
    for word in ("machine", "memory", "engine", "models    starter", "[server-not-running]"):
        assert word in outcome.stdout, outcome.stdout + outcome.stderr
    assert "llama-appliance serve" in outcome.stdout


def test_sick_engines_are_named(tmp_path: Path, engines_dir: Path, nobody: str) -> None:
    whole = make_build(engines_dir, build="b1")
    (whole / "llama-server").write_bytes(b"#!/bin/sh\nexit 0\n")
    make_build(engines_dir, "vulkan", build="b2", lie=Lie(list="crash"))
    found = findings(tmp_path, "--url", nobody)
    damaged = found["damaged-build"]
    assert damaged["severity"] == "warning"
    assert "cpu/b1" in damaged["title"]
    assert "llama-server is changed" in damaged["evidence"][0]
    assert "vulkan/b2" in found["engine-cannot-list"]["title"]


@pytest.mark.skipif(not embedded.available(), reason="the embedded engine is not here")
def test_a_running_server_is_asked_and_its_bundle_tells_no_secret(start_server: StartServer, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(f"# our keys\napiKeys:\n  - {SECRET}\n", encoding="utf-8")
    server = start_server(
        "serve", "--listen", "127.0.0.1:0", "--engine", "embedded", "--threads", "1", "--config", str(config),
        "--", "--verbosity", "5",
    )  # fmt: skip
    refused = findings(tmp_path, "--url", server.url)
    assert refused["server-wants-key"]["severity"] == "warning"
    access = ("--url", server.url, "--api-key", SECRET)
    answer = run_command("run", "starter", WORDS, *access, cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    raw = run_command("logs", "starter", *access, cwd=tmp_path).stdout
    said = answer.stdout.strip()
    assert said in raw, "at this verbosity the engine prints what it answers"

    outcome = doctor(tmp_path, *access, "--config", str(config))
    assert "starter loaded" in outcome.stdout, outcome.stderr

    about = ("--config", str(config), "--report", "bundle.zip")
    shown = doctor(tmp_path, *access, *about, "--logs")
    assert shown.returncode == 2
    assert "logs/model-1.log" in shown.stdout
    assert "read them before you send them" in shown.stdout
    assert "--yes" in shown.stderr
    assert not (tmp_path / "bundle.zip").exists()

    env = {"OTHER_API_KEY": "qOtherSecret7Z", "LLAMA_ARG_ALIAS": "xqOtherSecret7Zx"}
    files = bundle(tmp_path, *access, *about, env=env)
    assert set(files) == {"report.json"}
    report = json.loads(files["report.json"])
    assert report["models"][0]["state"] == "loaded"
    assert report["models"][0]["options"]["--threads"] == "1"
    assert report["environment"]["LLAMA_ARG_ALIAS"] == "set"
    for private in (SECRET, "OtherSecret", "Zebedee", str(tmp_path), said, str(Path.home() / ""), socket.gethostname()):
        assert private not in files["report.json"], private

    (tmp_path / "bundle.zip").unlink()
    files = bundle(tmp_path, *access, *about, "--logs", env=env)
    assert set(files) == {"report.json", "logs/program.log", "logs/model-1.log"}
    assert " I print_info: " in files["logs/model-1.log"]
    for name, text in files.items():
        assert SECRET not in text, name
        assert "qOtherSecret7Z" not in text, name


def bundle(cwd: Path, *argv: str, env: dict[str, str]) -> dict[str, str]:
    written = doctor(cwd, *argv, "--yes", env=env)
    assert written.returncode == 0, written.stderr
    with zipfile.ZipFile(cwd / "bundle.zip") as packed:
        return {name: packed.read(name).decode() for name in packed.namelist()}
