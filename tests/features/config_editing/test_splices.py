"""Edits of a form: the text means what was asked, and every other line stays."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from node_values import mapping, plain

from appliance.errors import UsageError
from appliance.features.config_editing.core.asked import Setting
from appliance.features.config_editing.core.splices import with_value

TEXT = """\
# head

globalTTL: 60  # a minute
models:
  # the large one
  llama:
    cmd: |
      llama-server --port ${PORT}   # no comment of YAML
    aliases:   # other names
      - a  # one
      - b
    ttl: 60 # seconds
  qwen: {cmd: "x ${env.FOO}", name: q}  # small
  folded: { name: two
      lines, ttl: 1 }
  äöü:
    description: |
      text

    env: []
peers: {}
"""
QWEN = '  qwen: {cmd: "x ${env.FOO}", name: q}  # small'
values = st.one_of(st.booleans(), st.integers(-(1 << 40), 1 << 40), st.text(st.characters(codec="ascii")), st.none())
names = st.sampled_from(["ttl", "name", "aliases", "unlisted", "cmd", "description"])
models = st.sampled_from(["llama", "qwen", "äöü"])


@pytest.mark.parametrize(
    ("path", "value", "gone", "come"),
    [
        ("models.llama.ttl", 300, ["    ttl: 60 # seconds"], ["    ttl: 300 # seconds"]),
        ("models.llama.ttl", None, ["    ttl: 60 # seconds"], []),
        ("models.llama.name", 'Ünï "x"', [], ['    name: "Ünï \\"x\\""']),
        ("models.llama.aliases", ["c"], ["      - a  # one", "      - b"], ['      - "c"']),
        ("models.qwen.ttl", 5, [QWEN], ['  qwen: {"ttl": 5, cmd: "x ${env.FOO}", name: q}  # small']),
        ("models.qwen.name", None, [QWEN], ['  qwen: {cmd: "x ${env.FOO}"}  # small']),
        ("models.äöü.description", "b", ["    description: |", "      text"], ['    description: "b"']),
        ("globalTTL", 9, ["globalTTL: 60  # a minute"], ["globalTTL: 9  # a minute"]),
        ("queueLimit", 9, [], ["queueLimit: 9"]),
    ],
)
def test_one_key_changes_and_every_other_line_stays(
    path: str, value: Setting, gone: list[str], come: list[str]
) -> None:
    before, after = TEXT.split("\n"), with_value(TEXT, path.split("."), value).split("\n")
    assert [line for line in before if line not in after] == gone
    assert [line for line in after if line not in before] == come
    assert [line for line in after if line not in come] == [line for line in before if line not in gone]


@given(models, names, values | st.lists(st.text(st.characters(codec="ascii")), min_size=1))
def test_the_text_means_what_was_asked(model: str, name: str, value: Setting) -> None:
    try:
        edited = with_value(TEXT, ["models", model, name], value)
    except UsageError:
        return  # a text that JSON can say and YAML cannot
    expected: Any = plain(mapping(TEXT.replace("${env.FOO}", "foo")))
    if value is None:
        expected["models"][model].pop(name, None)
    else:
        expected["models"][model][name] = value
    if "${env" not in str(value):
        assert plain(mapping(edited.replace("${env.FOO}", "foo"))) == expected


@given(
    st.dictionaries(st.text("ab#: '\"", max_size=4), st.text("ab#: '\"", max_size=4)), st.integers(-(1 << 40), 1 << 40)
)
def test_json_is_edited_as_well(others: dict[str, str], ttl: int) -> None:
    text = json.dumps({"models": {"m": {**others, "cmd": "x"}}}, indent=1)
    edited = with_value(text, ["models", "m", "ttl"], ttl)
    assert json.loads(edited) == {"models": {"m": {"ttl": ttl, **others, "cmd": "x"}}}


def test_lines_keep_their_ends() -> None:
    edited = with_value("models:\r\n  m:\r\n    cmd: x\r\n", ["models", "m", "ttl"], 5)
    assert edited == "models:\r\n  m:\r\n    ttl: 5\r\n    cmd: x\r\n"


@pytest.mark.parametrize(
    "text",
    [
        "models: {m: &a {cmd: x}, n: *a}", "models:\n  n:\n", "models: {m: {cmd: x}}", "models: [", "",
        "models: {n: {ttl: &t 5}, o: {ttl: *t}}",
    ],
)  # fmt: skip
def test_an_unusual_way_to_write_is_not_damaged(text: str) -> None:
    with pytest.raises(UsageError, match=r"models\.n\.ttl is written in a way"):
        with_value(text, ["models", "n", "ttl"], 7)
