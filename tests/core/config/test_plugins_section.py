"""``plugins`` of a configuration: whether there are any is said by the key alone."""

from __future__ import annotations

import msgspec
import pytest

from appliance.core.config.additions import PluginConfig
from appliance.core.config.load import Loaded, SourceFile, load
from appliance.core.config.show import shown


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


@pytest.mark.parametrize("text", ["models: {}", "plugins:", "plugins: {rag: {timeout: 3}, json: {enabled: true}}"])
def test_what_is_shown_reads_back_as_the_same(text: str):
    config = read(text).require()
    again = read(msgspec.json.encode(shown(config)).decode()).require()
    assert again == config
    assert ("plugins" in shown(config)) == (config.plugins is not None)
