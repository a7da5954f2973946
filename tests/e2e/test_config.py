"""The installed program with a llama-swap configuration: its start, its end, its console, and what it refuses."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest
from command_line import run_here
from config_files import ConfigFile, ask, running
from gguf_files import WriteModel
from program import ANY_PORT, Server, StartServer, fresh_environment, http, run_command, wait_gone
from slow import one_of
from waiting import SOON, wait

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="commands of POSIX shells")

NO_WHEEL = "import sys\nsys.modules['xllamacpp'] = None\n"


# ---- ends ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_all_processes_end_with_the_program(serve: StartServer, file: ConfigFile, number: signal.Signals) -> None:
    """Also where commands leave processes of their own: in their group, and stopped by another command."""
    stop = f"sh -c 'echo $0 >> {file.path.parent}/stopped; kill $0' ${{PID}}"
    models: dict[str, dict[str, object]] = {
        "plain": {"cmd": file.cmd()},
        "shell": {"cmd": f'sh -c "sleep 300 & {file.cmd()} & wait"'},
        "told": {"cmd": file.cmd("--ignore-exit-line"), "cmdStop": stop},
        "deaf": {"cmd": file.cmd("--ignore-sigterm"), "unloadTimeout": 1},
    }
    server = serve("--config", file.write(models, groups={"all": {"swap": False, "members": list(models)}}))
    for model in models:
        ask(server, model)
    children = server.children()
    assert len(children) >= len(models) + 2
    told = next(child.pid for child in children if "--ignore-exit-line" in child.cmdline())
    server.signal(number)
    ended = server.wait(20)
    wait_gone(children)
    if number == signal.SIGINT:
        assert ended == 0
        assert (file.path.parent / "stopped").read_text().split() == [str(told)]
        assert "Traceback" not in server.told()


# ---- starts ----------------------------------------------------------------------------------------------------------


def test_models_are_preloaded_in_the_order_of_the_file(serve: StartServer, file: ConfigFile) -> None:
    apart = {"all": {"swap": False, "members": ["a", "b", "c"]}}
    models: dict[str, dict[str, object]] = {"a": {"aliases": ["first"]}, "b": {}, "c": {}}
    preload = {"on_startup": {"preload": ["c", "first", "b"]}}
    server = serve("--config", file.write(models, groups=apart, hooks=preload))
    wait(lambda: list(running(server).values()) == ["ready"] * 3)
    wait(lambda: re.findall("loading model '(.)'", server.told()) == ["c", "a", "b"], told=server.told)


@pytest.mark.slow
def test_a_second_copy_says_what_is_taken(serve: StartServer, file: ConfigFile, tmp_path: Path) -> None:
    first = serve("--config", file.write({"m": ()}))
    ask(first, "m")
    again = run_command("serve", "--listen", f"127.0.0.1:{first.port}", "--config", str(file.path), cwd=tmp_path)
    assert again.returncode == 2
    assert f"cannot listen on 127.0.0.1:{first.port}" in again.stderr
    assert "another llama-appliance listens there" in again.stderr
    second = serve("--config", str(file.path))
    refused = http(second, "POST", "/v1/chat/completions", {"model": "m", "messages": []})
    assert refused.status == 500
    assert f"port {file.start_port} is taken by another program" in refused.json()["error"]["message"]
    assert list(running(first)) == ["m"]


def test_a_configuration_that_cannot_be_used_is_told_whole(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("startPort: x\nmodels:\n  m:\n    ttl: -5\n    cmd: serve ${PORT} ${nothing}\nlogToStdout: loud\n")
    for argv, *told in (
        (("--config", bad), *(f"{bad}:{place}: error: " for place in ("1:12", "4:10", "5:10", "6:14"))),
        (("--config", tmp_path / "none.yaml"), "there is no file"),
        (("--config", tmp_path), "is a folder; name a file, or use --config-dir"),
        (("--config-dir", tmp_path / "none"), "there is no folder"),
        (("--config-dir", bad), "is not a folder"),
        (("--watch-config",), "--watch-config needs something to watch"),
    ):
        done = run_here(("serve", *ANY_PORT, *map(str, argv)), tmp_path, fresh_environment(tmp_path))
        assert (done.returncode, done.stdout) == (2, "")
        assert all(each in done.stderr for each in told), done.stderr


def test_configured_models_need_no_engine(start_server: StartServer, file: ConfigFile, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(NO_WHEEL)
    env = {"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"}
    without = run_command("serve", *ANY_PORT, "--config", file.write({}), cwd=tmp_path, env=env)
    assert without.returncode != 0
    assert "--engine" in without.stderr
    server = start_server("serve", *ANY_PORT, "--config", file.write({"m": ()}), env=env)
    assert ask(server, "m")


@pytest.mark.parametrize("options", one_of([("--tools", "get_info"), ()]))
def test_a_damaged_store_is_one_line_and_status_2(file: ConfigFile, tmp_path: Path, options: tuple[str, ...]) -> None:
    store = tmp_path / "log.sqlite"
    config = file.write({"m": ()}, store={"path": str(store)})
    with Server(["serve", *ANY_PORT, "--config", config], tmp_path) as server:
        ask(server.wait_listening(), "m")
        server.signal(signal.SIGTERM)
        assert server.wait(15) == 0
    with store.open("r+b") as written:
        written.seek(4096)
        written.write(os.urandom(store.stat().st_size - 4096))
    done = run_command("serve", *ANY_PORT, "--config", config, *options, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f"set it aside: mkdir {store}.damaged; mv {store} {store}-wal" in done.stderr


# ---- the console -----------------------------------------------------------------------------------------------------


def serving(config: str, folder: Path, output: int) -> Server:
    """The program with a standard output of its own; everything else is in `Server.told`."""
    return Server(["serve", *ANY_PORT, "--config", config], folder, output=output).wait_listening()


@pytest.mark.parametrize("mode", one_of(["both", "proxy", "upstream", "none"]))
def test_the_console_shows_what_it_is_told_to(file: ConfigFile, tmp_path: Path, mode: str) -> None:
    config = file.write({"m": ()}, logToStdout=mode)
    out = tmp_path / "out"
    with out.open("wb") as stdout, serving(config, tmp_path, stdout.fileno()) as server:
        ask(server, "m")
        server.signal(signal.SIGTERM)
        assert server.wait(20) == 0
        assert "[INFO]" not in server.told()
    lines = out.read_text().splitlines()
    own = [line for line in lines if line.startswith("[INFO] ")]
    models = [line for line in lines if line.startswith("[m] ")]
    assert sorted(own + models) == sorted(lines)
    assert bool(own) == (mode in ("proxy", "both"))
    assert bool(models) == (mode in ("upstream", "both"))
    if own:
        assert any("model 'm' is ready" in line for line in own)
        assert any('"POST /v1/chat/completions HTTP/1.1" 200' in line for line in own)


@pytest.mark.slow
@pytest.mark.parametrize("closed", [False, True])
def test_a_console_that_nobody_reads_holds_nothing_up(file: ConfigFile, tmp_path: Path, closed: bool) -> None:
    """Its reader may also go in the middle, as `| head` does."""
    config = file.write({"m": ("--log-flood",)}, logToStdout="both")
    reader, writer = os.pipe()
    with serving(config, tmp_path, writer) as server:
        os.close(writer)
        ask(server, "m")
        if closed:
            os.close(reader)
        ask(server, "m")
        http(server, "POST", "/api/models/unload")
        ask(server, "m")
        began = time.monotonic()
        server.signal(signal.SIGTERM)
        assert server.wait(20) == 0, server.told()
        assert time.monotonic() - began < SOON
        assert "Traceback" not in server.told()
        assert "Fatal" not in server.told()
    if not closed:
        os.close(reader)


# ---- Llama Smart Proxy's file ----------------------------------------------------------------------------------------


def test_a_smart_proxy_configuration(serve: StartServer, tmp_path: Path, write_model: WriteModel) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    hub = tmp_path / "hub"
    for repo, variant in (("org/first-GGUF", "Q4_K_M"), ("org/second-GGUF", "Q8_0")):
        folder = hub / f"models--{repo.replace('/', '--')}"
        (folder / "refs").mkdir(parents=True)
        (folder / "refs" / "main").write_text(commit)
        write_model(folder / "snapshots" / commit / f"model-{variant}.gguf")
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"plugins_dir": "plugins", "server_pool": {"num_servers": 1}}))
    server = serve("--config", str(config), HF_HUB_CACHE=str(hub))
    for name, model in (
        ("org/first-GGUF:Q4_K_M", "org/first-GGUF:Q4_K_M"),
        ("org/second-GGUF", "org/second-GGUF:Q8_0"),
    ):
        assert ask(server, name)
        health = http(server, "GET", "/health").json()
        assert health["pool"]["capacity"] == 1
        assert [entry["model"] for entry in health["pool"]["servers"]] == [model]
        assert health["models"] == [model]
