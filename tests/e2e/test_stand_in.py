"""``llama-appliance llama-server``: a program that expects llama-server must not notice the difference."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from command_line import run_here
from program import (
    COMMAND,
    Server,
    StartServer,
    answer,
    engine_argv,
    fresh_environment,
    http,
    one_engine,
    run_command,
    wait_gone,
)
from waiting import wait

from appliance.core.engine_output import parse_manual
from appliance.engines.named import ENGINE_VARIABLE, is_this_program
from appliance.features import embedded
from appliance.main import LIVED

CHAT = {"messages": [{"role": "user", "content": "Hello!"}], "temperature": 0}


@pytest.fixture
def faked(start_server: StartServer, fake_engine: Path, starter_model: Path) -> StartServer:
    """The same on the scripted engine."""

    def start(*words: str, **env: str) -> Server:
        argv = ("llama-server", "-m", str(starter_model), "-t", "1", *words)
        return start_server(*argv, env={ENGINE_VARIABLE: str(fake_engine), **env})

    return start


def test_it_serves_the_one_model_whatever_the_request_names(single: StartServer, starter_model: Path) -> None:
    server = single("--ctx-size", "2048", "--no-slots")
    answers = [answer(server, "/v1/chat/completions", **CHAT, **more) for more in ({}, {"model": "x"}, {"model": ""})]
    assert len({each["choices"][0]["message"]["content"] for each in answers}) == 1
    listed = http(server, "GET", "/v1/models").json()
    assert [model["id"] for model in listed["data"]] == [starter_model.name]
    assert listed["models"]
    props = http(server, "GET", "/props").json()
    assert props["default_generation_settings"]["n_ctx"] == 2048
    assert http(server, "GET", "/slots").status == 501
    assert http(server, "GET", "/metrics").status == 501, "without --metrics, as llama-server has it"
    assert answer(server, "/tokenize", content="Hello")["tokens"]
    assert http(server, "GET", "/models/load").status == 404


@pytest.mark.slow
@one_engine
def test_aliases_keys_prefix_and_pages_from_everywhere(
    start_server: StartServer, engine: str, starter_model: Path
) -> None:
    words = ("-m", str(starter_model), "-t", "1", "--port", "0", "--alias", "zeta,alpha", "--api-prefix", "/llama")
    server = start_server("llama-server", *words, env={ENGINE_VARIABLE: engine, "LLAMA_API_KEY": "secret"})
    wait(lambda: http(server, "GET", "/llama/v1/models", Authorization="Bearer secret").status == 200, within=30)
    listed = http(server, "GET", "/llama/v1/models", Authorization="Bearer secret", Origin="http://page.example")
    (model,) = listed.json()["data"]
    assert (model["id"], sorted(model["aliases"])) == ("alpha", ["alpha", "zeta"])
    assert listed.headers["Access-Control-Allow-Origin"] == "http://page.example"
    refused = http(server, "POST", "/llama/v1/chat/completions", CHAT)
    assert refused.status == 401
    assert refused.json()["error"]["message"] == "Invalid API Key"
    assert http(server, "POST", "/llama/v1/chat/completions", CHAT, x_api_key="secret").status == 200


def test_a_model_that_cannot_be_loaded_ends_it(engine: str, tmp_path: Path, starter_model: Path) -> None:
    """`children/contract/test_contract_process.py` has more that an engine cannot load."""
    path = tmp_path / "damaged.gguf"
    path.write_bytes(starter_model.read_bytes().replace(b"llama.block_count", b"llama.block_cuont"))
    words = ("llama-server", "-m", str(path), "--port", "0", "-t", "1")
    done = run_command(*words, cwd=tmp_path, env={ENGINE_VARIABLE: engine})
    assert (done.returncode, path.name in done.stderr, "Traceback" in done.stderr) == (1, True, False), done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="signals as POSIX has them")
def test_it_is_not_healthy_while_the_model_loads_and_can_be_ended_then(faked: StartServer, starter_model: Path) -> None:
    server = faked("--port", "0", FAKE_LOAD_DELAY="60")
    refused = http(server, "GET", "/health")
    assert (refused.status, refused.json()["error"]["type"]) == (503, "unavailable_error")
    check_taken_port_is_told(server, starter_model)
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


def test_an_engine_that_dies_is_started_again_and_one_that_keeps_dying_ends_it(single: StartServer) -> None:
    server = single()
    wait_told(server, "main: model loaded")
    time.sleep(LIVED)  # only then is a death no reason to give up

    def kill_engine() -> None:
        for engine in server.children() if server.process.poll() is None else ():
            with contextlib.suppress(psutil.Error):
                if "--model" in engine.cmdline():
                    engine.kill()

    kill_engine()
    wait_told(server, "it died: ")
    server.wait_healthy()
    assert answer(server, "/completion", prompt="a", n_predict=1)
    wait(lambda: kill_engine() or server.process.poll() is not None, within=60)
    assert server.wait(10) == 1
    assert "Traceback" not in server.told()


def check_taken_port_is_told(server: Server, model: Path) -> None:
    """In llama-server's words, to who starts another one at that port."""
    again = run_command("llama-server", "-m", str(model), "--port", str(server.port), cwd=server.cwd)
    assert again.returncode == 1
    assert f"cannot listen on 127.0.0.1:{server.port}: another llama-appliance listens there" in again.stderr
    assert f"--port {server.port + 1}" in again.stderr
    assert again.stderr.count("\n") == 1


