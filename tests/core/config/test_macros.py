"""Macros, ports and expressions: one table of what becomes what, one of what is wrong, and laws."""

from __future__ import annotations

import json
import re
import time
from time import thread_time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from node_values import mapping, plain, told, walk

from appliance.core.config.macros import expand
from appliance.core.config.nodes import ScalarNode
from appliance.core.config.scalars import MAX_PATTERN, BadRegex, check_pattern, is_found, text_of


def expanded(text: str):
    """What a text without mistakes becomes."""
    root, problems, _ = expand(mapping(text))
    assert problems == []
    return plain(root)


def of_model(macros: str, own: str, fields: str):
    """One model's fields, with a command that uses no macro."""
    text = (
        f"macros: {macros}\nmodels:\n  m:\n    macros: {own}\n    cmd: x\n    proxy: http://h\n    metadata: {fields}\n"
    )
    return expanded(text)["models"]["m"]["metadata"]


IN_MODEL: list[tuple[str, str, str, object]] = [
    ("{a: 1}", "{}", "'${a}'", 1),
    ("{a: 1.5}", "{}", "'${a}'", 1.5),
    ("{a: true}", "{}", "'${a}'", True),
    ("{a: '1'}", "{}", "'${a}'", "1"),
    ("{a: ''}", "{}", "'${a}'", ""),
    ("{a: 1}", "{}", "' ${a}'", " 1"),
    ("{a: 1}", "{}", "'${a}${a}'", "11"),
    ("{a: false, b: true}", "{}", "'${a} ${b}'", "false true"),
    ("{a: 100000.0, b: 1e-5, c: 1e21}", "{}", "'${a} ${b} ${c}'", "100000 1e-05 1e+21"),
    ("{a: 1, b: '${a}'}", "{}", "'${b}'", 1),
    ("{a: 1, b: 'x${a}', c: '<${b}>'}", "{}", "'${c}${b}${a}'", "<x1>x11"),
    ("{a: 1, b: 'x${a}'}", "{a: 2}", "'${b}'", "x2"),
    ("{a: 1, b: 2}", "{c: '${a}${b}'}", "'${c}'", "12"),
    ("{b: 1, c: 2}", "{b: '${MODEL_ID}'}", "'${b}${c}'", "m2"),
    ("{a: '${MODEL_ID}'}", "{}", "'${a}'", "m"),
    ("{a: '${MODEL_ID}'}", "{}", "{x: ['${a}']}", {"x": ["m"]}),
    ("{A-b_9: 1}", "{}", "'${A-b_9}'", 1),
    ("{7: 1}", "{}", "'${7}'", 1),
    ("{" + "n" * 63 + ": 1}", "{}", "'${" + "n" * 63 + "}'", 1),
    ("{a: 2026-08-22}", "{}", "'${a}'", "2026-08-22"),
    ("{a: 1}", "{}", "'$a {a} ${ a} $${a} ${a.b}'", "$a {a} ${ a} $1 ${a.b}"),
    ("{a: 1}", "{}", "{'${a}': 2}", {"${a}": 2}),
]


@pytest.mark.parametrize(("macros", "own", "field", "value"), IN_MODEL)
def test_value_in_a_model(macros: str, own: str, field: str, value: object) -> None:
    read = of_model(macros, own, "{k: " + field + "}")["k"]
    assert read == value
    assert type(read) is type(value)


def test_text_from_a_macro_is_never_taken_for_a_number() -> None:
    root, _, _ = expand(mapping("macros: {a: 1, s: '5'}\nx: ['${a}${a}', '${s}', '${a}']"))
    values = [node for node in walk(root) if isinstance(node, ScalarNode) and node.at.column > 4]
    assert [(v.value, v.text, v.quoted) for v in values] == [("11", "11", True), ("5", "5", True), (1, "1", False)]


def test_the_process_to_stop_is_left_to_the_stop() -> None:
    text = "models: {m: {cmd: 'docker run --name ${MODEL_ID}', proxy: p, cmdStop: 'docker stop ${MODEL_ID} ${PID}'}}"
    model = {"cmd": "docker run --name m", "proxy": "p", "cmdStop": "docker stop m ${PID}"}
    assert expanded(text) == {"models": {"m": model}}


