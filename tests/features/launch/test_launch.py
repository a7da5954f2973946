"""``launch``: a program in the place of each client, which a real start leads to the server."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from clever_models import CALL, LONG, clever
from command_line import Command
from http_harness import OpenServer
from program import COMMAND, COMMAND_TIME, fresh_environment, run_command
from serving import Serve

from appliance.features.launch.core.clients import CLIENTS, Client
from appliance.features.launch.starting import KEPT

WORDS = [{"text": "I would read the file."}]
SHORT = "4096"
KEY = "k-of-the-server"
FAKE = """#!{python}
import json, os, signal, sys, time
told = {{"argv": sys.argv[1:], "environ": dict(os.environ), "pid": os.getpid()}}
with open(os.environ["TOLD"] + ".new", "w") as file:
    json.dump(told, file)
os.replace(os.environ["TOLD"] + ".new", os.environ["TOLD"])
if "wait" in sys.argv:
    time.sleep(60)
sys.exit(7)
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own, for starts in this process too."""
    home = tmp_path / "home"
    home.mkdir()
    for name, value in fresh_environment(home).items():
        monkeypatch.setenv(name, value)
    for name in ("XDG_CONFIG_HOME", "CODEX_HOME", "QWEN_HOME", "PI_CODING_AGENT_DIR", "CONTINUE_GLOBAL_DIR"):
        monkeypatch.delenv(name, raising=False)
    return home


@pytest.fixture
def clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program for each client, on PATH. Returns the file that gets the arguments and the environment of a start."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for client in CLIENTS:
        program = folder / (*client.programs, client.name)[0]
        program.write_text(FAKE.format(python=sys.executable))
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("TOLD", str(tmp_path / "told.json"))
    return tmp_path / "told.json"


def server_with(serve: Serve, file: Path, script: Sequence[object] = CALL, context: str = LONG, **more: object) -> str:
    return serve(models=[clever(file, "alpha", script, context)], **more).url


def launched(*words: str, home: Path, timeout: float = COMMAND_TIME) -> subprocess.CompletedProcess[str]:
    return run_command("launch", *words, cwd=home, env=dict(os.environ), timeout=timeout)


@pytest.mark.parametrize(
    "client",
    [pytest.param(each, marks=() if each.name == "codex" else pytest.mark.slow, id=each.name) for each in CLIENTS],
)
def test_a_client_is_led_to_the_server(
    client: Client, serve: Serve, fake_model: Path, home: Path, clients: Path
) -> None:
    url = server_with(serve, fake_model)
    run = launched(client.name, "--url", url, "--", "say hello", home=home)
    assert run.returncode == 7, run.stderr
    told = json.loads(clients.read_text(encoding="utf-8"))
    assert told["argv"][-1] == "say hello"
    values = [*told["argv"], *(told["environ"][name] for name in client.environment if name in told["environ"])]
    written = "".join(path.read_text() for path in home.rglob("*") if path.is_file() and not path.is_symlink())
    assert url in "".join(values) + written
    assert "alpha" in "".join(values) + written
    assert "no-key-needed" in told["environ"].values()
    again = launched(client.name, "--url", url, home=home)
    assert again.stderr.splitlines() == ["asking alpha to call a tool ..."]
    assert json.loads(clients.read_text(encoding="utf-8"))["argv"] == told["argv"][:-1] + list(client.alone)
    assert not list(home.rglob(f"*{KEPT}"))


def test_the_key_goes_into_the_environment_alone(serve: Serve, fake_model: Path, home: Path, clients: Path) -> None:
    url = server_with(serve, fake_model, api_keys=(KEY,))
    os.environ["ANTHROPIC_API_KEY"] = "of-the-user"
    try:
        for client in (each for each in CLIENTS if each.name in ("claude", "continue")):
            assert launched(client.name, "--url", url, "--api-key", KEY, home=home).returncode == 7
            told = json.loads(clients.read_text(encoding="utf-8"))
            assert KEY in told["environ"].values()
            assert KEY not in " ".join(told["argv"])
            assert ("ANTHROPIC_API_KEY" in told["environ"]) == (client.name != "claude")
            shown = launched(client.name, "--url", url, "--api-key", KEY, "--print", home=home)
            assert shown.returncode == 0
            assert KEY not in shown.stdout + shown.stderr
            assert '="$KEY"' in shown.stdout
    finally:
        del os.environ["ANTHROPIC_API_KEY"]
    assert not [path for path in home.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]
    assert "401" in launched("pi", "--url", url, home=home).stderr


def test_a_file_is_edited_and_kept(serve: Serve, fake_model: Path, home: Path, command: Command) -> None:
    at = command.at(server_with(serve, fake_model))
    kept, file = home / "dotfiles" / "codex.toml", home / ".codex" / "config.toml"
    kept.parent.mkdir()
    file.parent.mkdir()
    old = "# mine\nmodel = 'gpt-5'\n"
    kept.write_text(old)
    kept.chmod(0o600)
    file.symlink_to(kept)
    shown = at("launch", "codex", "--print")
    assert "+[model_providers.llama-appliance]" in shown.out
    assert kept.read_text() == old
    said = at.good("launch", "codex", "--config-only")
    assert "+[model_providers.llama-appliance]" in said
    assert file.is_symlink()
    assert kept.read_text().startswith(old)
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    before = kept.with_name(f"codex.toml{KEPT}")
    assert (before.read_text(), stat.S_IMODE(before.stat().st_mode)) == (old, 0o600)
    assert "model_providers" not in at.good("launch", "codex", "--config-only")
    assert before.read_text() == old


def test_a_broken_file_stays(serve: Serve, fake_model: Path, home: Path, clients: Path) -> None:
    url = server_with(serve, fake_model)
    file = home / ".config" / "opencode" / "opencode.jsonc"
    file.parent.mkdir(parents=True)
    for broken in (b'{"provider": ', b"\xff{}"):
        file.write_bytes(broken)
        run = launched("opencode", "--url", url, home=home)
        assert run.returncode == 2
        assert f"{file} cannot be edited, and stays as it is" in run.stderr
        assert file.read_bytes() == broken
    assert [path.name for path in file.parent.iterdir()] == ["opencode.jsonc"]
    assert not clients.exists()


def test_a_client_that_is_not_installed(
    serve: Serve, fake_model: Path, home: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = command.at(server_with(serve, fake_model))
    monkeypatch.setenv("PATH", str(home))
    for client in CLIENTS:
        assert at.bad("launch", client.name).rstrip().endswith(f"this installs it: {client.install}")
    assert "gets all settings when it starts" in at.bad("launch", "claude", "--config-only")


def test_a_model_without_tools(serve: Serve, fake_model: Path, home: Path, clients: Path) -> None:
    url = server_with(serve, fake_model, WORDS)
    run = launched("pi", "--url", url, home=home)
    assert (run.returncode, clients.exists()) == (2, False)
    assert "alpha did not call the tool" in run.stderr
    assert launched("pi", "--url", url, "--no-check", home=home).returncode == 7


def test_a_context_that_is_too_short(serve: Serve, fake_model: Path, home: Path, command: Command) -> None:
    at = command.at(server_with(serve, fake_model, context=SHORT))
    error = at.bad("launch", "claude", "--print")
    assert "alpha has a context of 4096 tokens, and Claude Code needs 32768" in error
    assert "--ctx-size 32768" in error
    assert at("launch", "claude", "--print", "--no-check").status == 0


def test_the_choice_of_a_model(serve: Serve, fake_model: Path, home: Path, command: Command) -> None:
    names = [clever(fake_model, name) for name in ("alpha", "beta")]
    at = command.at(serve(models=names).url)
    assert "choose a model with --model; there are alpha, beta" in at.bad("launch", "pi", "--print")
    assert "did you mean 'alpha'?" in at.bad("launch", "pi", "--print", "--model", "alpah")
    assert "--model beta" in at("launch", "pi", "--print", "--model", "beta").out
    assert "no model" in command.at(serve(models=[]).url).bad("launch", "pi", "--print")


async def test_a_server_on_all_addresses_is_reached_on_this_machine(open_server: OpenServer) -> None:
    async with open_server(listen=(("0.0.0.0", 0),)) as server:
        url = (await server.good("GET", "/api/launch")).json["url"]
        assert url.startswith("http://127.0.0.1:")
        assert url.rpartition(":")[2] == server.url.rpartition(":")[2]


@pytest.mark.skipif(sys.platform == "win32", reason="a command cannot become another program there")
def test_signals_reach_the_client(serve: Serve, fake_model: Path, home: Path, clients: Path) -> None:
    url = server_with(serve, fake_model)
    with subprocess.Popen([COMMAND, "launch", "pi", "--url", url, "--", "wait"], cwd=home) as started:
        while not clients.exists():
            assert started.poll() is None
            time.sleep(0.05)
        assert json.loads(clients.read_text(encoding="utf-8"))["pid"] == started.pid
        started.send_signal(signal.SIGTERM)
        assert started.wait(COMMAND_TIME) == -signal.SIGTERM
