"""Edits of a form and over HTTP: the text means what was asked, other lines stay, and nothing of what runs changes."""

from __future__ import annotations

import copy
import json
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from node_values import mapping, plain
from test_load import SEED, read
from whole_config import WHOLE

from appliance.core.config.decode import ANY
from appliance.errors import InvalidConfig, UsageError
from appliance.features.config_editing.core.asked import Setting
from appliance.features.config_editing.core.remote_edits import changeable, model_fields, program_fields, refusals
from appliance.features.config_editing.core.splices import with_value

CHANGEABLE = changeable(WHOLE)

DOCUMENT: dict[str, Any] = {
    "startPort": 5800,
    "globalTTL": 60,
    "logLevel": "info",
    "macros": {"bin": "llama-server --port ${PORT}", "late": "${bin} -c 1"},
    "apiKeys": ["k"],
    "models": {
        "a": {"cmd": "${late} -m a", "ttl": 5, "aliases": ["x"], "env": ["A=b"], "macros": {"own": "o"}},
        "b": {"cmd": "${bin} -m b", "proxy": "http://127.0.0.1:${PORT}", "filters": {"setParams": {"top_k": 4}}},
    },
    "hooks": {"on_startup": {"preload": ["a"]}},
    "tools": {"enable": ["get_info"], "root": "/srv"},
    "peers": {"far": {"proxy": "http://192.0.2.1", "apiKey": "k", "models": ["m"]}},
    "streams": {"path": "/tmp/s", "keep": 5},
    "mcp_servers": {"files": {"command": "run", "args": ["x"]}},
    "store": {"path": "/tmp/activity.db"},
}
nothing: dict[str, object] = {}
leaves: st.SearchStrategy[object] = st.one_of(
    st.text("ab${} -/", max_size=5), st.integers(0, 99), st.booleans(), st.just(["z"]), st.just(nothing)
)
keys = st.sampled_from(
    ["cmd", "cmdStop", "proxy", "env", "engine", "gpu", "rpc", "checkEndpoint", "macros", "compat", "ttl", "name",
     "filters", "aliases", "metadata", "description", "startPort", "ollamaPort", "apiKeys", "tools", "mcp_servers",
     "hooks", "plugins", "plugins_dir", "store", "autoDownload", "upstream", "peers", "path", "keep", "late", "bin"]
)  # fmt: skip


def told(old: object, new: object) -> list[str]:
    return [problem.path for problem in refusals(json.dumps(old), json.dumps(new), "c.yaml", WHOLE)]


def placed(path: str) -> tuple[dict[str, Any], dict[str, Any], str]:
    """A copy of the document, the mapping in it that has the path's last key, and that key."""
    new = place = copy.deepcopy(DOCUMENT)
    *outer, last = path.split(".")
    for name in outer:
        place = place[name]
    return new, place, last


def mappings_in(place: dict[str, Any]) -> list[dict[str, Any]]:
    return [cast("dict[str, Any]", one) for one in place.values() if isinstance(one, dict) and one]


@st.composite
def edits(draw: st.DrawFn) -> dict[str, Any]:
    """The document after one to three random edits anywhere."""
    new = copy.deepcopy(DOCUMENT)
    for _ in range(draw(st.integers(1, 3))):
        place = new
        while draw(st.integers(0, 4)) and (inner := mappings_in(place)):
            place = draw(st.sampled_from(inner))
        key = draw(st.sampled_from(sorted(place)) | keys)
        match draw(st.sampled_from(["set", "remove", "reorder", "alter"])):
            case "remove":
                place.pop(key, None)
            case "reorder":
                place[key] = place.pop(key, 1)
            case "alter" if isinstance(place.get(key), str):
                place[key] += draw(st.sampled_from([" ", "x", "${bin}", "${env.X}"]))
            case _:
                place[key] = draw(leaves)
    return new


def unchangeable(tree: Any, path: tuple[str, ...] = ()) -> Any:
    """The tree without every key that may change, and with the order of the others."""
    if not isinstance(tree, dict):
        return tree
    found: list[tuple[str, Any]] = []
    entries: dict[str, Any] = cast("dict[str, Any]", tree)
    for key, value in entries.items():
        free = any(one[: len(path) + 1] == (*path, ANY) for one in CHANGEABLE)
        inner = (*path, ANY if free else key)
        if inner not in CHANGEABLE and (left := unchangeable(value, inner)) not in ([], None):
            found.append((key, left))
    around = any(one[: len(path)] == path for one in CHANGEABLE)
    return sorted(found, key=lambda pair: pair[0]) if around else found


