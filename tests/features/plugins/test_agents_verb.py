"""``agents ls`` and ``agents new``: what they list, what they write, and that it works."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import Command, settings_of
from plugin_folders import write_plugin

from appliance.plugins.folders import bundled_folder, choice_of


def test_ls_lists_what_there_is_and_what_is_wrong_with_it(command: Command, tmp_path: Path) -> None:
    folder = tmp_path / "plugins"
    write_plugin(
        folder, "good", "def on_response(r, c): pass", {"description": "Does good", "end_point": "/v1/messages"}
    )
    write_plugin(folder, "bad", "import nothing_of_the_kind", {"enabeld": True})
    write_plugin(folder, "off", "", {"enabled": False})
    write_plugin(tmp_path / "other", "good", "def on_response(r, c): pass", {"description": "Does better"})
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"plugins_dir": str(folder)}))
    options = ("--config", str(config), "--plugins", str(tmp_path / "other"))
    listing = command.json("agents", "ls", *options)
    assert listing["folders"] == [str(bundled_folder()), str(folder), str(tmp_path / "other")]
    found = {each["name"]: each for each in listing["agents"]}
    assert found["good"]["description"] == "Does better"
    assert found["good"]["hides"] == [str(folder / "good")]
    assert found["good"]["hooks"] == ["on_response"]
    assert found["off"]["state"] == "disabled"
    assert found["bad"]["error"] == "agent.py:1: ModuleNotFoundError: No module named 'nothing_of_the_kind'"
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
    found = {each["name"]: each for each in listing["agents"]}
    assert found["rag"]["values"]["settings.documents"] == ["~/papers"]
    assert found["rag"]["sources"]["settings.documents"] == "configuration"
    assert found["rag"]["sources"]["settings.embedding_model"] == "config.json"
    assert "did you mean 'documents'?" in found["rag"]["warnings"][0]
    assert found["json"]["state"] == "error"
    assert found["parallel"]["state"] == "disabled"
    assert listing["off"] is None
    table = command("agents", "ls", "--config", str(config))
    rows = [line.split() for line in table.out.splitlines()]
    assert ["/rag", "settings.documents", '["~/papers"]', "configuration"] in rows
    assert ["/parallel", "enabled", "false", "configuration"] in rows
    assert ["/rag", "settings.embedding_model", '""', "config.json"] in rows
    assert "/json: plugins.json.settings.attempts: expected `int`, got `str`" in table.err
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
