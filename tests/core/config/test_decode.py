"""Every value gets its type or a problem that says where it stands and what would be right."""

from __future__ import annotations

import msgspec
import msgspec.inspect as mi
import pytest
from drawn_json import json_values
from hypothesis import given
from hypothesis import strategies as st

from appliance.core.config.decode import Decoded, decode
from appliance.core.config.nodes import MappingNode, Position, ScalarNode
from appliance.core.config.types import Config
from appliance.core.config.yaml import parse


def read(text: str) -> Decoded:
    root, problems = parse(text, "c.yaml")
    assert not [problem for problem in problems if problem.level == "error"], problems
    assert root is None or isinstance(root, MappingNode)
    return decode(root)


def told(text: str) -> list[str]:
    return [str(problem) for problem in read(text).problems]


def test_nothing_is_every_default() -> None:
    assert decode(None).config == Config()
    assert not decode(None).config.performance.disabled
    assert read("models:\nmacros:\nhealthCheckTimeout:\n").config == Config()


def test_any_single_value_is_text_where_text_is_expected() -> None:
    config = read(
        "models: {m: {cmd: 5, name: true, description: 1e3, aliases: [1, 0x1F, no, null], useModelName: ~}}"
    ).config
    model = config.models["m"]
    assert (model.cmd, model.name, model.description) == ("5", "true", "1e3")
    assert model.aliases == ["1", "0x1F", "no", ""]
    assert model.use_model_name == ""


@pytest.mark.parametrize("word", ["yes", "on", "Y", "ON", "true", "'yes'", "no", "off", "N", "OFF", "false"])
def test_words_of_yaml_1_1_are_switches_where_a_switch_is_expected(word: str) -> None:
    decoded = read(f"models: {{m: {{sendLoadingState: {word}}}}}")
    assert decoded.config.models["m"].send_loading_state is (word.strip("'").lower() in ("yes", "on", "y", "true"))
    assert not decoded.problems


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("startPort: '5800'", "c.yaml:1:12: error: startPort: must be a whole number, and is the text '5800'; drop"),
        ("startPort: many", "error: startPort: must be a whole number, and is the text 'many'"),
        ("startPort: true", "error: startPort: must be a whole number, and is true"),
        ("startPort: [1]", "error: startPort: must be a whole number, and is a list"),
        ("startPort: 0", "error: startPort: must be 1 or more, and is 0"),
        ("startPort: 99999999999999999999", "is too large"),
        ("logRequests: 'true'", "must be true or false, and is the text 'true'; drop the quotes: true"),
        ("logRequests: 1", "logRequests: must be true or false, and is 1"),
        ("logToStdout: proxi", "must be both, none, proxy or upstream, and is 'proxi'; did you mean 'proxy'?"),
        ("routing: {router: {use: groups}}", "routing.router.use: must be group or matrix, and is 'groups'"),
        ("models: {m: {capabilities: {in: [text, video]}}}", "models.m.capabilities.in[1]: must be audio, image or"),
        ("models: {m: {aliases: one}}", "models.m.aliases: must be a list, and is a single value; put it in brackets"),
        ("models: {m: {cmd: [a, b]}}", "models.m.cmd: must be text, and is a list"),
        ("models: {m: {ttl: -2}}", "models.m.ttl: must be -1 or more, and is -2"),
        ("models: {m: {filters: yes}}", "models.m.filters: must be a mapping with keys of its own, and is the text"),
        ("models: [m]", "models: must be a mapping of names to values, and is a list"),
        ("models: {m: 5}", "models.m: must be a mapping with keys of its own, and is 5"),
        ("models: {m: {metadata: {a: [1, .nan]}}}", "models.m.metadata.a[1]: .nan is not a JSON value"),
        ("matrix: {evict_costs: {a: 0}}", "matrix.evict_costs.a: must be 1 or more, and is 0"),
        ("profiles: {p: {pins: [a]}}", "profiles.p.pins: must be a mapping of names to values, and is a list"),
    ],
)
def test_what_does_not_fit_is_an_error_with_advice(text: str, message: str) -> None:
    (line,) = told(text)
    assert message in line
    assert "error" in line


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("helthCheckTimeout: 1", "unknown key, ignored; did you mean 'healthCheckTimeout'?"),
        ("starport: 1", "did you mean 'startPort'?"),
        ("log_level: debug", "did you mean 'logLevel'?"),
        ("STARTPORT: 1", "did you mean 'startPort'?"),
        ("ttl: 5", "its place is models.<id>.ttl"),
        ("preload: [a]", "its place is hooks.on_startup.preload"),
        ("models: {m: {strip_params: a}}", "its place is models.<id>.filters.stripParams"),
        ("models: {m: {filters: {aliases: [a]}}}", "its place is models.<id>.aliases"),
        ("models: {m: {globalTTL: 4}}", "its place is globalTTL"),
        ("models: {m: {tll: 4}}", "did you mean 'ttl'?"),
        ("peers: {p: {timeouts: {responseheader: 4}}}", "did you mean 'responseHeader'?"),
        ("zzzz: 1", "'llama-appliance config schema' lists the keys there are"),
    ],
)
def test_an_unknown_key_is_a_warning_that_names_the_key_that_was_meant(text: str, message: str) -> None:
    (problem,) = read(text).problems
    assert problem.level == "warning"
    assert message in str(problem)
    assert problem.at is not None


