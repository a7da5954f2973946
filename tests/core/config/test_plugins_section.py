"""``plugins`` of a configuration: whether there are any is said by the key alone."""

from __future__ import annotations

import msgspec
import pytest

from appliance.core.config.additions import PluginConfig
from appliance.core.config.load import Loaded, SourceFile, load
from appliance.core.config.show import schema, shown


def read(text: str, *more: str) -> Loaded:
    sources = [SourceFile(f"{number}.yaml", each) for number, each in enumerate((text, *more))]
    return load(sources, {})


@pytest.mark.parametrize("text", ["plugins:", "plugins: {}", "plugins: null", '{"plugins": {}}'])
def test_the_key_alone_says_that_there_are_plugins(text: str):
    assert read(text).require().plugins == {}


@pytest.mark.parametrize("text", ["", "models: {}", '{"server_pool": {"num_servers": 1}}'])
def test_without_it_nothing_is_said(text: str):
    assert read(text).require().plugins is None


def test_what_is_said_of_a_plugin():
    config = read("""
macros: {papers: ~/papers}
plugins:
  rag: {settings: {documents: ["${papers}", two], deep: {a: [1, null]}, none: null}, timeout: 20}
  json: {enabled: off}
""").require()
    assert config.plugins == {
        "rag": PluginConfig(
            settings={"documents": ["~/papers", "two"], "deep": {"a": [1, None]}, "none": None}, timeout=20
        ),
        "json": PluginConfig(enabled=False),
    }


@pytest.mark.parametrize(
    ("text", "path", "says"),
    [
        ("plugins: [rag]", "plugins", "must be a mapping"),
        ("plugins: {rag: on}", "plugins.rag", "must be a mapping"),
        ("plugins: {rag: {enabled: maybe}}", "plugins.rag.enabled", "must be true or false"),
        ("plugins: {rag: {timeout: 0}}", "plugins.rag.timeout", "must be 1 or more"),
        ("plugins: {rag: {settings: [1]}}", "plugins.rag.settings", "must be a mapping"),
    ],
)
def test_a_wrong_type_is_an_error_with_its_place(text: str, path: str, says: str):
    [error] = read(text).errors
    assert error.path == path
    assert says in error.message
    assert error.at is not None


def test_an_unknown_key_is_a_warning_that_names_the_nearest():
    [warning] = read("plugins: {rag: {setings: {}}}").warnings
    assert "did you mean 'settings'?" in warning.message


def test_files_are_joined_setting_by_setting():
    loaded = read("plugins: {rag: {settings: {a: 1}}}", "plugins: {rag: {settings: {b: 2}}, json: {}}")
    config = loaded.require()
    assert config.plugins == {"rag": PluginConfig(settings={"a": 1, "b": 2}), "json": PluginConfig()}


@pytest.mark.parametrize("text", ["models: {}", "plugins:", "plugins: {rag: {timeout: 3}, json: {enabled: true}}"])
def test_what_is_shown_reads_back_as_the_same(text: str):
    config = read(text).require()
    again = read(msgspec.json.encode(shown(config)).decode()).require()
    assert again == config
    assert ("plugins" in shown(config)) == (config.plugins is not None)


def test_the_schema_knows_it():
    told = msgspec.json.encode(schema()).decode()
    assert '"PluginConfig"' in told
