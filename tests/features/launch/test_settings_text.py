"""Edits of settings files: each client's own section in files that users have written by hand."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from appliance.features.launch.core.clients import CLIENTS, Client, facts, patch_of, paths
from appliance.features.launch.core.jsonc import DEEPEST, NotJson, merged, patched, read
from appliance.features.launch.core.settings_text import NotEditable, edited

WITH_FILES = [client for client in CLIENTS if client.places]
by_name = pytest.mark.parametrize("client", WITH_FILES, ids=[client.name for client in WITH_FILES])
MODEL = 'acme/"tiny"-GGUF:Q8_0'
THERE = {
    "json": """\ufeff// mine
{
\t"theme": "dark", // of the night
\t/* other { things */
\t"provider": {"mine": {"npm": "x", "models": {}}},
\t"providers": {
\t\t"mine": {"base_url": "http://there/v1"}, // last
\t},
\t"models": {"large": {"model": "big", "provider": "mine", "think": true}},
\t"modelProviders": {"openai": [{"id": "mine", "envKey": "X"},], "gemini": []},
\t"language_models": {},
\t"agent": {
\t},
\t"url": "http://a//b", "list": [1, 2.5e3, null, "\\u00e9\\""],
}
""",
    "toml": """# mine
model = "gpt-5" # the best
since = 2024-01-01

[model_providers.mine]
name = "mine"
base_url = "http://there/v1"

# servers of tools
[mcp_servers.files]
command = "mcp"
args = ["a", '''b''']
""",
    "yaml": """# mine
name: Mine
version: 0.0.1
schema: v1
models: # of the house
  # the first one
  - name: Big
    provider: &p openai
    roles:
      - chat
rules:
  - Be brief: always
  - >-
    Say it
    once.
""",
}


def patch(client: Client, model: str = MODEL, context: int = 65536) -> Any:
    return patch_of(client, facts(client, "http://127.0.0.1:8080", model, context, "k-of-mine"))


def loaded(client: Client, text: str) -> Any:
    if client.form == "toml":
        return tomllib.loads(text)
    return read(text).value if client.form == "json" else yaml.safe_load(text)


@by_name
def test_other_settings_and_comments_stay(client: Client) -> None:
    there, wanted = THERE[client.form], patch(client)
    new = edited(client.form, there, wanted)
    assert json.dumps(MODEL)[1:-1] in new or client.name == "codex"
    assert "k-of-mine" not in new
    if client.form != "json":
        assert set(there.splitlines()) <= set(new.splitlines())
    before, after = loaded(client, there), loaded(client, new)
    for key in before.keys() - wanted.keys():
        assert after[key] == before[key]
    for comment in ("mine", "of the night", "other { things", "last", "the best", "servers of tools", "the first one"):
        assert (comment in there) <= (comment in new)
    if client.form == "json":
        assert after == merged(before, wanted)
        provider = next(iter(wanted))
        assert (before[provider].keys() if isinstance(before[provider], dict) else set()) <= after[provider].keys()


@by_name
@pytest.mark.parametrize("was", ["there", "empty", "windows"])
def test_a_second_edit_changes_nothing(client: Client, was: str) -> None:
    there = {"there": THERE[client.form], "empty": "", "windows": THERE[client.form].replace("\n", "\r\n")}[was]
    new = edited(client.form, there, patch(client))
    assert edited(client.form, new, patch(client)) == new
    if was == "windows" and client.form == "json":
        assert "\n" not in new.replace("\r\n", "")


@by_name
def test_another_context_or_model_is_written(client: Client) -> None:
    first = edited(client.form, THERE[client.form], patch(client))
    assert edited(client.form, first, patch(client, context=32768)) != first or client.name == "codex"
    both = edited(client.form, first, patch(client, "other"))
    assert (json.dumps(MODEL)[1:-1] in both and '"other"' in both) or client.name == "codex"
    back = edited(client.form, both, patch(client))
    assert loaded(client, back).keys() == loaded(client, first).keys()


BROKEN = {
    "json": ['{"a": 1', '{"a": }', "[1]", '{"a": 1} x', '{"a": 1, "a": 2}', '{"a" 1}', '{"a": 01}', '{"\\x": 1}'],
    "toml": ["[a", "x = ", '[model_providers]\nllama-appliance = {name = "x"}\n', "model_providers = 1"],
    "yaml": ["a: [", "- a", "models: {a: b}", "models: [{name: x}]", "a: b\n\tc: d"],
}


@pytest.mark.parametrize(
    ("client", "text"),
    [pytest.param(each, text, id=f"{each.name}-{text}") for each in WITH_FILES for text in BROKEN[each.form]],
)
def test_what_is_broken_is_refused(client: Client, text: str) -> None:
    with pytest.raises(NotEditable):
        edited(client.form, text, patch(client))


def test_an_error_says_where() -> None:
    with pytest.raises(NotEditable, match="line 3, column 8: a value is expected"):
        edited("json", '{\n  "a": 1,\n  "b": ,\n}', {})
    with pytest.raises(NotJson, match="too deep"):
        read("[" * (DEEPEST + 2))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)
OBJECT = st.dictionaries(st.sampled_from(["a", "b", "c", "é"]), JSON, max_size=4)


@given(OBJECT, OBJECT, st.sampled_from([None, 2, "\t"]), st.booleans())
def test_a_patched_text_means_the_merged_value(there: Any, new: Any, indent: int | str | None, commented: bool) -> None:
    text = json.dumps(there, indent=indent, ensure_ascii=False)
    text = f"// a\n{text}/* b */\n" if commented else text
    found = patched(text, new)
    assert read(found).value == merged(there, new)
    assert patched(found, new) == found
    assert not commented or (found.startswith("// a\n") and found.endswith("/* b */\n"))


def test_variables_lead_to_the_files() -> None:
    usual = {each.name: paths(each, "linux", "/h", {})[-1] for each in WITH_FILES}
    assert usual == {
        "codex": "/h/.codex/config.toml",
        "opencode": "/h/.config/opencode/opencode.json",
        "qwen": "/h/.qwen/settings.json",
        "crush": "/h/.config/crush/crush.json",
        "continue": "/h/.continue/config.yaml",
        "pi": "/h/.pi/agent/models.json",
        "zed": "/h/.config/zed/settings.json",
    }
    zed = next(each for each in CLIENTS if each.name == "zed")
    assert paths(zed, "win32", "C:/u", {"APPDATA": "D:/a"}) == ["D:/a/Zed/settings.json"]
    assert paths(zed, "darwin", "/h", {"XDG_CONFIG_HOME": "/x"}) == ["/h/.config/zed/settings.json"]
    codex = next(each for each in CLIENTS if each.name == "codex")
    assert paths(codex, "linux", "/h", {"CODEX_HOME": "/c"}) == ["/c/config.toml"]