@pytest.mark.slow
def test_the_default_port_is_that_of_the_engine(faked: StartServer, free_port: Callable[[], int]) -> None:
    """llama.cpp moved from 8080 to 9931 in b11521. A build says in its help which one it takes."""
    port, said = free_port(), str(free_port())
    environment = {"FAKE_HELP": f"--port PORT                             port to listen (default: {port})\n"}
    server = faked(**environment)
    assert server.port == port
    assert server.told().count(f"port {port} is the default of this llama.cpp") == 1
    for words, env in (
        (("--port", said), {}),
        ((), {"LLAMA_ARG_PORT": said}),
        ((), {"AIP_MODE": "PREDICTION", "AIP_HTTP_PORT": said}),
    ):
        other = faked(*words, **environment, **env)
        assert other.port == int(said)
        assert "is the default of this llama.cpp" not in other.told()
        other.process.terminate()
        other.wait(20)


def test_each_real_engine_says_its_default_port(every_engine: list[str]) -> None:
    """The embedded engine is built from b11549, whose llama-server takes 9931; the pinned build is b11434."""
    for engine in every_engine:
        command = embedded.command() if engine == "embedded" else [engine]
        done = subprocess.run([*command, "--help"], capture_output=True, text=True, timeout=60, check=True)
        manual = parse_manual(done.stdout)
        assert manual.port == (9931 if engine == "embedded" else 8080)
        known = [manual.names(option) for option in ("--kv-unified-per-slot", "--cache-ram", "--moe-cache-mib")]
        assert known == [True, True, engine == "embedded"]


def test_what_the_engine_has_said_is_there_when_it_is_healthy(faked: StartServer) -> None:
    server = faked("--port", "0", FAKE_LOG_LINES="5000")
    server.wait_healthy()
    said = [line for line in server.told().splitlines() if "of 5000" in line]
    assert [int(line.split(" line ")[1].split()[0]) for line in said] == list(range(1, 5001))


def test_the_version_is_the_engines_own_and_help_explains_every_option(engine: str, tmp_path: Path) -> None:
    """It is installed under the name that scripts use as well."""
    env = {ENGINE_VARIABLE: engine}
    version = run_command("llama-server", "--version", cwd=tmp_path, env=env)
    assert version.returncode == 0
    assert "version" in version.stdout + version.stderr
    program = COMMAND.with_name("llama-server.exe" if sys.platform == "win32" else "llama-server")
    assert is_this_program(program), "it is never taken for an engine"
    helped = run_command("--help", cwd=tmp_path, env=env, program=(program,))
    assert helped.returncode == 0
    lines = helped.stdout.splitlines()
    assert lines[0] == "usage: llama-server [options]"
    at = next(number for number, line in enumerate(lines) if line.startswith("-c, --ctx-size N"))
    assert "tokens of context" in lines[at]
    assert "(env: LLAMA_ARG_CTX_SIZE)" in lines[at]


@one_engine
def test_options_of_the_seeds_time_are_understood_or_told(single: StartServer) -> None:
    env = {"LLAMA_ARG_NO_WEBUI": "1", "LLAMA_ARG_MLOCK": "off", "LLAMA_LOG_VERBOSITY": "3"}
    server = single("-fa", "--log-colors", "off", "-dkvc", "-cd", "64", "-c", "256", **env)
    assert http(server, "GET", "/").status == 404, "without the page"
    props = http(server, "GET", "/props").json()
    assert (props["cors_proxy_enabled"], props["ui"], props["ui_settings"]) == (False, False, {})
    assert http(server, "GET", "/cors-proxy?url=http://127.0.0.1:1/").status == 403
    assert answer(server, "/v1/chat/completions", **CHAT, max_tokens=2)
    assert "warning: -dkvc has no effect" in server.told()
    assert "warning: -cd has no effect" in server.told()
    argv = engine_argv(server)
    assert argv[argv.index("-fa") + 1] == "on"
    assert argv[argv.index("--log-verbosity") + 1] == "3"


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
    argv = engine_argv(server)
    assert "--spm-infill" in argv
    assert Path(argv[0]).resolve() == Path(built_engine).resolve()
    assert answer(server, "/v1/chat/completions", **CHAT, max_tokens=2)


@pytest.mark.slow
@one_engine
def test_the_log_goes_into_a_file_or_nowhere(single: StartServer, tmp_path: Path) -> None:
    file = tmp_path / "server.log"
    single("--ctx-size", "256", "--log-file", str(file))
    told = file.read_text()
    for line in ("listening on", "main: model loaded", "INFO appliance.fleet.owner: loading model"):
        assert line in told
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
    assert answer(server, "/v1/chat/completions", **CHAT, max_tokens=2)
    assert server.told() == ""


def test_unknown_flags_are_refused_as_the_real_program_refuses_them(tmp_path: Path, built_engine: str) -> None:
    for words in (["--foo"], ["-m", "x", "--bar", "1"], ["stray"]):
        ours = run_here(("llama-server", *words), tmp_path, fresh_environment(tmp_path))
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
