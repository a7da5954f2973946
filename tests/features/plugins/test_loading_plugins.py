"""Plugins are found, loaded and configured: what works works, what is broken says why, neither hinders the other."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import trio
from plugin_folders import write_plugin
from waiting import until

from appliance.core.answers.families import Family
from appliance.core.config.additions import PluginConfig
from appliance.errors import PluginFailed
from appliance.features.plugins.found import scan
from appliance.features.plugins.registry import ListedPlugin, Plugins, open_plugins
from appliance.plugins.folders import PluginSelection, bundled_folder
from appliance.plugins.manifest import BadManifest, read_manifest

NOTHING = "def on_request(request, context): pass"


def listed(plugins: Plugins) -> dict[str, ListedPlugin]:
    return {each.name: each for each in plugins.listed().agents}


def choice(*folders: Path, **given: object) -> PluginSelection:
    """These folders, with what a configuration says of their plugins."""
    return PluginSelection(folders=folders, given=msgspec.convert(given, dict[str, PluginConfig]))


@asynccontextmanager
async def opened(*folders: Path, watch: bool = False, **given: object) -> AsyncGenerator[Plugins]:
    with trio.fail_after(60):
        async with open_plugins(choice(*folders, **given), folders[0] / "data", watch=watch) as plugins:
            yield plugins


async def states(*folders: Path, **given: object) -> dict[str, ListedPlugin]:
    """All plugins, once they are loaded."""
    async with opened(*folders, **given) as plugins:
        await plugins.wait_loaded()
        return listed(plugins)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b'{"a": 1,\n  b}', "config.json:2:3: expecting property name"),
        (b"", "config.json:1:1: expecting value"),
        (b"[]", "expected `object`, got `array`"),
        (b'{"enabled": "yes"}', "$.enabled"),
        (b'{"timeout": 0}', "$.timeout"),
        (b'{"end_point": "/v1/embeddings"}', "'/v1/embeddings' is not a route with a prompt"),
        (b'{"end_point": ["/chat/completions", "chat"]}', "'chat' is not a route with a prompt"),
        (b'{"description": "\xff"}', "config.json:1: is not UTF-8"),
        (b"[" * 100_000, "config.json"),
    ],
)
def test_a_manifest_that_cannot_be_used_says_why(text: bytes, says: str):
    with pytest.raises(BadManifest) as caught:
        read_manifest(text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_end_points_are_known_with_and_without_their_version():
    for text in (b'{"end_point": "/chat/completions"}', b'{"end_point": ["/v1/chat/completions"]}'):
        assert read_manifest(text).manifest.families == {Family.CHAT}
    assert read_manifest(b'{"end_point": "/completion"}').manifest.families == {Family.COMPLETION}
    assert read_manifest(b"{}").manifest.families == set(Family)


def test_an_unknown_key_is_told_with_the_one_that_was_probably_meant():
    warnings = read_manifest(b'{"endpoint": "/x", "zzz": 1}').warnings
    assert warnings[0] == "config.json: unknown key 'endpoint'; did you mean 'end_point'?"
    assert "the keys are enabled" in warnings[1]


async def test_broken_plugins_are_listed_with_what_is_wrong_and_hinder_nobody(tmp_path: Path):
    write_plugin(tmp_path, "good", NOTHING, {"description": "works"})
    write_plugin(tmp_path, "off", "import nothing_of_the_kind", {"enabled": False})
    (write_plugin(tmp_path, "shadow", "", {"enabled": False}) / "agent.py").unlink()
    write_plugin(tmp_path, "imports", "import json\nimport nothing_of_the_kind")
    write_plugin(tmp_path, "syntax", "def on_request(:\n    pass")
    write_plugin(tmp_path, "exits", "import sys\nsys.exit(3)")
    write_plugin(tmp_path, "empty", "")
    write_plugin(tmp_path, "arguments", "def on_request(request): pass")
    write_plugin(tmp_path, "stream", "async def on_stream(events, context): return events")
    write_plugin(tmp_path, "number", "on_response = 3")
    write_plugin(tmp_path, "null", "x = '\0'")
    write_plugin(tmp_path, "odd", "def __getattr__(name): raise ValueError(name)")
    write_plugin(tmp_path, "json-error", NOTHING, '{\n "enabled": tru\n}')
    write_plugin(tmp_path, "a b", NOTHING)
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "agent.py").write_text(NOTHING)
    (tmp_path / "no plugin").mkdir()
    write_plugin(tmp_path, "_hidden", NOTHING)
    write_plugin(tmp_path, "helped", "from . import helper\nfrom .helper import on_request", helper=NOTHING)
    found = await states(tmp_path)
    assert {name for name, each in found.items() if each.state == "ready"} == {"good", "helped"}
    assert found["good"].description == "works"
    assert found["good"].hooks == ("on_request",)
    assert found["off"].state == found["shadow"].state == "disabled"
    errors = {name: each.error for name, each in found.items() if each.state == "error"}
    for name, says in {
        "imports": "agent.py:2: ModuleNotFoundError: No module named 'nothing_of_the_kind'",
        "syntax": "agent.py:1:16: SyntaxError",
        "exits": "agent.py:2: SystemExit: 3",
        "empty": "none of the functions on_request, on_response, on_stream",
        "arguments": "on_request must take two arguments, (request, context)",
        "stream": "on_stream must be an asynchronous generator",
        "number": "on_response is not a function",
        "null": "null bytes",
        "odd": "agent.py:1: ValueError: ",
        "json-error": "config.json:2:13:",
        "a b": "cannot be a command",
        "half": "config.json is missing",
    }.items():
        error = errors.pop(name)
        assert says in error
        assert "\n" not in error
    assert errors == {}


async def test_later_folders_win_and_say_so(tmp_path: Path):
    write_plugin(tmp_path / "one", "same", NOTHING, {"description": "one"})
    write_plugin(tmp_path / "two", "same", NOTHING, {"description": "two"})
    write_plugin(tmp_path / "three", "same", NOTHING, {"description": "three"})
    found = await states(tmp_path / "one", tmp_path / "two", tmp_path / "three")
    assert found["same"].description == "three"
    assert found["same"].hides == (str(tmp_path / "one" / "same"), str(tmp_path / "two" / "same"))


def test_a_folder_that_is_not_there_is_a_problem_and_no_more(tmp_path: Path):
    write_plugin(tmp_path / "here", "one", NOTHING)
    seen = scan(PluginSelection(folders=(tmp_path / "nowhere", tmp_path / "here")))
    assert [each.name for each in seen.found] == ["one"]
    assert str(tmp_path / "nowhere") in seen.problems[0]
    assert "no such folder" in seen.problems[0]


async def test_nothing_is_written_beside_a_plugin(tmp_path: Path):
    home = write_plugin(tmp_path, "one", "from . import helper\n" + NOTHING, helper="x = 1")
    before = sorted(home.iterdir())
    assert (await states(tmp_path))["one"].state == "ready"
    assert sorted(home.iterdir()) == before


async def test_modules_of_two_plugins_and_two_loads_do_not_mix(tmp_path: Path):
    code = "from .helper import NAME\ndef on_request(request, context): return NAME"
    for name in ("one", "two"):
        write_plugin(tmp_path, name, code, helper=f"NAME = '{name}'")
    async with opened(tmp_path) as plugins:
        await plugins.wait_loaded()
        first = {name: await plugins.entries[name].hooks() for name in ("one", "two")}
        write_plugin(tmp_path, "one", code, helper="NAME = 'changed'")
        await plugins.look()
        await plugins.wait_loaded()
        second = {name: await plugins.entries[name].hooks() for name in ("one", "two")}
        told = [hooks.on_request(None, None) for hooks in (*first.values(), *second.values()) if hooks.on_request]
        assert told == ["one", "two", "changed", "two"]
        assert second["two"] is first["two"]  # unchanged: what it holds in memory stays
        assert "helper" not in sys.modules
        assert {hooks.module for hooks in second.values()} <= sys.modules.keys()
    packages = {hooks.module for hooks in (*first.values(), *second.values())}
    assert len(packages) == 3
    del plugins, first, second
    gc.collect()
    assert not packages & sys.modules.keys()


@pytest.fixture
def gate() -> Generator[threading.Event]:
    """What a plugin waits for while it is loaded."""
    threading.gate_of_plugins = opened = threading.Event()  # type: ignore[attr-defined]
    yield opened
    opened.set()
    del threading.gate_of_plugins  # type: ignore[attr-defined]


WAITS = f"import threading\nthreading.gate_of_plugins.wait(60)\n{NOTHING}"


async def test_a_plugin_that_loads_slowly_holds_up_nobody_but_those_who_name_it(tmp_path: Path, gate: threading.Event):
    write_plugin(tmp_path, "slow", WAITS)
    write_plugin(tmp_path, "quick", NOTHING)
    async with opened(tmp_path) as plugins:
        await plugins.entries["quick"].hooks()
        assert listed(plugins)["slow"].state == "loading"
        gate.set()
        await plugins.entries["slow"].hooks()
        assert listed(plugins)["slow"].state == "ready"


async def test_a_plugin_that_never_finishes_loading_is_given_up_after_its_time(tmp_path: Path, gate: threading.Event):
    write_plugin(tmp_path, "stuck", WAITS, {"timeout": 0.05})
    async with opened(tmp_path) as plugins:
        with pytest.raises(PluginFailed, match="still being loaded"):
            await plugins.entries["stuck"].hooks()


async def test_another_look_finds_what_came_changed_and_went(tmp_path: Path):
    write_plugin(tmp_path, "stays", NOTHING)
    write_plugin(tmp_path, "goes", NOTHING)
    write_plugin(tmp_path, "broken", "import nothing_of_the_kind")
    async with opened(tmp_path) as plugins:
        await plugins.wait_loaded()
        # a broken one is a command: who names it learns why
        assert plugins.commands[Family.CHAT].names == {"stays", "goes", "broken"}
        with pytest.raises(PluginFailed, match="nothing_of_the_kind"):
            await plugins.entries["broken"].hooks()
        (tmp_path / "goes" / "agent.py").unlink()
        (tmp_path / "goes" / "config.json").unlink()
        write_plugin(tmp_path, "comes", NOTHING, {"end_point": "/v1/messages"})
        write_plugin(tmp_path, "broken", NOTHING)
        await plugins.look()
        await plugins.wait_loaded()
        assert plugins.commands[Family.CHAT].names == {"stays", "broken"}
        assert {(name, each.state) for name, each in listed(plugins).items()} == {
            (name, "ready") for name in ("broken", "comes", "stays")
        }


async def test_changes_are_followed_where_that_is_wanted(tmp_path: Path):
    write_plugin(tmp_path, "one", NOTHING)
    async with opened(tmp_path, watch=True) as plugins:
        await plugins.wait_loaded()
        write_plugin(tmp_path, "two", NOTHING)
        await until(lambda: "two" in listed(plugins), within=30)


TYPED = """
from dataclasses import dataclass

