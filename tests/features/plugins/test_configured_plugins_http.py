"""Plugins by configuration: off where it says nothing of them; on, and with its settings, where it does; followed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from http_harness import CHAT, Appliance, OpenServer
from plugin_folders import write_plugin
from reload_harness import RELOAD, File, reload

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
