"""What is shown reads back as the same configuration; the schema says what the decoder takes."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import msgspec.inspect as mi
import pytest
from drawn_json import json_values
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from test_load import SEED, SEED_ENV
from whole_config import WHOLE

from appliance.core.config.load import SourceFile, load
from appliance.core.config.show import schema, shown, yaml_text
from appliance.core.config.types import Config


def read(text: str, **env: str) -> Config:
    loaded = load([SourceFile("c.yaml", text)], env, config_type=WHOLE)
    assert loaded.errors == ()
    return loaded.require()


def both_ways(config: Config) -> None:
    for text in (msgspec.json.encode(shown(config)).decode(), yaml_text(shown(config))):
        loaded = load([SourceFile("shown", text)], {}, config_type=WHOLE)
        assert loaded.errors == (), text
        assert loaded.config == config


def test_the_example_and_nothing_read_back() -> None:
    both_ways(read(SEED.read_text("utf-8"), **SEED_ENV))
    both_ways(read(""))


def test_key_names_are_the_files_and_everything_is_filled_in() -> None:
    tree = shown(
        read("globalTTL: 7\nmacros: {x: 1}\ngroups: {g: {members: [m]}}\nmodels:\n  m: {cmd: 'run ${PORT} ${x}'}\n")
    )
    assert tree["globalTTL"] == 7
    assert not {"macros", "groups", "matrix", "store", "server_pool", "modelsMax"} & tree.keys()
    model: Any = tree["models"]
    assert model["m"]["argv"] == ["run", "5800", "1"]
    assert (model["m"]["ttl"], model["m"]["proxy"], model["m"]["unloadTimeout"]) == (7, "http://localhost:5800", 10)
    assert "macros" not in model["m"]
    routing: Any = tree["routing"]
    assert routing["router"]["use"] == "group"
    assert list(routing["router"]["settings"]["groups"]) == ["g", "(default)"]
    assert "matrix" not in routing["router"]["settings"]


def test_yaml_keeps_commands_readable_and_quotes_what_looks_like_something_else() -> None:
    text = yaml_text(
        {
            "cmd": "a\nb --c\n",
            "num": "0777",
            "w": "on",
            "t": "12:30:45",
            "e": "1e3",
            "p": "plain text",
            "l": [],
            "u": "é",
        }
    )
    assert text == 'cmd: |\n  a\n  b --c\nnum: "0777"\nw: "on"\nt: "12:30:45"\ne: "1e3"\np: plain text\nl: []\nu: "é"\n'


PRINTABLE = st.characters(exclude_categories=("C", "Z"), include_characters=" \t\n", exclude_characters="$")
TEXT = st.text(PRINTABLE, max_size=12)
NAME = st.text(st.sampled_from("abcXYZ019-_./: é#'\""), min_size=1, max_size=8).filter(
    lambda name: bool(name.strip()) and name not in ("<<",)
)
JSON_VALUES = json_values(NAME, text=TEXT, leaves=6)
OBJECT = st.dictionaries(NAME, JSON_VALUES, max_size=3)
SECONDS = st.integers(0, 10_000)


@st.composite
def configs(draw: st.DrawFn) -> dict[str, object]:
    """A configuration as somebody might write it, valid by construction."""
    ids = draw(st.lists(NAME, max_size=4, unique=True))
    models: dict[str, object] = {}
    for n, id in enumerate(ids):
        models[id] = {
            "cmd": draw(TEXT) + " --port ${PORT}",
            "aliases": [f"alias {n}"] if draw(st.booleans()) else [],
            "ttl": draw(st.integers(-1, 100)),
            "name": draw(TEXT),
            "description": draw(TEXT),
            "env": [f"A={draw(TEXT)}"],
            "filters": {
                "stripParams": draw(TEXT),
                "setParams": draw(st.dictionaries(NAME, JSON_VALUES, max_size=2)),
                "setParamsByID": {f"variant {n}": draw(OBJECT)} if draw(st.booleans()) else {},
            },
            "metadata": draw(OBJECT),
            "capabilities": {"in": draw(st.lists(st.sampled_from(["text", "audio", "image"]), max_size=2))},
            "memory": {"gpu0": draw(st.sampled_from(["12GiB", "500MB", 7]))},
            **({"sendLoadingState": draw(st.booleans())} if draw(st.booleans()) else {}),
        }
    groups = (
        {"g": {"swap": draw(st.booleans()), "members": draw(st.lists(st.sampled_from(ids), unique=True))}}
        if ids
        else {}
    )
    matrix = {
        "vars": {f"v{n}": id for n, id in enumerate(ids)},
        "sets": {"all": " & ".join(f"v{n}" for n in range(len(ids)))},
    }
    policy = draw(st.sampled_from(["groups", "matrix", "none"])) if ids else "none"
    return {
        "healthCheckTimeout": draw(st.integers(15, 1000)),
        "globalTTL": draw(SECONDS),
        "unloadTimeout": draw(SECONDS),
        "patience": draw(st.integers(-1, 100)),
        "performance": {"every": draw(st.sampled_from(["5s", "1m30s", "0"]))},
        "models": models,
        **({"groups": groups} if policy == "groups" else {"matrix": matrix} if policy == "matrix" else {}),
        "hooks": {"on_startup": {"preload": draw(st.lists(st.sampled_from(ids), max_size=3)) if ids else []}},
        "profiles": {"p": {"pins": {"pin name": draw(st.sampled_from([None, "", *ids]))}}},
        "selectors": {"selector name": {"targets": draw(st.lists(st.sampled_from(ids), min_size=1, unique=True))}}
        if ids
        else {},
        "peers": {
            "peer name": {"proxy": "https://h/v1", "models": draw(st.lists(st.sampled_from(["x", "y/z"]), unique=True))}
        },
        **({"modelsMax": draw(st.integers(0, 9))} if draw(st.booleans()) else {}),
        **({"store": {"path": "a.db"}} if draw(st.booleans()) else {}),
    }


@given(configs())
def test_any_configuration_reads_back(tree: dict[str, object]) -> None:
    loaded = load([SourceFile("c.yaml", yaml_text(tree))], {}, config_type=WHOLE)
    assert loaded.errors == ()
    both_ways(loaded.require())


# ---- the schema ------------------------------------------------------------------------------------------------------


def test_the_schema_takes_what_is_shown_and_what_people_write() -> None:
    told = schema(WHOLE)
    Draft202012Validator.check_schema(told)
    config = read(SEED.read_text("utf-8"), **SEED_ENV)
    for good in (
        shown(config),
        {},
        {"startPort": "${env.PORT}", "logRequests": None, "models": {"m": None}},
        {"models": {"m": {"cmd": "x", "ttl": 5, "filters": {"strip_params": "a"}, "name": 5}}},
        {"matrix": {"sets": {"s": "a"}}, "store": {"path": "x"}},
        {"profiles": {"p": {"pins": {"a": None, "b": "c"}}}},
    ):
        Draft202012Validator(told).validate(good)


@pytest.mark.parametrize(
    "bad",
    [
        {"startport": 1},
        {"startPort": "many"},
        {"startPort": 0},
        {"logToStdout": "loud"},
        {"models": []},
        {"models": {"m": {"ttl": -2}}},
        {"models": {"m": {"tll": 5}}},
        {"models": {"m": {"capabilities": {"in": ["video"]}}}},
        {"apiKeys": "one"},
    ],
)
def test_the_schema_refuses_what_the_decoder_refuses(bad: dict[str, object]) -> None:
    assert not Draft202012Validator(schema(WHOLE)).is_valid(bad)
    loaded = load([SourceFile("c.json", json.dumps(bad))], {})
    assert loaded.problems


def test_every_key_of_the_schema_is_described_and_has_a_default() -> None:
    def fields(kind: mi.Type) -> list[mi.Field]:
        match kind:
            case mi.Metadata(type=inner):
                return fields(inner)
            case mi.StructType(fields=own):
                return [*own, *(field for one in own for field in fields(one.type))]
            case mi.DictType(value_type=item) | mi.ListType(item_type=item):
                return fields(item)
            case mi.UnionType(types=kinds):
                return [field for each in kinds for field in fields(each)]
            case _:
                return []

    told = fields(mi.type_info(WHOLE))
    assert len(told) > 90
    for field in told:
        assert isinstance(field.type, mi.Metadata), field.name
        assert (field.type.extra_json_schema or {}).get("description"), field.name
        assert not field.required