def test_old_spelling_of_strip_params_is_read_when_the_new_one_is_empty() -> None:
    def strip(filters: str) -> str:
        decoded = read(f"models: {{m: {{filters: {filters}}}}}")
        assert not decoded.problems
        return decoded.config.models["m"].filters.strip_params

    assert strip("{strip_params: a}") == "a"
    assert strip("{strip_params: a, stripParams: ''}") == "a"
    assert strip("{stripParams: b, strip_params: a}") == "b"


def test_a_fraction_is_cut_off_with_a_warning_and_a_whole_float_is_a_number() -> None:
    decoded = read("healthCheckTimeout: 1e3\nglobalTTL: 1.5\n")
    assert (decoded.config.health_check_timeout, decoded.config.global_ttl) == (1000, 1)
    assert [str(problem) for problem in decoded.problems] == [
        "c.yaml:2:12: warning: globalTTL: must be a whole number; 1.5 is read as 1"
    ]


def test_free_values_are_plain_json() -> None:
    model = read("models: {m: {metadata: {a: 0777, b: [1.5, null, {on: yes}], 7: '1', big: 99999999999999999999}}}")
    assert model.config.models["m"].metadata == {"a": 511, "b": [1.5, None, {"on": "yes"}], "7": "1", "big": 1e20}


def test_macros_and_memory_keep_the_type_they_are_written_with() -> None:
    config = read("macros: {a: 1, b: true, c: 1.5, d: '1', e: text}\nmemory: {ram: 12GiB, gpu0: 500}").config
    assert config.macros == {"a": 1, "b": True, "c": 1.5, "d": "1", "e": "text"}
    assert [type(value) for value in config.macros.values()] == [int, bool, float, str, str]
    assert config.memory == {"ram": "12GiB", "gpu0": 500}


def test_null_is_the_default_but_a_pin_of_null_is_kept() -> None:
    config = read("store:\nmatrix: ~\nmodels: {m: {ttl: ~, filters: ~}}\nprofiles: {p: {pins: {a: ~, b: c}}}").config
    assert (config.store, config.matrix, config.models["m"].ttl) == (None, None, -1)
    assert config.profiles["p"].pins == {"a": None, "b": "c"}


def test_a_model_without_anything_has_every_default_and_a_warning() -> None:
    decoded = read("models:\n  m:\n")
    assert decoded.config.models["m"].check_endpoint == "/health"
    assert [str(problem) for problem in decoded.problems] == [
        "c.yaml:2:3: warning: models.m: has no settings; every key has its default"
    ]


def test_argv_is_accepted() -> None:
    decoded = read("models: {m: {cmd: a b, argv: [a, b]}}")
    assert not decoded.problems


def test_places_are_those_of_values_and_of_the_nearest_thing_around() -> None:
    places = read("models:\n  a.b:\n    aliases: [x, y]\n").places
    assert places.at("models.a.b.aliases[1]") == Position("c.yaml", 3, 18)
    assert places.at("models.a.b.ttl") == Position("c.yaml", 3, 5)
    assert places.at("peers.p.proxy") == Position("c.yaml", 1, 1)
    assert places.given("models.a.b.aliases")
    assert not places.given("models.a.b.ttl")


def leaves(kind: mi.Type) -> list[mi.Type]:
    match kind:
        case mi.Metadata(type=inner):
            return leaves(inner)
        case mi.StructType(fields=fields):
            return [leaf for field in fields for leaf in leaves(field.type)]
        case mi.DictType(value_type=item) | mi.ListType(item_type=item):
            return leaves(item)
        case mi.UnionType(types=kinds):
            return [leaf for each in kinds for leaf in leaves(each)]
        case _:
            return [kind]


def test_every_type_of_the_schema_can_be_decoded() -> None:
    known = (mi.StrType, mi.BoolType, mi.IntType, mi.FloatType, mi.LiteralType, mi.NoneType, mi.CustomType)
    assert {type(leaf) for leaf in leaves(mi.type_info(Config))} <= set(known)


KEYS = st.sampled_from(sorted(field.encode_name for field in msgspec.structs.fields(Config)))  # type: ignore[attr-defined]
AT = Position("f", 1, 1)


def node(value: object) -> object:
    from appliance.core.config.nodes import KeyValue, SequenceNode

    if isinstance(value, dict):
        return MappingNode(tuple(KeyValue(ScalarNode(key, key, AT), node(item)) for key, item in value.items()), AT)  # type: ignore[arg-type]
    if isinstance(value, list):
        return SequenceNode(tuple(node(item) for item in value), AT)  # type: ignore[arg-type]
    return ScalarNode(value, str(value), AT, quoted=isinstance(value, str))  # type: ignore[arg-type]


@given(
    st.dictionaries(
        KEYS | st.text(max_size=4),
        json_values(
            ["m", "cmd", "filters", "ttl", "members", "use", "settings"],
            text=st.integers() | st.floats() | st.text(max_size=8),
        ),
        max_size=4,
    )
)
def test_any_tree_is_decoded_or_told(tree: dict[str, object]) -> None:
    root = node(tree)
    assert isinstance(root, MappingNode)
    decoded = decode(root)
    assert all(problem.message for problem in decoded.problems)
    msgspec.convert(msgspec.to_builtins(decoded.config), Config, dec_hook=lambda _, value: value)
