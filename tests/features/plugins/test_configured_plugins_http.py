"""Plugins by configuration and by the verb ``agents``: what there is, what is on, what is written, and followed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import Command, settings_of
from http_harness import CHAT, Appliance, OpenServer
from plugin_folders import write_plugin
from reload_harness import RELOAD, File, reload

from appliance.plugins.folders import bundled_folder, choice_of

TELLING = """
from dataclasses import dataclass

@dataclass
class Settings:
    word: str = "nothing"
    login: dict | None = None

def on_request(request, context):
    request.body["word"] = context.settings.get("word")
"""
SHIPPED = {"json", "parallel", "rag", "summarize"}


@pytest.fixture
def folder(tmp_path: Path) -> str:
    write_plugin(tmp_path / "plugins", "tell", TELLING, {"settings": {"word": "of config.json"}})
    return str(tmp_path / "plugins")


async def agents(server: Appliance) -> dict[str, Any]:
    """The list, once everything is loaded."""
    return (await server.good("POST", "/api/agents/reload")).json


def body(text: str) -> bytes:
    asked = {"model": "m", "max_tokens": 8, "messages": [{"role": "user", "content": text}], "fake": {"echo": True}}
    return json.dumps(asked, indent=3).encode()


async def got(server: Appliance, text: str) -> bytes:
    """The body that the engine gets."""
    return (await server.good("POST", CHAT, body(text))).json["body"].encode()


async def test_a_llama_swap_configuration_is_served_as_llama_swap_does(open_server: OpenServer, file: File):
    async with open_server(config=file.write({"m": ()})) as server:
        for text in ("/json hi", "/rag /json hi", "\\/json hi", "/tell hi"):
            assert await got(server, text) == body(text)
        listing = await agents(server)
        assert (listing["agents"], listing["folders"], listing["problems"]) == ([], [], [])
        assert "put 'plugins: {}' into it, or start the program with --plugins DIR" in str(listing["off"])


async def test_plugins_are_on_where_the_configuration_speaks_of_them(open_server: OpenServer, file: File, folder: str):
    for more in ({"plugins": {}}, {"plugins": None}, {"plugins_dir": folder}, {"plugins_dir": [folder]}):
        async with open_server(config=file.write({"m": ()}, **more)) as server:
            listing = await agents(server)
            found = {each["name"] for each in listing["agents"]}
            assert found == SHIPPED | ({"tell"} if "plugins_dir" in more else set())
            assert listing["off"] is None


async def test_a_named_folder_switches_them_on_beside_any_configuration(
    open_server: OpenServer, file: File, folder: str
):
    async with open_server(config=file.write({"m": ()}), plugins=[Path(folder)]) as server:
        assert json.loads(await got(server, "/tell hi"))["word"] == "of config.json"
        await reload(server)
        assert json.loads(await got(server, "/tell hi"))["word"] == "of config.json"


async def test_settings_are_followed_and_so_is_whether_there_are_plugins(
    open_server: OpenServer, file: File, folder: str
):
    def told(word: str) -> dict[str, object]:
        return {"plugins_dir": folder, "plugins": {"tell": {"settings": {"word": word}}}}

    async with open_server(config=file.write({"m": ()}, **told("first"))) as server:
        assert json.loads(await got(server, "/tell hi"))["word"] == "first"
        file.write({"m": ()}, **told("second"))
        assert (await reload(server))["changed"] == []
        assert json.loads(await got(server, "/tell hi"))["word"] == "second"
        file.write({"m": ()})
        await reload(server)
        assert await got(server, "/tell hi") == body("/tell hi")
        file.write({"m": ()}, plugins_dir=folder)
        await reload(server)
        assert json.loads(await got(server, "/tell hi"))["word"] == "of config.json"


async def test_mistakes_are_told_where_they_are_looked_for(open_server: OpenServer, file: File, folder: str):
    async with open_server(config=file.write({"m": ()}, plugins_dir=folder)) as server:
        wrong = {"tell": {"settings": {"word": ["a"], "wrod": "b"}}, "sumarize": {"enabled": False}}
        file.write({"m": ()}, plugins_dir=folder, plugins=wrong)
        warnings = (await reload(server))["warnings"]
        problem = "plugins.sumarize: there is no plugin 'sumarize'; did you mean 'summarize'?"
        assert warnings == [f"warning: {problem}"]
        listing = await agents(server)
        assert listing["problems"] == [problem]
        [tell] = [each for each in listing["agents"] if each["name"] == "tell"]
        assert tell["state"] == "error"
        assert tell["error"] == "plugins.tell.settings.word: expected `str`, got `array`"
        told = "plugin 'tell' failed in its settings: plugins.tell.settings.word"
        await server.refuses(502, None, "POST", CHAT, body("/tell hi"), words=told)
        file.write({"m": ()}, plugins_dir=folder, plugins={"tell": {"enabled": "perhaps"}})
        await server.refuses(400, None, "POST", RELOAD, words="plugins.tell.enabled")
        assert (await agents(server))["problems"] == [problem]


async def test_values_leave_over_http_but_secrets_do_not(open_server: OpenServer, file: File, folder: str):
    told = {"tell": {"settings": {"word": "a word", "login": {"api_key": "a secret"}}}}
    async with open_server(config=file.write({"m": ()}, plugins_dir=folder, plugins=told)) as server:
        await agents(server)
        answer = await server.ask("GET", "/api/agents")
        [tell] = [each for each in answer.json["agents"] if each["name"] == "tell"]
        told = {name: (tell["sources"][name], value) for name, value in tell["values"].items()}
        assert told == {
            "enabled": ("default", True),
            "timeout": ("default", 300),
            "settings.word": ("configuration", "a word"),
            "settings.login": ("configuration", {"api_key": "[REDACTED]"}),
        }
        assert b"a secret" not in answer.body


def test_ls_lists_what_there_is_and_what_is_wrong_with_it(command: Command, tmp_path: Path) -> None:
    folder = tmp_path / "plugins"
    write_plugin(folder, "good", "def on_response(r, c): pass", {"description": "Does good"})
    write_plugin(folder, "bad", "import nothing_of_the_kind", {"enabeld": True})
    write_plugin(tmp_path / "other", "good", "def on_response(r, c): pass", {"description": "Does better"})
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"plugins_dir": str(folder)}))
    options = ("--config", str(config), "--plugins", str(tmp_path / "other"))
    listing = command.json("agents", "ls", *options)
    assert listing["folders"] == [str(bundled_folder()), str(folder), str(tmp_path / "other")]
    found = {each["name"]: each for each in listing["agents"]}
    assert (found["good"]["description"], found["good"]["hooks"]) == ("Does better", ["on_response"])
    assert found["bad"]["warnings"] == ["config.json: unknown key 'enabeld'; did you mean 'enabled'?"]
    table = command("agents", "ls", *options)
    assert table.status == 0
    assert "/good" in table.out
    assert "Traceback" not in table.err
    assert "/bad: agent.py:1: ModuleNotFoundError" in table.err
    assert f"/good: replaces the one in {folder / 'good'}" in table.err


def test_ls_says_where_each_value_comes_from(command: Command, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    rag = "rag: {settings: {documents: [~/papers], documnts: []}}"
    config.write_text(
        f"plugins:\n  {rag}\n  json: {{settings: {{attempts: many}}}}\n  parallel: {{enabled: false}}\n  x: {{}}\n"
    )
    listing = command.json("agents", "ls", "--config", config)
    states = {each["name"]: each["state"] for each in listing["agents"]}
    assert (states["json"], states["parallel"], listing["off"]) == ("error", "disabled", None)
    table = command("agents", "ls", "--config", str(config))
    rows = [line.split() for line in table.out.splitlines()]
    assert ["/rag", "settings.documents", '["~/papers"]', "configuration"] in rows
    assert ["/parallel", "enabled", "false", "configuration"] in rows
    assert ["/rag", "settings.embedding_model", '""', "config.json"] in rows
    assert "/json: plugins.json.settings.attempts: expected `int`, got `str`" in table.err
    assert "did you mean 'documents'?" in table.err
    assert "note: plugins.x: there is no plugin 'x'" in table.err


def test_ls_says_why_there_are_none(command: Command, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("models: {m: {cmd: 'x --port ${PORT}'}}")
    told = command("agents", "ls", "--config", str(config))
    assert (told.status, told.out) == (0, "")
    assert "put 'plugins: {}' into it, or start the program with --plugins DIR" in told.err
    (tmp_path / "mine").mkdir()
    told = command("agents", "ls", "--config", str(config), "--plugins", "mine")
    assert "/rag" in told.out


def test_new_writes_a_plugin_whose_test_passes_and_that_loads(command: Command, tmp_path: Path) -> None:
    command.good("agents", "new", "shout-2", "--in", "mine")
    home = tmp_path / "mine" / "shout-2"
    assert sorted(path.name for path in home.iterdir()) == ["agent.py", "config.json", "test_shout_2.py"]
    test = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(home)]
    env = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    tested = subprocess.run(test, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert tested.returncode == 0, tested.stdout
    assert "2 passed" in tested.stdout
    listing = command.json("agents", "ls", "--plugins", "mine")
    mine = next(each for each in listing["agents"] if each["name"] == "shout-2")
    assert (mine["state"], mine["hooks"]) == ("ready", ["on_request", "on_stream"])
    assert "exists; choose another name" in command.bad("agents", "new", "shout-2", "--in", "mine")


@pytest.mark.parametrize("name", ["a b", "", "../x", "-x", "a" * 65])
def test_new_refuses_a_name_that_cannot_be_a_command(command: Command, tmp_path: Path, name: str) -> None:
    assert "cannot be a command" in command.bad("agents", "new", "--in", tmp_path, "--", name)
    assert list(tmp_path.iterdir()) == []


def test_config_check_tells_of_plugins_that_are_not_there(command: Command, tmp_path: Path):
    config = tmp_path / "config.yaml"
    config.write_text("plugins: {rga: {}, json: {}}")
    outcome = command("config", "check", "--config", str(config))
    assert outcome.status == 0
    assert outcome.err == "warning: plugins.rga: there is no plugin 'rga'; did you mean 'rag'?\n"


@pytest.mark.parametrize(
    ("line", "folders", "off"),
    [
        ("serve", (bundled_folder(),), None),
        ("serve --plugins .", (bundled_folder(), Path()), None),
        ("serve --no-plugins", (), "--no-plugins"),
        ("llama-server --model m.gguf", (), "as llama-server"),
    ],
)
def test_which_plugins_a_server_has(
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    line: str,
    folders: tuple[Path, ...],
    off: str | None,
):
    monkeypatch.chdir(tmp_path)
    choice = choice_of(None, settings_of(command, *line.split()).plugins)
    assert choice.folders == tuple(folder.absolute() for folder in folders)
    assert choice.off is off is None or str(off) in str(choice.off)
