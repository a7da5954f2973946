"""What the configuration puts over a plugin's own config.json, and what is wrong with that."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import trio
from plugin_folders import write_plugin

from appliance.core.config.additions import PluginConfig
from appliance.features.plugins.registry import ListedPlugin, Plugins, open_plugins
from appliance.plugins.folders import PluginSelection, bundled_folder

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
PLAIN = "def on_request(request, context): pass"
OWN = {"settings": {"documents": [], "top_k": 7}, "timeout": 5}


def given(**plugins: object) -> Mapping[str, PluginConfig]:
    return msgspec.convert(plugins, dict[str, PluginConfig])


def choice(folder: Path, **plugins: object) -> PluginSelection:
    return PluginSelection(folders=(folder,), given=given(**plugins))


def listed(plugins: Plugins) -> dict[str, ListedPlugin]:
    return {each.name: each for each in plugins.listed().agents}


async def one(folder: Path, **plugins: object) -> ListedPlugin:
    async with open_plugins(choice(folder, **plugins), folder / "data") as opened:
        with trio.fail_after(20):
            await opened.wait_loaded()
        return listed(opened)["one"]


async def test_each_value_comes_from_the_strongest_that_has_it(tmp_path: Path):
    write_plugin(tmp_path, "one", TYPED, OWN)
    async with open_plugins(choice(tmp_path, one={"settings": {"documents": ["~/papers"]}}), tmp_path / "d") as opened:
        with trio.fail_after(20):
            hooks = await opened.entries["one"].hooks()
        plugin = opened.entries["one"].plugin
        told = listed(opened)["one"]
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
    write_plugin(tmp_path, "one", PLAIN, {"enabled": False})
    assert (await one(tmp_path)).state == "disabled"
    assert (await one(tmp_path, one={"enabled": True, "timeout": 9})).state == "ready"
    write_plugin(tmp_path, "one", "1 / 0", {"description": "Divides"})
    off = await one(tmp_path, one={"enabled": False})
    assert (off.state, off.error, off.description) == ("disabled", None, "Divides")
    write_plugin(tmp_path, "one", PLAIN, "{broken")
    assert (await one(tmp_path)).state == "error"
    assert (await one(tmp_path, one={"enabled": False})).state == "disabled"


async def test_an_unknown_setting_is_told_and_left_out(tmp_path: Path):
    write_plugin(tmp_path, "one", TYPED, OWN)
    settings = {"documnts": ["x"], "zzzzzz": 1}
    async with open_plugins(choice(tmp_path, one={"settings": settings}), tmp_path / "data") as opened:
        with trio.fail_after(20):
            await opened.wait_loaded()
        assert opened.entries["one"].plugin.settings == {"documents": [], "top_k": 7}
        told = listed(opened)["one"]
    assert told.state == "ready"
    assert told.warnings == (
        "plugins.one.settings.documnts: unknown setting, ignored; did you mean 'documents'?",
        "plugins.one.settings.zzzzzz: unknown setting, ignored; there are documents, top_k",
    )
    assert "settings.documnts" not in told.sources


async def test_what_a_plugin_without_a_dataclass_does_not_know_is_its_own_affair(tmp_path: Path):
    write_plugin(tmp_path, "one", PLAIN)
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
        write_plugin(tmp_path, name, PLAIN)
    async with open_plugins(choice(tmp_path, one={"settings": {"a": 1}}), tmp_path / "data") as opened:
        with trio.fail_after(20):
            first, second = [await opened.entries[name].hooks() for name in ("one", "two")]
        opened.choice = choice(tmp_path, one={"settings": {"a": 2}})
        await opened.look()
        with trio.fail_after(20):
            assert await opened.entries["one"].hooks() is not first
            assert await opened.entries["two"].hooks() is second
        assert opened.entries["one"].plugin.settings == {"a": 2}
        opened.choice = PluginSelection(off="for this test")
        await opened.look()
        assert opened.listed().agents == []


async def test_every_plugin_that_ships_says_what_can_be_set():
    async with open_plugins(PluginSelection(folders=(bundled_folder(),)), Path("unused")) as opened:
        with trio.fail_after(20):
            await opened.wait_loaded()
            for name in listed(opened):
                hooks = await opened.entries[name].hooks()
                assert hooks.settings is not None, name
                assert listed(opened)[name].warnings == ()
