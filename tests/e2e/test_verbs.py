"""The installed command as a process: its start and what it imports, its addresses, its words, its end in a pipe."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fixed_work import multiples_of_fixed_work
from gguf_files import write_model
from program import ANY_PORT, COMMAND, Server, StartServer, fresh_environment, http, run_command
from slow import one_of
from waiting import wait

from appliance.core.settings import KEY_VARIABLE
from appliance.engines.named import ENGINE_VARIABLE
from appliance.start import called

STRANGE = ({}, {"Host": "evil.example"}, {"Origin": "http://evil.example"})


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such shell")
@pytest.mark.parametrize(
    "words",
    one_of(
        [
            ("serve", "--listen", "127.0.0.1:0"),
            ("serve", "--listen", "unix:s.sock", "--listen", "0.0.0.0:0", "--api-key", "secret", "--no-starter"),
            ("llama-server", "--port", "0", "--api-prefix", "/llm", "--models-dir", "models"),
        ]
    ),
)
def test_the_line_to_try_can_be_pasted_as_it_stands(
    start_server: StartServer, fake_engine: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    models = tmp_path / "models"
    models.mkdir()
    write_model(models / "it's $HOME.gguf")
    more = () if "--models-dir" in words else ("--models-dir", str(models), "--no-stores")
    server = start_server(*words, *more, env={ENGINE_VARIABLE: str(fake_engine)}, listening=False)
    line = wait(lambda: re.search(r"^  try.*?: (.+)$", server.told(), re.M), told=server.told).group(1)
    env = fresh_environment(tmp_path) | {KEY_VARIABLE: "secret"}  # a home deep in the file system has no socket
    done = subprocess.run(["sh", "-c", line], cwd="/", env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, ""), line
    assert done.stdout.startswith("Once upon a time")
    assert "secret" not in server.told()


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such shell")
def test_a_message_names_the_program_so_that_a_shell_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / COMMAND.name).write_text("#!/bin/sh\nexit 9\n")
    (other / COMMAND.name).chmod(0o755)
    monkeypatch.setattr(sys, "argv", [str(COMMAND)])
    for folders, name in (((COMMAND.parent,), "llama-appliance"), ((), str(COMMAND)), ((other,), str(COMMAND))):
        path = os.pathsep.join([*map(str, folders), "/usr/bin", "/bin"])
        monkeypatch.setenv("PATH", path)
        assert called() == name
    told = run_command("ps", "--url", "http://127.0.0.1:9", cwd=tmp_path, env={"PATH": path}).stderr
    assert f"'{COMMAND} serve'" in told
    version = ["sh", "-c", f"{called()} --version"]
    env = fresh_environment(tmp_path) | {"PATH": path}
    assert subprocess.run(version, env=env, cwd="/", timeout=60).returncode == 0


@pytest.mark.parametrize("verb", one_of(["--help", "version"]))
def test_help_is_quick(tmp_path: Path, verb: str) -> None:
    """The goal is 150 ms on a quiet machine. Either costs 1.3 to 1.7 times the fixed work, busy or not."""
    assert multiples_of_fixed_work(lambda: run_command(verb, cwd=tmp_path)) < 2.2


def test_a_further_address_is_served_under_the_same_rules_although_a_preload_fails(
    serve: StartServer, free_port: Callable[[], int], tmp_path: Path
) -> None:
    """llama.cpp's newer clients look at port 9931 while the server stays at its own."""
    port = free_port()
    argv = ("--no-stores", "--also-listen", f"127.0.0.1:{port}")
    further = f"unix:{tmp_path / 's.sock'}" if os.name == "posix" else f"127.0.0.1:{free_port()}"
    preload = ("--preload", "nobody", "--preload", "starter")
    server = serve(*argv, "--also-listen", further, *preload, LLAMA_APPLIANCE_API_KEY="secret")
    key = {"Authorization": "Bearer secret"}
    first, *_ = server.told().splitlines()
    assert re.fullmatch(rf"llama-appliance \S+ listening on {server.url} and http://127.0.0.1:{port} and .*", first)
    assert further in first
    server.port = port
    assert http(server, "GET", "/v1/models").status == 401
    statuses = [http(server, "GET", "/v1/models", **key, **more).status for more in STRANGE]
    assert statuses == [200, 403, 403]
    server.wait_for(lambda: http(server, "GET", "/models", **key).json()["data"][0]["status"]["value"] == "loaded")
    assert "cannot preload: model 'nobody' not found" in server.told()
    second = run_command("serve", *ANY_PORT, *argv, cwd=tmp_path)
    assert second.returncode == 2
    told = f"cannot listen on 127.0.0.1:{port}: another llama-appliance listens there already; "
    advice = "choose another with --also-listen, or leave it out"
    assert second.stderr == f"llama-appliance: error: {told}{advice}\n"