def test_outside_of_models_global_macros_hold() -> None:
    text = (
        "macros: {k: sk, n: 8}\napiKeys: ['${k}-${n}']\nglobalTTL: '${n}'\n"
        "peers: {p: {filters: {setParamsByID: {'x${n}': {}}}}}\n"
    )
    assert expanded(text) == {
        "apiKeys": ["sk-8"],
        "globalTTL": 8,
        "peers": {"p": {"filters": {"setParamsByID": {"x8": {}}}}},
    }


def test_unused_macros_and_unknown_top_level_keys_may_hold_anything() -> None:
    text = "macros: {a: '${PORT} ${later} ${PID}', later: 1}\nx-notes: '${whatever} ${later}'"
    assert expanded(text) == {"x-notes": "${whatever} 1"}


def test_macros_never_leak_into_another_model() -> None:
    m, n = "{macros: {a: 2, own: 3}, cmd: 'x ${a} ${own}', proxy: p}", "{cmd: 'x ${a}', proxy: p}"
    models = {"m": {"cmd": "x 2 3", "proxy": "p"}, "n": {"cmd": "x 1", "proxy": "p"}}
    assert expanded(f"macros: {{a: 1}}\nmodels:\n  m: {m}\n  n: {n}\n") == {"models": models}


def test_ports_go_by_the_bytes_of_ids_and_only_to_who_uses_them() -> None:
    text = (
        "macros: {first: 9000, serve: 'run ${PORT}'}\nstartPort: ${first}\nmodels:\n"
        "  é: {cmd: 'x ${PORT}'}\n"
        "  b: {cmd: '${serve}'}\n"
        "  none: {cmd: x, proxy: 'http://h:1'}\n"
        "  comment: {cmd: \"x\\n# ${PORT}\", proxy: 'http://h:2'}\n"
        "  Z: {cmd: 'x ${PORT} ${PORT}', proxy: 'http://h:${PORT}', aliases: ['a${PORT}', '${PORT}']}\n"
        "  empty: {cmd: '', name: n}\n"
    )
    models = expanded(text)["models"]
    assert list(models) == ["é", "b", "none", "comment", "Z", "empty"]
    assert models["Z"] == {"cmd": "x 9000 9000", "proxy": "http://h:9000", "aliases": ["a9000", 9000]}
    assert models["b"] == {"cmd": "run 9001", "proxy": "http://localhost:9001"}
    assert models["é"] == {"cmd": "x 9002", "proxy": "http://localhost:9002"}
    assert models["comment"] == {"cmd": "x", "proxy": "http://h:2"}
    assert models["empty"] == {"cmd": "", "name": "n"}


def test_comments_of_a_command_go_before_expansion_and_those_of_a_macro_stay() -> None:
    model = '{proxy: p, cmd: "x ${c}\\n  # ${gone}\\ny\\n"}'
    text = f'macros: {{c: "a\\n# ${{MODEL_ID}}\\nb"}}\nmodels: {{m: {model}}}\n'
    assert expanded(text) == {"models": {"m": {"proxy": "p", "cmd": "x a\n# m\nb\ny\n"}}}


@pytest.mark.parametrize("proxy", ["proxy:", "proxy: ~", "proxy: null"])
def test_a_proxy_without_value_is_the_default(proxy: str) -> None:
    text = f"models:\n  m:\n    {proxy}\n    cmd: x ${{PORT}}\n"
    assert expanded(text) == {"models": {"m": {"cmd": "x 5800", "proxy": "http://localhost:5800"}}}


def test_an_unusable_start_port_is_left_to_the_check_of_types() -> None:
    assert expanded("startPort: soon\nmodels: {m: {cmd: '${PORT}'}}") == {
        "startPort": "soon",
        "models": {"m": {"cmd": 5800, "proxy": "http://localhost:5800"}},
    }


@pytest.mark.parametrize("text", ["models: []", "models: {m: [1]}", "models: {m: text}", "models:", "macros:", "x: 1"])
def test_other_shapes_pass(text: str) -> None:
    assert expand(mapping(text))[1] == []