@given(edits())
def test_an_edit_of_anything_else_is_refused_and_named(new: dict[str, Any]) -> None:
    paths = told(DOCUMENT, new)
    if unchangeable(new) != unchangeable(DOCUMENT):
        assert paths
    for path in paths:
        assert path.split(".")[0] in {**DOCUMENT, **new}


@given(st.sampled_from(["models", "globalTTL", "streams", "models.a.ttl", "models.b.filters"]), st.integers(0, 99))
def test_a_misspelt_key_is_called_so_and_is_the_only_one_named(path: str, at: int) -> None:
    """Not a key that cannot be changed: somebody who reads that looks for a permission."""
    new, place, last = placed(path)
    wrong = last[: at % len(last)] + last[at % len(last) + 1 :] + "s" * (at % 2)
    if wrong == last or not wrong:
        return
    place[wrong] = place.pop(last)
    (found,) = refusals(json.dumps(DOCUMENT), json.dumps(new), "c.yaml", WHOLE)
    assert found.path == path.removesuffix(last) + wrong
    assert found.message.startswith("unknown key; ")


@given(edits())
def test_what_is_not_refused_means_the_same_for_all_that_runs(new: dict[str, Any]) -> None:
    if told(DOCUMENT, new):
        return
    loaded = read(json.dumps(new))
    if loaded.config is None:
        return  # the checker refuses it
    before = msgspec.to_builtins(read(json.dumps(DOCUMENT)).require())
    after = msgspec.to_builtins(loaded.config)
    named = ["startPort", "apiKeys", "hooks", "tools", "mcp_servers", "store", "plugins", "ollamaPort", "upstream"]
    assert {place: before[place] for place in named} == {place: after[place] for place in named}
    for model in before["models"]:
        for key in ("cmd", "cmdStop", "argv", "env", "proxy", "engine", "gpu", "rpc", "checkEndpoint", "compat"):
            assert before["models"][model][key] == after["models"][model][key]
    assert set(before["models"]) == set(after["models"])
    assert "X}" not in json.dumps(after)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("models.a.ttl", 9),
        ("models.a.aliases", ["y", "z"]),
        ("models.b.filters", {"stripParams": "top_p"}),
        ("models.a.name", "A"),
        ("globalTTL", 1),
        ("logLevel", "debug"),
        ("profiles", {"p": {"pins": {"x": "a"}}}),
        ("streams.keep", 7),
        ("peers.far.timeouts", {"connect": 3}),
    ],
)
def test_an_edit_of_how_models_are_used_is_not(path: str, value: object) -> None:
    new, place, last = placed(path)
    place[last] = value
    assert told(DOCUMENT, new) == []
    for secret in ("${bin}", "${env.HOME}", "(secret 1)"):
        place[last] = {secret: [value]}
        assert told(DOCUMENT, new) == [path]


@pytest.mark.parametrize(
    "path", ["models.a.cmdStop", "models.a.macros.more", "models.b.rpc", "ollamaPort", "plugins_dir"]
)
def test_a_key_that_may_not_change_does_not_come_or_go(path: str) -> None:
    new, place, last = placed(path)
    place[last] = "x"
    for old, edited in ((DOCUMENT, new), (new, DOCUMENT)):
        (named,) = told(old, edited)
        assert path.startswith(named)


def test_an_alias_is_what_it_stands_for() -> None:
    text = "models:\n  a: {cmd: &c run, name: x}\n  b: {cmd: *c}\n"
    found = [one.path for one in refusals(text, text.replace("&c run", "&c walk"), "c.yaml")]
    assert found == ["models.a.cmd", "models.b.cmd"]
    assert refusals(text, text.replace("name: x", "name: y"), "c.yaml") == []


def test_a_text_with_mistakes_is_refused_with_them() -> None:
    with pytest.raises(InvalidConfig, match=r"c\.yaml:1:13"):
        refusals("globalTTL: 1", "globalTTL: [", "c.yaml")


def test_a_real_file_is_the_same_as_itself() -> None:
    text = SEED.read_text("utf-8")
    assert refusals(text, text, "c.yaml") == []


def test_every_key_of_the_list_and_every_field_of_a_form_is_in_the_schema() -> None:
    from appliance.core.config.show import schema

    found = schema(WHOLE)
    parts = {"models": "ModelConfig", "peers": "Peer"}
    for path in CHANGEABLE:
        part = found if len(path) == 1 else found["$defs"][parts.get(path[0], f"{path[0].title()}Config")]
        assert path[-1] in part["properties"], path
    kinds = {field.kind for field in [*program_fields(), *model_fields()]}
    assert kinds == {"text", "number", "switch", "list", "choice"}


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
