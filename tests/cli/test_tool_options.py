"""Tools on the command line and in the configuration: the same choice, and it never reaches a model process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import Command

from appliance.catalog.catalog import Catalog
from appliance.core.settings import ToolSettings
from appliance.core.tools.specs import NAMES
from appliance.settings import AppSettings

SERVERS = {"mcpServers": {"one": {"command": "true"}, "two": {"command": "true"}}}


def parsed(command: Command, *argv: str) -> AppSettings:
    outcome = command(*argv)
    assert isinstance(outcome.program, AppSettings), outcome.err
    return outcome.program


@pytest.mark.parametrize("verb", ["serve", "llama-server"])
def test_there_are_none_unless_they_are_asked_for(command: Command, verb: str) -> None:
    assert parsed(command, verb).tools == ToolSettings()


@pytest.mark.parametrize("verb", ["serve", "llama-server"])
def test_they_are_named(command: Command, verb: str, tmp_path: Path) -> None:
    app = parsed(command, verb, "--tools", "get_info,read_file", "--tools-root", str(tmp_path))
    assert app.tools == ToolSettings(builtin=("read_file", "get_info"), root=str(tmp_path))
    assert parsed(command, verb, "--tools", "all", "--tools-runtime", "ssh:h").tools.runtime == "ssh:h"
    agent = parsed(command, verb, "--agent")
    assert (agent.tools.builtin, agent.http.cors_proxy) == (NAMES, True)
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps(SERVERS))
    app = parsed(command, verb, "--mcp-servers-config", str(file), "--mcp-servers-json", json.dumps(SERVERS))
    assert [server.name for server in app.tools.mcp.servers] == ["one", "two"]
    assert app.tools.builtin == ()


def test_pages_of_other_places_are_shut_out(command: Command) -> None:
    for argv in (("--tools", "all"), ("--agent",), ("--mcp-servers-json", json.dumps(SERVERS))):
        http = parsed(command, "llama-server", *argv).http
        assert (http.cors.origins, http.open_inference) == ("localhost", False)
        assert parsed(command, "llama-server", *argv, "--cors-origins", "*").http.cors.origins == "*"
        named = parsed(command, "llama-server", *argv, "--cors-origins", "https://app.example").http
        assert (named.cors.origins, named.open_inference) == ("https://app.example", False)
    plain = parsed(command, "llama-server", "--no-agent").http
    assert (plain.cors.origins, plain.open_inference) == ("localhost", True)


@pytest.mark.parametrize("mode", [(), ("-m", "MODEL")])
def test_no_model_process_gets_any_of_it(command: Command, tmp_path: Path, mode: tuple[str, ...]) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(b"GGUF")
    (tmp_path / "presets.ini").write_text(f"[m]\nmodel = {model}\ntools = all\ntools-root = /\n")
    flags = ("--tools", "all", "--agent", "--tools-runtime", "ssh:h", "--mcp-servers-json", json.dumps(SERVERS))
    more = tuple(str(model) if word == "MODEL" else word for word in mode)
    presets = () if mode else ("--models-preset", str(tmp_path / "presets.ini"))
    app = parsed(command, "llama-server", *flags, *more, *presets)
    catalog = Catalog(app.sources, app.config)
    words = [*app.fleet.engine_args, *(word for model in catalog.scan().models for word in model.args)]
    assert set(words) <= {"--ui-mcp-proxy"}  # by which the model process says in /props that there is a proxy
    assert catalog.snapshot.models


def test_the_configuration_says_the_same(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        "models: {}\ntools:\n  enable: [read_file]\n  root: /srv\nmcp_servers:\n  one:\n    command: true-one\n"
    )
    app = parsed(command, "serve", "--config", str(file), "--mcp-servers-json", json.dumps(SERVERS))
    assert (app.tools.builtin, app.tools.root) == (("read_file",), "/srv")
    assert [server.name for server in app.tools.mcp.servers] == ["one", "two"]
    assert app.tools.mcp.servers[0].command == "true"
    assert parsed(command, "serve", "--config", str(file), "--tools", "get_info").tools.builtin == ("get_info",)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tools:\n  enable: [read_files]\n", 'tools: unknown tool "read_files"'),
        ("tools:\n  enable: [all]\n  runtime: lxc:x\n", "unknown tool runtime"),
        ("tools:\n  enabled: [all]\n", "enabled"),
        ("mcp_servers:\n  one: 5\n", "mcp_servers"),
    ],
)
def test_mistakes_of_the_configuration_are_told(command: Command, tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "config.yaml").write_text(f"models: {{}}\n{text}")
    outcome = command("serve", "--config", str(tmp_path / "config.yaml"))
    if "enabled" in text:  # an unknown key is no reason not to start
        assert words in outcome.err
        return
    assert outcome.status == 2
    assert words in outcome.err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--tools", "bogus"), 'unknown tool "bogus"; there are read_file, '),
        (("--mcp-servers-json", "{"), "--mcp-servers-json is not valid JSON"),
        (("--mcp-servers-config", "/no/such/file"), f"--mcp-servers-config {Path('/no/such/file')} cannot be read"),
        (("--tools", "all", "--tools-runtime", "x:y"), "unknown tool runtime"),
    ],
)
@pytest.mark.parametrize(("verb", "status"), [("serve", 2), ("llama-server", 1)])
def test_mistakes_of_the_command_line_are_told(
    command: Command, verb: str, status: int, argv: tuple[str, ...], words: str
) -> None:
    outcome = command(verb, *argv)
    assert (outcome.program, outcome.status) == (None, status)
    assert words in outcome.err


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_a_root_that_is_none_ends_the_start(tmp_path: Path) -> None:
    """The whole program, as it would be started: it never listens."""
    words = ["serve", "--listen", "127.0.0.1:0", "--no-starter", "--tools", "read_file", "--tools-root"]
    command = [sys.executable, "-m", "appliance", *words, str(tmp_path / "no")]
    env = os.environ | {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path), "LLAMA_CACHE": str(tmp_path)}
    engine = tmp_path / "llama-server"
    engine.write_text("#!/bin/sh\nexit 0\n")
    engine.chmod(0o755)
    done = subprocess.run([*command, "--engine", str(engine)], capture_output=True, text=True, timeout=60, env=env)
    assert done.returncode == 2, done.stderr
    assert "--tools-root" in done.stderr
    assert "listening" not in done.stderr