M, SAME = "models: {m: {proxy: p, cmd: x, ", "{cmd: x, proxy: 'http://127.0.0.1:1/v1'}}"
WRONG = [
    ("macros: {PORT: 1}", "1:10 error macros.PORT", "reserved"),
    ("macros: {MODEL_ID: 1}", "1:10 error macros.MODEL_ID", "reserved"),
    ("macros: {a b: 1}", "1:10 error macros.a b", "letters"),
    ("macros: {" + "n" * 64 + ": 1}", "1:10 error macros." + "n" * 64, "64"),
    ("macros: {a: [1]}\nlogLevel: '${a}'", "1:13 error macros.a", "text, a number"),
    ("macros: {a: {b: 1}}", "1:13 error macros.a", "text, a number"),
    ("macros: {a: }", "1:13 error macros.a", "''"),
    ("macros: {a: 'x${a}'}\nlogLevel: '${a}'", "1:13 error macros.a", "itself"),
    ("macros: [a]", "1:9 error macros", "mapping"),
    (M + "macros: {PORT: 1}}}", "1:41 error models.m.macros.PORT", "reserved"),
    ("macros: {b: '${a}', a: 1}\nlogLevel: '${b}'", "2:11 error logLevel", "declared later than ${b}"),
    ("logLevel: '${no}'", "1:11 error logLevel", "${env.no}"),
    ("macros: {context: 1}\nlogLevel: '${contxt}'", "2:11 error logLevel", "did you mean ${context}"),
    ("apiKeys: [a, 'x${no}']", "1:14 error apiKeys[1]", "no macro 'no'"),
    ("hooks: {on_startup: {preload: ['${no}']}}", "1:32 error hooks.on_startup.preload[0]", "no macro"),
    ("apiKeys: ['${PORT}']", "1:11 error apiKeys[0]", "outside of models"),
    ("apiKeys: ['${PID}']", "1:11 error apiKeys[0]", "cmdStop"),
    (M + "name: '${no}'}}", "1:38 error models.m.name", "no macro 'no'"),
    (M + "unknown: [{a: '${no}'}]}}", "1:46 error models.m.unknown[0].a", "no macro 'no'"),
    (M + "name: '${PID}'}}", "1:38 error models.m.name", "cmdStop"),
    (M + "name: '${PORT}'}}", "1:38 error models.m.name", "cmd does not use it"),
    (M + "name: '${port}'}}", "1:38 error models.m.name", "did you mean ${PORT}"),
    (M + "cmdStop: '${PIDD}'}}", "1:41 error models.m.cmdStop", "did you mean ${PID}"),
    (M + "filters: {setParamsByID: {'${no}': {}}}}}", "1:58 error models.m.filters.setParamsByID", "no macro"),
    (M + "filters: {setParamsByID: {m: {}, '${MODEL_ID}': {}}}}}", "1:65 error models.m.filters.setParamsByID", "two"),
    ("models: {m: {cmd: 'x ${no}'}}", "1:19 error models.m.cmd", "no macro 'no'"),
    ("models: {m: {cmd: x}}", "1:19 error models.m.proxy", "where the server listens"),
    ("models: {m: {cmd: x, proxy: }}", "1:19 error models.m.proxy", "where the server listens"),
    ("models:\n  m:\n", "2:3 warning models.m", "give it a cmd"),
    (M + "}, '${a}': {}}", "1:35 warning models.${a}", "not expanded"),
    ("models: {a: {macros: {k: 1}, cmd: x, proxy: p}, b: {cmd: '${k}', proxy: p}}", "1:58 error models.b.cmd", "'a'"),
    ("startPort: 65535\nmodels: {a: {cmd: '${PORT}'}, b: {cmd: '${PORT}'}}", "2:40 error models.b", "startPort"),
    ("startPort: 70000\nmodels: {a: {cmd: '${PORT}'}, b: {cmd: '${PORT}'}}", "2:19 error models.a", "startPort"),
    ("models: {a: {cmd: x, proxy: 'http://localhost:1'}, b: " + SAME, "1:71 warning models.b.proxy", "'a'"),
    ("models: {a: {cmd: 'x ${PORT}'}, b: " + SAME.replace(":1/", ":5800/"), "1:52 warning models.b.proxy", "'a'"),
]


@pytest.mark.parametrize(("text", "where", "words"), WRONG)
def test_mistake_is_told_with_its_place(text: str, where: str, words: str) -> None:
    problems = expand(mapping(text))[1]
    assert told(problems) == [where]
    assert words in problems[0].message


def test_all_mistakes_are_told_at_once() -> None:
    text = "macros: {PID: 1, x: []}\nlogLevel: '${a} ${b} ${a}'\nmodels: {m: {cmd: 'y ${c}'}, n: {cmd: z}}"
    problems = expand(mapping(text))[1]
    assert [problem.path for problem in problems] == [
        "macros.PID",
        "macros.x",
        "logLevel",
        "models.m.cmd",
        "models.n.proxy",
    ]
    assert problems[2].message.count("'a'") == problems[2].message.count("'b'") == 1


