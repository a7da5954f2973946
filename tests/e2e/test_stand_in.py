"""``llama-appliance llama-server``: a program that expects llama-server must not notice the difference."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import pytest
from program import COMMAND, Server, StartServer, fresh_environment, http, one_engine, run_command, wait_gone
from waiting import wait

from appliance.core.engines.listing import parse_manual
from appliance.engines.found import ENGINE_VARIABLE, is_this_program
from appliance.main import LIVED

CHAT = {"messages": [{"role": "user", "content": "Hello!"}], "temperature": 0}


@pytest.fixture
def stand_in(start_server: StartServer, engine: str, starter_model: Path):
    def start(*argv: str, env: dict[str, str] | None = None, listening: bool = True) -> Server:
        more = {ENGINE_VARIABLE: engine, **(env or {})}
        words: Sequence[str] = ("llama-server", "--model", str(starter_model), "-t", "1", "--port", "0", *argv)
        return start_server(*words, env=more, listening=listening)

    return start


def test_it_serves_the_one_model_whatever_the_request_names(stand_in, starter_model: Path) -> None:
    server = stand_in("--ctx-size", "2048", "--no-slots")
    server.wait_healthy()
    answers = [
        http(server, "POST", "/v1/chat/completions", {**CHAT, **more}) for more in ({}, {"model": "gpt"}, {"model": ""})
    ]
    texts = [answer.json()["choices"][0]["message"]["content"] for answer in answers]
    assert len(set(texts)) == 1
    listed = http(server, "GET", "/v1/models").json()
    assert [model["id"] for model in listed["data"]] == [starter_model.name]
    assert listed["models"]
    props = http(server, "GET", "/props").json()
    assert props["default_generation_settings"]["n_ctx"] == 2048
    assert http(server, "GET", "/slots").status == 501
    assert http(server, "GET", "/metrics").status == 501, "without --metrics, as llama-server has it"
    assert http(server, "POST", "/tokenize", {"content": "Hello"}).json()["tokens"]
    assert http(server, "GET", "/models/load").status == 404


@one_engine
def test_aliases_keys_prefix_and_pages_from_everywhere(stand_in) -> None:
    server = stand_in("--alias", "zeta,alpha", "--api-prefix", "/llama", env={"LLAMA_API_KEY": "secret"})
    wait(lambda: http(server, "GET", "/llama/v1/models", Authorization="Bearer secret").status == 200, within=30)
    listed = http(server, "GET", "/llama/v1/models", Authorization="Bearer secret", Origin="http://page.example")
    (model,) = listed.json()["data"]
    assert (model["id"], sorted(model["aliases"])) == ("alpha", ["alpha", "zeta"])
    assert listed.headers["Access-Control-Allow-Origin"] == "http://page.example"
    refused = http(server, "POST", "/llama/v1/chat/completions", CHAT)
    assert refused.status == 401
    assert refused.json()["error"]["message"] == "Invalid API Key"
    assert http(server, "POST", "/llama/v1/chat/completions", CHAT, x_api_key="secret").status == 200


@one_engine
def test_the_environment_is_read_as_llama_server_reads_it(
    start_server: StartServer, engine: str, starter_model
) -> None:
    server = start_server(
        "llama-server",
        env={
            ENGINE_VARIABLE: engine,
            "LLAMA_ARG_MODEL": str(starter_model),
            "LLAMA_ARG_PORT": "0",
            "LLAMA_ARG_THREADS": "1",
            "LLAMA_ARG_N_PREDICT": "2",
        },
    )
    server.wait_healthy()
    answer = http(server, "POST", "/v1/chat/completions", CHAT).json()
    assert answer["usage"]["completion_tokens"] == 2


def test_a_model_that_cannot_be_loaded_ends_it(
    start_server: StartServer, engine: str, tmp_path: Path, starter_model: Path
) -> None:
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(starter_model.read_bytes().replace(b"llama.block_count", b"llama.block_cuont"))
    for path in (damaged, tmp_path / "missing.gguf"):
        server = start_server(
            *("llama-server", "-m", str(path), "--port", "0", "-t", "1"),
            env={ENGINE_VARIABLE: engine},
            listening=False,
        )
        assert server.wait(30) == 1
        assert path.name in server.told()
        assert "Traceback" not in server.told()


@pytest.mark.skipif(sys.platform == "win32", reason="signals as POSIX has them")
def test_sigterm_ends_it_within_three_seconds_however_busy(stand_in) -> None:
    server = stand_in()
    server.wait_healthy()
    children = server.children()
    body = json.dumps({"prompt": "Once", "stream": True, "ignore_eos": True, "n_predict": 8000}).encode()
    with socket.create_connection((server.host, server.port), timeout=10) as client:
        head = f"POST /completion HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        client.sendall(head.encode() + body)
        assert client.recv(64).startswith(b"HTTP/1.1 200")
        server.signal(signal.SIGTERM)
        assert server.wait(10) == 0
    wait_gone(children)


@pytest.mark.skipif(sys.platform == "win32", reason="signals as POSIX has them")
def test_it_is_not_healthy_while_the_model_loads_and_can_be_ended_then(
    start_server: StartServer, fake_engine: Path, starter_model: Path
) -> None:
    server = start_server(
        *("llama-server", "-m", str(starter_model), "--port", "0"),
        env={ENGINE_VARIABLE: str(fake_engine), "FAKE_LOAD_DELAY": "60"},
    )
    answer = http(server, "GET", "/health")
    assert answer.status == 503
    assert answer.json()["error"]["type"] == "unavailable_error"
    children = server.children()
    server.signal(signal.SIGTERM)
    assert server.wait(20) == 0
    wait_gone(children)


def test_the_router_tells_what_its_models_print(
    start_server: StartServer, fake_engine: Path, starter_model: Path
) -> None:
    env = {ENGINE_VARIABLE: str(fake_engine), "FAKE_LOG_LINES": "3"}
    server = start_server("llama-server", "--models-dir", str(starter_model.parent), "--port", "0", env=env)
    name = starter_model.stem
    assert http(server, "POST", "/tokenize", {"model": name, "content": "a"}).status == 200
    said = [line for line in server.told().splitlines() if "of 3" in line]
    assert len(said) == 3
    assert all(line.startswith(f"[{name}] ") for line in said)


def wait_told(server: Server, text: str) -> None:
    wait(lambda: text in server.told(), within=30, told=server.told)


def test_an_engine_that_dies_is_started_again_and_one_that_keeps_dying_ends_it(stand_in) -> None:
    server = stand_in()
    wait_told(server, "main: model loaded")
    time.sleep(LIVED)
    for engine in server.children():
        if "--model" in engine.cmdline():
            engine.kill()
    wait_told(server, "it died: ")
    server.wait_healthy()
    assert http(server, "POST", "/completion", {"prompt": "a", "n_predict": 1}).status == 200

    def ended() -> bool:
        for engine in server.children() if server.process.poll() is None else ():
            with contextlib.suppress(psutil.Error):
                if "--model" in engine.cmdline():
                    engine.kill()
        return server.process.poll() is not None

    wait(ended, within=60)
    assert server.wait(10) == 1
    assert "Traceback" not in server.told()


@one_engine
def test_a_port_that_is_taken_is_told_in_llama_servers_words(stand_in, starter_model: Path, tmp_path: Path) -> None:
    server = stand_in()
    words = ("llama-server", "-m", str(starter_model), "--port", str(server.port))
    again = run_command(*words, cwd=tmp_path)
    assert again.returncode == 1
    assert f"cannot listen on 127.0.0.1:{server.port}: another llama-appliance listens there" in again.stderr
    assert f"--port {server.port + 1}" in again.stderr
    assert again.stderr.count("\n") == 1


def test_the_default_port_is_that_of_the_engine(
    start_server: StartServer, fake_engine: Path, starter_model: Path, free_port: Callable[[], int], tmp_path: Path
) -> None:
    """llama.cpp moved from 8080 to 9931 in b11521. A build says in its help which one it takes."""
    port, said = free_port(), free_port()
    words = ("llama-server", "-m", str(starter_model), "-t", "1")
    help_text = f"--port PORT                             port to listen (default: {port})\n"
    environment = {ENGINE_VARIABLE: str(fake_engine), "FAKE_HELP": help_text}
    server = start_server(*words, env=environment)
    assert server.port == port
    assert server.told().count(f"port {port} is the default of this llama.cpp") == 1
    for more, env in (
        (("--port", str(said)), {}),
        ((), {"LLAMA_ARG_PORT": str(said)}),
        ((), {"AIP_MODE": "PREDICTION"}),
    ):
        vertex = {"AIP_HTTP_PORT": str(said)} if env.get("AIP_MODE") else {}
        other = start_server(*words, *more, env={**environment, **env, **vertex})
        assert other.port == said
        assert "is the default of this llama.cpp" not in other.told()
        other.process.terminate()
        other.wait(20)
    assert run_command(*words, cwd=tmp_path, env=environment).returncode == 1, "it is taken"
    if os.name == "nt":
        return
    in_file = start_server(*words, "--host", str(tmp_path / "s.sock"), env=environment, listening=False)
    in_file.wait_for(lambda: "listening on unix:" in in_file.told())
    assert "is the default of this llama.cpp" not in in_file.told()


def test_each_real_engine_says_its_default_port(every_engine: list[str], tmp_path: Path) -> None:
    """The embedded engine is built from b11549, whose llama-server takes 9931; the pinned build is b11434."""
    for engine in every_engine:
        command = [sys.executable, "-P", "-m", "appliance.engines.embedded"] if engine == "embedded" else [engine]
        done = subprocess.run([*command, "--help"], capture_output=True, text=True, timeout=60, check=True)
        manual = parse_manual(done.stdout)
        assert manual.port == (9931 if engine == "embedded" else 8080)
        assert manual.names("--kv-unified-per-slot")
        assert manual.names("--cache-ram")
        assert manual.names("--moe-cache-mib") is (engine == "embedded")


def test_what_the_engine_has_said_is_there_when_it_is_healthy(
    start_server: StartServer, fake_engine: Path, starter_model: Path
) -> None:
    env = {ENGINE_VARIABLE: str(fake_engine), "FAKE_LOG_LINES": "5000"}
    server = start_server("llama-server", "-m", str(starter_model), "--port", "0", env=env)
    server.wait_healthy()
    said = [line for line in server.told().splitlines() if "of 5000" in line]
    assert [int(line.split(" line ")[1].split()[0]) for line in said] == list(range(1, 5001))


def test_the_version_is_the_engines_own_and_help_explains_every_option(engine: str, tmp_path: Path) -> None:
    env = {ENGINE_VARIABLE: engine}
    version = run_command("llama-server", "--version", cwd=tmp_path, env=env)
    assert version.returncode == 0
    assert "version" in version.stdout + version.stderr
    helped = run_command("llama-server", "--help", cwd=tmp_path, env=env)
    assert helped.returncode == 0
    lines = helped.stdout.splitlines()
    assert lines[0] == "usage: llama-server [options]"
    at = next(number for number, line in enumerate(lines) if line.startswith("-c, --ctx-size N"))
    assert "tokens of context" in lines[at]
    assert "(env: LLAMA_ARG_CTX_SIZE)" in lines[at]


@pytest.mark.skipif(os.name == "nt", reason="a link there is no program")
def test_a_link_called_llama_serves(fake_engine: Path, starter_model: Path, tmp_path: Path) -> None:
    """The unified program of llama.cpp is called with `serve`; scripts go on if a link takes its name."""
    link = tmp_path / "llama"
    link.symlink_to(COMMAND)
    env = {**fresh_environment(tmp_path), ENGINE_VARIABLE: str(fake_engine)}
    words = ("serve", "-m", str(starter_model), "--port", "0")
    with subprocess.Popen([link, *words], env=env, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as served:
        assert served.stderr is not None
        told = next(line for line in served.stderr if "listening on http" in line)
        served.terminate()
        assert served.wait(20) == 0, told
    refused = subprocess.run([link, "cli", "-m", "x"], env=env, capture_output=True, text=True, timeout=60)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "llama-appliance run MODEL" in refused.stderr
    version = subprocess.run([link, "version"], env=env, capture_output=True, text=True, timeout=60, check=True)
    assert "version: 11434" in version.stderr


@one_engine
def test_it_is_installed_under_the_name_that_scripts_use(tmp_path: Path, starter_model: Path, engine: str) -> None:
    program = COMMAND.with_name("llama-server.exe" if sys.platform == "win32" else "llama-server")
    env = {**fresh_environment(tmp_path), ENGINE_VARIABLE: engine}
    done = subprocess.run([program, "--help"], env=env, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("usage: llama-server [options]")
    assert is_this_program(program), "it is never taken for an engine"


@one_engine
def test_options_of_the_seeds_time_are_understood_or_told(
    start_server: StartServer, engine: str, starter_model: Path
) -> None:
    words = ("-m", str(starter_model), "-t", "1", "--port", "0", "-fa", "--log-colors", "off", "-dkvc", "-cd", "64")
    env = {ENGINE_VARIABLE: engine, "LLAMA_ARG_NO_WEBUI": "1", "LLAMA_ARG_MLOCK": "off", "LLAMA_LOG_VERBOSITY": "3"}
    server = start_server("llama-server", *words, "-c", "256", env=env)
    server.wait_healthy()
    assert http(server, "GET", "/").status == 404, "without the page"
    assert http(server, "POST", "/v1/chat/completions", {**CHAT, "max_tokens": 2}).status == 200
    assert "warning: -dkvc has no effect" in server.told()
    assert "warning: -cd has no effect" in server.told()
    argv = next(found for child in server.children() if "--alias" in (found := child.cmdline()))
    assert argv[argv.index("-fa") + 1] == "on"
    assert argv[argv.index("--log-verbosity") + 1] == "3"


@pytest.mark.parametrize("engine", ["embedded"], indirect=True)
@pytest.mark.parametrize(
    ("words", "env"),
    [
        (("--log-colors",), {}),
        (("--log-colors", "on"), {}),
        ((), {"LLAMA_LOG_COLORS": "1"}),
        ((), {"LLAMA_ARG_LOG_COLORS": "on"}),
    ],
)
def test_a_wish_for_colours_stops_no_engine(stand_in, words: tuple[str, ...], env: dict[str, str]) -> None:
    server = stand_in("-c", "256", *words, env=env)
    server.wait_healthy()
    assert http(server, "POST", "/v1/chat/completions", {**CHAT, "max_tokens": 2}).status == 200
    assert server.told().count("has no effect: the embedded engine writes its log without colours") == 1


def test_what_the_embedded_engine_cannot_honour_runs_on_another_or_is_refused_with_advice(
    start_server: StartServer, built_engine: str, starter_model: Path, tmp_path: Path
) -> None:
    words = ("llama-server", "-m", str(starter_model), "-t", "1", "-c", "256", "--port", "0", "--spm-infill")
    refused = run_command(*words, cwd=tmp_path, env={ENGINE_VARIABLE: "embedded"})
    assert refused.returncode == 1
    assert "the embedded engine cannot honour --spm-infill" in refused.stderr
    assert "llama-appliance engines install' fetches an engine that can" in refused.stderr
    path = f"{Path(built_engine).parent}{os.pathsep}{os.environ['PATH']}"
    server = start_server(*words, env={"PATH": path})
    server.wait_healthy()
    argv = next(found for child in server.children() if "--spm-infill" in (found := child.cmdline()))
    assert Path(argv[0]).resolve() == Path(built_engine).resolve()
    assert http(server, "POST", "/v1/chat/completions", {**CHAT, "max_tokens": 2}).status == 200


@one_engine
def test_the_log_goes_into_a_file_or_nowhere(stand_in, tmp_path: Path) -> None:
    file = tmp_path / "server.log"
    server = stand_in("--ctx-size", "256", "--log-file", str(file))
    server.wait_healthy()
    told = file.read_text()
    assert "listening on" in told
    assert "main: model loaded" in told
    assert "INFO appliance.fleet.owner: loading model" in told
    assert "load" in told.lower().replace("loading model", ""), "the engine's lines are there, too"
    wrong = run_command("llama-server", "-m", "x", "--log-file", str(tmp_path), cwd=tmp_path)
    assert wrong.returncode != 0
    assert f"--log-file {tmp_path} cannot be written" in wrong.stderr


def test_without_a_log_nothing_is_printed(
    start_server: StartServer, engine: str, starter_model: Path, free_port: Callable[[], int]
) -> None:
    port = free_port()
    words = ("-m", str(starter_model), "-t", "1", "-c", "256", "--port", str(port), "--log-disable")
    server = start_server("llama-server", *words, env={ENGINE_VARIABLE: engine}, listening=False)
    server.host, server.port = "127.0.0.1", port

    def healthy() -> bool:
        with contextlib.suppress(OSError):
            return http(server, "GET", "/health").status == 200
        return False

    server.wait_for(healthy)
    assert http(server, "POST", "/v1/chat/completions", {**CHAT, "max_tokens": 2}).status == 200
    assert server.told() == ""


def test_unknown_flags_are_refused_as_the_real_program_refuses_them(built_engine: str, tmp_path: Path) -> None:
    for words in (["--foo"], ["-m", "x", "--bar", "1"], ["stray"]):
        ours = run_command("llama-server", *words, cwd=tmp_path)
        real = subprocess.run([built_engine, *words], capture_output=True, text=True, timeout=30)
        assert ours.returncode == real.returncode == 1
        assert ours.stderr.splitlines()[0] == real.stderr.splitlines()[0]


@one_engine
def test_without_a_model_it_is_the_router(start_server: StartServer, engine: str) -> None:
    server = start_server("llama-server", "--port", "0", "--models-max", "3", env={ENGINE_VARIABLE: engine})
    assert http(server, "GET", "/health").status == 200
    props = http(server, "GET", "/props").json()
    assert (props["role"], props["max_instances"]) == ("router", 3)
    if engine == "embedded":  # of a program that is named by its path, nobody knows the build before it runs
        assert re.fullmatch(r"b\d{5}-\w+", props["build_info"]), "the build, and not the year of its wheel"
    assert http(server, "GET", "/models").json() == {"data": [], "object": "list"}