def test_a_reader_that_leaves_is_no_error(tmp_path: Path) -> None:
    with subprocess.Popen(
        [str(COMMAND), "ls"],
        cwd=tmp_path,
        env=fresh_environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()


ON_DEMAND = (
    "quart", "werkzeug", "jsonschema", "rich", "huggingface_hub", "filelock", "trio_websocket", "importlib.metadata",
    "email", "prometheus_client", "asyncio", "difflib",
    "opentelemetry", "google.protobuf", "appliance.features.traces.otlp",
    "appliance.http.control.app", "appliance.features.tools.mcp_server", "appliance.features.tools.tool_routes",
    "appliance.features.tools.core.mcp_serving", "appliance.features.tools.builtins",
    "appliance.features.tools.mcp_client",
    "appliance.features.embedded.start", "appliance.features.embedded.params", "re2",
    "appliance.features.pool.owner", "appliance.features.pool.core.keys", "appliance.features.pool.door",
    "nacl", "wsgiref", "appliance.features.engines.core.trials", "appliance.features.page.static_files",
    "appliance.features.anthropic.core", "appliance.features.responses.core", "appliance.features.repairs.core.plan",
    "appliance.features.ollama.core", "appliance.features.ollama.known", "appliance.features.ollama.routes",
    "appliance.features.lm_studio.reading", "appliance.features.lm_studio.routes",
    "appliance.features.conversations.file_routes", "appliance.features.conversations.documents",
    "appliance.features.conversations.store", "appliance.features.cors_proxy.proxy", "appliance.features.pool.edges",
    "appliance.features.tools.chat_tools", "appliance.features.traces.rules", "appliance.features.downloads.sources",
)  # fmt: skip
ON_DEMAND_OF_A_ROUTE = (
    "yaml", "appliance.features.doctor.examining", "appliance.features.config_editing.edits",
    "appliance.features.launch.core", "appliance.features.runs.run", "appliance.features.conversations.store",
    "appliance.features.engines.findings",
)  # fmt: skip
"""What one route needs that another one has brought Quart for: each is half a megabyte, or more."""
BEHIND = re.compile(r"(quart|hypercorn|werkzeug|flask|jinja2|h2|asyncio)\b")
"""What comes with Quart."""
PROBED = (
    *("/health", "/v1/health", "/v1/models", "/models", "/v1/models/m", "/running", "/metrics", "/props", "/slots"),
    "/api/pool",
)
BROWSED = (
    *("/", "/ui/", "/ui/status", "/ui/sandbox", "/ui/assets/none.js", "/upstream", "/wol-health", "/favicon.ico"),
    *("/sw.js", "/manifest.webmanifest", "/_app/version.json", "/robots.txt", "/.well-known/security.txt"),
)
UNSAMPLED = ("psutil", "appliance.platform.sampler", "json", "dataclasses")
"""The first sample of the machine needs these, and none is taken where samples are off; so do edits of bodies, secrets,
and plugins with settings.
"""
MOST = 428
"""Modules of the program that a start imports, each at a third of a millisecond. One that only some requests need is
imported by the first of those (`appliance.http.late`); raise this for what every start needs.
"""
UNCONFIGURED = ("appliance.core.config.load", "appliance.core.config.secret_places", "yaml")
CONFIGURATION = """\
performance: {disabled: true}
models:
  m:
    cmd: >
      serve
      --port ${PORT}
    aliases: [a, "b"]
"""


def imported_by(server: Server) -> set[str]:
    return set(re.findall(r"^import time: +\d+ \| +\d+ \| +(\S+)$", server.told(), re.MULTILINE))


@pytest.mark.parametrize("mode", ["serve", "configured", *one_of(["single", "router"])])
def test_an_idle_server_has_not_imported_what_few_requests_need(
    start_server: StartServer, fake_engine: Path, tmp_path: Path, mode: str
) -> None:
    model = write_model(tmp_path / "m.gguf")
    config = tmp_path / "c.yaml"
    config.write_text(CONFIGURATION)
    words = {
        "configured": ("serve", "--config", str(config), "--listen", "127.0.0.1:0"),
        "serve": ("serve", "--listen", "127.0.0.1:0"),
        "router": ("llama-server", "--port", "0"),
        "single": ("llama-server", "-m", str(model), "--port", "0"),
    }
    server = start_server(*words[mode], env={ENGINE_VARIABLE: str(fake_engine), "PYTHONPROFILEIMPORTTIME": "1"})
    wait(lambda: re.search(r"^ +models:|^main: model loaded", server.told(), re.MULTILINE), within=30, told=server.told)
    imported = imported_by(server)
    assert {"trio", "appliance.main", "appliance.http.way.gateway"} <= imported
    if sys.platform == "win32":
        imported.discard("asyncio")  # Trio itself takes its pipes from there
    assert sorted(imported & {*ON_DEMAND, *(UNSAMPLED if mode == "configured" else UNCONFIGURED)}) == []
    assert not [name for name in imported if name.startswith("appliance_plugin_")]
    assert len([name for name in imported if name.partition(".")[0] == "appliance"]) <= MOST
    for path in (*PROBED, *BROWSED):
        assert http(server, "GET", path, Accept="text/html").status != 500, path
    assert http(server, "POST", "/health").status == 404
    assert sorted(name for name in imported_by(server) - imported if BEHIND.match(name)) == []
    assert http(server, "GET", "/api/agents" if mode in ("serve", "configured") else "/tools").status in (200, 403)
    if mode == "serve":
        assert "quart" in server.told()
        assert sorted(imported_by(server) & {*ON_DEMAND_OF_A_ROUTE}) == []