def test_macros_that_double_each_other_are_refused_quickly() -> None:
    lines = ["macros:", "  m0: 'xxxxxxxxxx'"] + [f"  m{n}: '${{m{n - 1}}}${{m{n - 1}}}'" for n in range(1, 40)]
    begin = thread_time()
    problems = expand(mapping("\n".join([*lines, "logLevel: '${m39}'"])))[1]
    assert thread_time() - begin < 1
    assert [problem.path for problem in problems] == ["logLevel"]
    assert "characters" in problems[0].message


NAMES = st.sampled_from(["a", "b", "c", "PORT", "MODEL_ID", "PID"])
# Without #: a comment line that comes from a macro stays, so a second expansion would find it.
TEXTS = st.lists(st.text("x $ {}\n", max_size=4) | NAMES.map("${{{}}}".format), max_size=4).map("".join)
VALUES = TEXTS | st.integers(0, 9) | st.booleans() | st.sampled_from([0.5, 1e30])
MACROS = st.dictionaries(st.sampled_from(["a", "b", "c"]), VALUES, max_size=3)
MODELS = st.fixed_dictionaries(
    {},
    optional={
        "macros": MACROS,
        "cmd": TEXTS,
        "cmdStop": TEXTS,
        "proxy": TEXTS,
        "metadata": st.lists(VALUES, max_size=2),
    },
)
CONFIGS = st.fixed_dictionaries(
    {"models": st.dictionaries(st.sampled_from(["m", "n", "o"]), MODELS, max_size=3)},
    optional={"macros": MACROS, "logLevel": TEXTS, "startPort": st.sampled_from([1, 65534, "${a}"]), "note": VALUES},
)


@given(CONFIGS)
def test_expansion_of_what_is_expanded_changes_nothing(config: dict[str, object]) -> None:
    once = expand(mapping(json.dumps(config)))[0]
    assert expand(once)[0] == once


@given(CONFIGS)
def test_places_and_order_survive(config: dict[str, object]) -> None:
    before = mapping(json.dumps(config))
    after = expand(before)[0]
    places = {node.at for node in walk(before)}
    assert {node.at for node in walk(after)} <= places
    assert [e.key for e in after.entries] == [e.key for e in before.entries if e.key.text != "macros"]
    assert [e.key for e in after.get("models").entries] == [e.key for e in before.get("models").entries]


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_float_text_reads_back_as_the_same_float(value: float) -> None:
    assert float(text_of(value)) == value
    assert len(text_of(value)) <= 25


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (100000.0, "100000"),
        (1e-05, "1e-05"),
        (0.0001, "0.0001"),
        (1e20, "100000000000000000000"),
        (1e21, "1e+21"),
        (0.0, "0"),
        (-0.0, "-0"),
        (float("inf"), "+Inf"),
        (float("-inf"), "-Inf"),
        (float("nan"), "NaN"),
        (True, "true"),
        (7, "7"),
    ],
)
def test_text_of(value: float, text: str) -> None:
    assert text_of(value) == text


@pytest.mark.parametrize("pattern", ["^/(a+)+$", "(a|a)*$", "(.*a){20}b", r"^(\w+\s?)*$"])
def test_no_expression_makes_it_try_one_way_after_the_other(pattern: str):
    began = time.process_time()
    assert not is_found(pattern, "/" + "a" * 60_000 + "!") or pattern == "(a|a)*$"
    assert time.process_time() - began < 2


@given(st.from_regex(r"[ab.]{0,3}(\[ab\]|\(a\|b\)|[ab])[*+?]?[$]?", fullmatch=True), st.text("ab/", max_size=8))
def test_it_finds_what_pythons_engine_finds(pattern: str, text: str):
    assert is_found(pattern, text) == (re.search(pattern.replace("$", r"\Z"), text) is not None)


@pytest.mark.parametrize("pattern", ["(", r"(a)\1", "(?=a)", "(?<!a)b", "a{1001}", "x" * (MAX_PATTERN + 1)])
def test_what_it_does_not_know_is_refused(pattern: str):
    with pytest.raises(BadRegex):
        check_pattern(pattern)


def test_classes_mean_what_they_mean_in_llama_swap():
    assert is_found("^[[:alpha:]]+$", "abc")
    assert not is_found("^[[:alpha:]]+$", "ab1")