@dataclass
class Settings:
    documents: list[str]
    top_k: int = 5

    def __post_init__(self):
        if self.top_k < 1:
            raise ValueError("'top_k' must be 1 or more")

def on_request(request, context): pass
"""
OWN = {"settings": {"documents": [], "top_k": 7}, "timeout": 5}


async def one(folder: Path, **given: object) -> ListedPlugin:
    return (await states(folder, **given))["one"]


async def test_each_value_comes_from_the_strongest_that_has_it(tmp_path: Path):
    write_plugin(tmp_path, "one", TYPED, OWN)
    async with opened(tmp_path, one={"settings": {"documents": ["~/papers"]}}) as plugins:
        hooks = await plugins.entries["one"].hooks()
        plugin = plugins.entries["one"].plugin
        told = listed(plugins)["one"]
    assert hooks.on_request is not None
    assert plugin.settings == {"documents": ["~/papers"], "top_k": 7}
    assert plugin.timeout == 5
    assert told.sources == {
        "enabled": "default",
        "timeout": "config.json",
        "settings.documents": "configuration",
        "settings.top_k": "config.json",
    }
    assert told.values == {"enabled": True, "timeout": 5, "settings.documents": ["~/papers"], "settings.top_k": 7}


async def test_the_configuration_switches_on_and_off(tmp_path: Path):
    write_plugin(tmp_path, "one", NOTHING, {"enabled": False})
    assert (await one(tmp_path)).state == "disabled"
    assert (await one(tmp_path, one={"enabled": True, "timeout": 9})).state == "ready"
    write_plugin(tmp_path, "one", "1 / 0", {"description": "Divides"})
    off = await one(tmp_path, one={"enabled": False})
    assert (off.state, off.error, off.description) == ("disabled", None, "Divides")
    write_plugin(tmp_path, "one", NOTHING, "{broken")
    assert (await one(tmp_path)).state == "error"
    assert (await one(tmp_path, one={"enabled": False})).state == "disabled"


async def test_an_unknown_setting_is_told_and_left_out(tmp_path: Path):
    write_plugin(tmp_path, "one", TYPED, OWN)
    async with opened(tmp_path, one={"settings": {"documnts": ["x"], "zzzzzz": 1}}) as plugins:
        await plugins.wait_loaded()
        assert plugins.entries["one"].plugin.settings == {"documents": [], "top_k": 7}
        told = listed(plugins)["one"]
    assert told.state == "ready"
    assert told.warnings == (
        "plugins.one.settings.documnts: unknown setting, ignored; did you mean 'documents'?",
        "plugins.one.settings.zzzzzz: unknown setting, ignored; there are documents, top_k",
    )
    assert "settings.documnts" not in told.sources


async def test_what_a_plugin_without_a_dataclass_does_not_know_is_its_own_affair(tmp_path: Path):
    write_plugin(tmp_path, "one", NOTHING)
    told = await one(tmp_path, one={"settings": {"anything": 1}})
    assert (told.state, told.warnings, told.sources["settings.anything"]) == ("ready", (), "configuration")


async def test_a_wrong_type_of_the_configuration_is_the_plugins_error(tmp_path: Path):
    write_plugin(tmp_path, "one", TYPED, OWN)
    for settings, says in {
        ("documents", "~/papers"): "plugins.one.settings.documents: expected `array`, got `str`",
        ("documents", 3): "plugins.one.settings.documents: expected `array`, got `int`",
        ("top_k", "three"): "plugins.one.settings.top_k: expected `int`, got `str`",
        ("top_k", 0): "'top_k' must be 1 or more",
    }.items():
        told = await one(tmp_path, one={"settings": dict([settings])})
        assert told.state == "error"
        assert says in told.error


async def test_a_mistake_of_config_json_is_told_and_left_to_the_plugin(tmp_path: Path):
    write_plugin(tmp_path, "one", TYPED, {"settings": {"documents": [], "top_k": "many"}})
    told = await one(tmp_path)
    assert told.state == "ready"
    assert told.warnings == ("config.json: settings.top_k: expected `int`, got `str`",)


async def test_only_plugins_whose_values_change_are_loaded_again(tmp_path: Path):
    for name in ("one", "two"):
        write_plugin(tmp_path, name, NOTHING)
    async with opened(tmp_path, one={"settings": {"a": 1}}) as plugins:
        first, second = [await plugins.entries[name].hooks() for name in ("one", "two")]
        plugins.choice = choice(tmp_path, one={"settings": {"a": 2}})
        await plugins.look()
        assert await plugins.entries["one"].hooks() is not first
        assert await plugins.entries["two"].hooks() is second
        assert plugins.entries["one"].plugin.settings == {"a": 2}
        plugins.choice = PluginSelection(off="for this test")
        await plugins.look()
        assert plugins.listed().agents == []


async def test_every_plugin_that_ships_says_what_can_be_set():
    async with opened(bundled_folder()) as plugins:
        await plugins.wait_loaded()
        for name, each in listed(plugins).items():
            assert (await plugins.entries[name].hooks()).settings is not None, name
            assert each.warnings == ()
