"""From text to a configuration: documents joined, every stage in turn, and every mistake of every stage at once."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from node_values import mapping, plain, told

from appliance.core.config.additions import PluginConfig
from appliance.core.config.load import Loaded, SourceFile, load, merge
from appliance.core.config.nodes import MappingNode, Problem
from appliance.core.config.show import shown
from appliance.core.scheduling.policy import policy_of
from appliance.errors import InvalidConfig, UsageError

KEYS = st.text("abcdefgh", min_size=1, max_size=3)
VALUES = st.recursive(
    st.integers(-999, 999) | st.text("xyz 1:'", max_size=4) | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)
DOCUMENTS = st.dictionaries(KEYS, VALUES, max_size=4)


def merged(*texts: str) -> tuple[MappingNode, list[Problem]]:
    return merge([mapping(text, f"{number}.yaml") for number, text in enumerate(texts, 1)])


def as_text(document: dict[str, object]) -> str:
    return json.dumps(document)


@given(DOCUMENTS, DOCUMENTS, DOCUMENTS)
def test_disjoint_documents_are_put_together_in_order(
    one: dict[str, object], two: dict[str, object], three: dict[str, object]
) -> None:
    documents = [{f"{n}{key}": value for key, value in each.items()} for n, each in enumerate((one, two, three))]
    root, problems = merged(*map(as_text, documents))
    expected = documents[0] | documents[1] | documents[2]
    assert problems == []
    assert plain(root) == expected
    assert list(expected) == [entry.key.text for entry in root.entries]


@given(st.dictionaries(KEYS, st.integers(-999, 999) | st.text("xyz", max_size=4), max_size=5))
def test_the_same_said_twice_is_said_once(document: dict[str, object]) -> None:
    root, problems = merged(as_text(document), as_text(document))
    assert (plain(root), problems) == (document, [])


@given(DOCUMENTS, DOCUMENTS, DOCUMENTS)
def test_order_of_joining_does_not_matter(
    one: dict[str, object], two: dict[str, object], three: dict[str, object]
) -> None:
    documents = [mapping(as_text(each), f"{n}.json") for n, each in enumerate((one, two, three))]
    all_at_once, problems = merge(documents)
    if not problems:
        first_two, _ = merge(documents[:2])
        assert merge([first_two, documents[2]])[0] == all_at_once


JOINED: list[tuple[str, str, object]] = [
    ("a: {b: {c: 1}}", "a: {b: {d: 2}}", {"a": {"b": {"c": 1, "d": 2}}}),
    ("a: [1, 2]", "a: [2, 3]", {"a": [1, 2, 2, 3]}),
    ("a: 5", "a: 5", {"a": 5}),
    ("a: x", "a: 'x'", {"a": "x"}),
    ("a:", "a: {b: 1}", {"a": {"b": 1}}),
    ("a: [1]", "a: ~", {"a": [1]}),
    ("a:", "a:", {"a": None}),
    ("models: {a: {}}", "models: {b: {}}", {"models": {"a": {}, "b": {}}}),
    ("macros: {x: 1}", "macros: {y: 2, x: 1}", {"macros": {"x": 1, "y": 2}}),
    ("apiKeys: [a]", "apiKeys: [a]", {"apiKeys": ["a", "a"]}),
    (
        "routing: {router: {settings: {groups: {g: {}}}}}",
        "routing: {router: {use: group, settings: {groups: {h: {}}}}}",
        {"routing": {"router": {"settings": {"groups": {"g": {}, "h": {}}}, "use": "group"}}},
    ),
    ("hooks: {models: {m: 1}}", "hooks: {models: {m: 1}}", {"hooks": {"models": {"m": 1}}}),
]


@pytest.mark.parametrize(("base", "other", "expected"), JOINED)
def test_joined(base: str, other: str, expected: object) -> None:
    root, problems = merged(base, other)
    assert problems == []
    assert plain(root) == expected


CLASHES = [
    ("a: 1", "a: 2", "1:4 error a"),
    ("a: 5", "a: '5'", "1:4 error a"),
    ("a: 10", "a: 0xA", "1:4 error a"),
    ("a: {b: {c: 1}}", "a: {b: {c: 2}}", "1:12 error a.b.c"),
    ("a: 1", "a: [1]", "1:4 error a"),
    ("a: {}", "a: []", "1:4 error a"),
    ("a: {}", "a: x", "1:4 error a"),
    *[
        (f"{key}: {{x: {{}}}}", f"{key}: {{x: {{}}}}", f"1:{len(key) + 4} error {key}.x")
        for key in ("models", "groups", "profiles", "selectors", "peers", "matrix")
    ],
    ("models: {m: }", "models: {m: }", "1:10 error models.m"),
    ("matrix: {sets: {a: x}}", "matrix: {sets: {b: y}}", "1:10 error matrix.sets"),
    *[
        (
            f"routing: {{router: {{settings: {{{key}: {{x: 1}}}}}}}}",
            f"routing:\n router:\n  settings:\n   {key}:\n    x: 1",
            f"5:5 error routing.router.settings.{key}.x",
        )
        for key in ("groups", "matrix")
    ],
]


@pytest.mark.parametrize(("base", "other", "where"), CLASHES)
def test_clash_names_both_places_and_the_path(base: str, other: str, where: str) -> None:
    root, problems = merged(base, other)
    assert told(problems) == [where]
    assert problems[0].at is not None
    assert problems[0].at.file == "2.yaml"
    assert "1.yaml:1:" in problems[0].message
    assert plain(root) == plain(mapping(base))


def test_all_clashes_are_told() -> None:
    _, problems = merged("a: 1\nb: {c: 1}\nmodels: {m: 1}", "a: 2\nb: {c: 2}", "a: 3\nmodels: {m: 1}")
    assert [(p.at.file, p.path) for p in problems if p.at] == [
        ("2.yaml", "a"),
        ("2.yaml", "b.c"),
        ("3.yaml", "a"),
        ("3.yaml", "models.m"),
    ]


def test_nodes_keep_the_place_of_their_file() -> None:
    root, _ = merged("a: {x: 1}", "a: {y: 2}\nb: 3")
    assert [entry.key.at.file for entry in root.entries] == ["1.yaml", "2.yaml"]
    assert [str(entry.value.at) for entry in root.get("a").entries] == ["1.yaml:1:8", "2.yaml:1:8"]


SEED = Path(__file__).parents[2] / "examples" / "llama-swap-seed.yaml"
SEED_ENV = {"HOME": "/home/u", "API_KEY_1": "one", "API_KEY_2": "two", "OPENROUTER_API_KEY": "sk-or"}


def read(*texts: str, **env: str) -> Loaded:
    return load([SourceFile(f"{n}.yaml", text) for n, text in enumerate(texts, 1)], env)


def mistakes(*texts: str, **env: str) -> list[str]:
    return [str(problem) for problem in read(*texts, **env).problems]


def test_a_file_as_people_have_it() -> None:
    loaded = read(
        "macros: {bin: 'llama-server --port ${PORT}'}\n"
        "models:\n"
        "  b: {cmd: '${bin} -m b.gguf', ttl: ${env.TTL}}\n"
        "  a: {cmd: '${bin} -m ${MODEL_ID}.gguf'}\n",
        TTL="60",
    )
    assert loaded.problems == ()
    config = loaded.require()
    assert config.models["a"].argv == ["llama-server", "--port", "5800", "-m", "a.gguf"]
    assert (config.models["a"].proxy, config.models["b"].proxy) == ("http://localhost:5800", "http://localhost:5801")
    assert config.models["b"].ttl == 60
    assert config.macros == {}


def test_nothing_is_every_default() -> None:
    for texts in ((), ("",), ("# nothing\n", "\n"), ("~",)):
        loaded = read(*texts)
        assert loaded.problems == ()
        assert loaded.require().health_check_timeout == 120


def test_the_configuration_of_llama_smart_proxy() -> None:
    config = read('{"plugins_dir": "./plugins", "server_pool": {"num_servers": 2}}').require()
    assert (config.models_max, config.plugins_dir) == (2, "./plugins")


def test_a_folder_or_a_list_of_folders() -> None:
    assert read("plugins_dir: [one, 2]").require().plugins_dir == ["one", "2"]
    assert read("plugins_dir:").require().plugins_dir == ""
    assert "plugins_dir" in str(read("plugins_dir: {a: b}").errors[0])


def test_files_are_one_configuration() -> None:
    config = read(
        "macros: {x: 1}\nmodels: {a: {cmd: 'run ${PORT} ${x} ${y}'}}\n", "", "macros: {y: 2}\napiKeys: [k]\n"
    ).require()
    assert config.models["a"].argv == ["run", "5800", "1", "2"]
    assert config.api_keys == ["k"]


def test_problems_have_the_place_in_their_own_file() -> None:
    assert mistakes("startPort: 1\n", "globalTTL: x\nstartport: 2\n") == [
        "2.yaml:1:12: error: globalTTL: must be a whole number, and is the text 'x'",
        "2.yaml:2:1: warning: startport: unknown key, ignored; did you mean 'startPort'?",
    ]


def test_every_stage_tells_what_it_finds_in_one_go() -> None:
    lines = mistakes(
        "startPort: many\n"
        "apiKeys: ['${env.KEY}']\n"
        "models:\n"
        "  a: {cmd: 'run ${PORT} ${typo}', ttl: -5}\n"
        "  b: {cmd: 'run ${PORT}', aliases: [x]}\n"
        "  c: {cmd: 'run ${PORT}', aliases: [x], tll: 4}\n"
        "groups: {g: {members: [nobody]}}\n"
    )
    expected = ["startPort", "KEY", "typo", "models.a.ttl", "models.c.aliases[0]", "models.c.tll", "members[0]"]
    assert len(lines) == len(expected), lines
    for line, word in zip(lines, expected, strict=True):
        assert word in line


def test_what_follows_from_another_mistake_is_not_told() -> None:
    (line,) = mistakes("globalTTL: ${env.TTL}")
    assert "environment variable TTL is not set" in line
    (line,) = mistakes("globalTTL: ${ttl}")
    assert "ttl" in line
    (line,) = mistakes("models: {m: {cmd: run}}")
    assert "models.m.proxy" in line
    (line,) = mistakes("models: {m: {cmd: run, proxy: 'http://h:${PORT}'}}")
    assert "models.m.proxy" in line
    (line,) = mistakes("models: {m: {cmd: 'run ${portt}'}}")
    assert "models.m.cmd" in line
    (line,) = mistakes("peers: {p: {proxy: [x], models: [y]}}")
    assert "peers.p.proxy" in line


def test_but_the_same_value_used_twice_is_told_twice() -> None:
    lines = mistakes("models:\n  a: &a {cmd: run, proxy: 'http://h', ttl: x}\n  b: *a\n")
    assert [line.split(": ")[2] for line in lines] == ["models.a.ttl", "models.b.ttl"]


def test_an_empty_model_is_a_warning_and_hurts_nobody() -> None:
    loaded = read("models:\n  m:\n  n: {cmd: 'run ${PORT}'}\n")
    assert [problem.level for problem in loaded.problems] == ["warning"]
    assert loaded.require().models["m"].argv == []


@pytest.mark.parametrize(
    "bad", ["models: [\n", "- a\n- b\n", "text\n", "a: 1\n---\nb: 2\n", "models:\n\t- x\n", "a: 'open\n"]
)
def test_a_file_that_is_no_configuration_does_not_hide_the_mistakes_in_reading_others(bad: str) -> None:
    loaded = read(bad, "x: ]", "models: {m: {cmd: 'run ${PORT}'}}")
    assert {problem.at.file for problem in loaded.errors if problem.at} == {"1.yaml", "2.yaml"}
    assert loaded.config is None


def test_require_raises_every_error_and_no_warning() -> None:
    loaded = read("startport: 1\nstartPort: 0\nglobalTTL: -1\n")
    assert [problem.level for problem in loaded.problems] == ["warning", "error", "error"]
    assert (len(loaded.errors), len(loaded.warnings)) == (2, 1)
    with pytest.raises(InvalidConfig) as raised:
        loaded.require()
    assert isinstance(raised.value, UsageError)
    mistakes = str(raised.value).splitlines()
    assert mistakes[0] == "the configuration has 2 mistakes:"
    assert [line.strip() for line in mistakes[1:]] == [str(problem) for problem in loaded.errors]


def test_models_keep_their_ports() -> None:
    def ports(kept: dict[str, int], start: int = 5800) -> dict[str, str]:
        text = f"startPort: {start}\nmodels:\n" + "".join(f"  {id}: {{cmd: 'run ${{PORT}}'}}\n" for id in "abcd")
        config = load([SourceFile("c.yaml", text)], {}, ports=kept).require()
        assert all(model.argv[1] == model.proxy.rpartition(":")[2] for model in config.models.values())
        return {id: model.argv[1] for id, model in config.models.items()}

    assert ports({}) == {"a": "5800", "b": "5801", "c": "5802", "d": "5803"}
    assert ports({"b": 5800, "d": 5801}) == {"a": "5802", "b": "5800", "c": "5803", "d": "5801"}
    assert ports({"c": 5801, "gone": 5800})["c"] == "5801"
    assert ports({"b": 5800}, start=9000) == {"a": "9000", "b": "9001", "c": "9002", "d": "9003"}


def test_windows_splits_commands_its_way() -> None:
    source = SourceFile("c.yaml", 'models:\n  m:\n    cmd: C:\\bin\\s.exe --port ${PORT} -m "a b"\n')
    config = load([source], {}, windows=True).require()
    assert config.models["m"].argv == ["C:\\bin\\s.exe", "--port", "5800", "-m", "a b"]


# ---- whole files -----------------------------------------------------------------------------------------------------


def test_the_example_of_llama_swap_loads_without_a_word() -> None:
    loaded = load([SourceFile("seed.yaml", SEED.read_text("utf-8"))], SEED_ENV)
    assert loaded.problems == ()
    config = loaded.require()
    model = config.models["gpt-oss-120b"]
    assert model.argv[:3] == ["/path/to/llama-server/llama-server-ec9e0301", "--port", "10003"]
    assert model.argv[-4:] == ["--ctx-size", "16384", "--temperature", "0.7"]
    assert model.aliases == ["gpt-4o-mini", "gpt-oss-120b:high", "gpt-oss-120b:low"]
    assert model.metadata["port"] == 10003
    assert model.metadata["an_obj"] == {"a": "1", "b": 2, "c": [0.7, False, "model: gpt-oss-120b"]}
    assert config.api_keys[2:] == ["one", "two"]
    assert config.peers["openrouter"].api_key == "sk-or"
    assert config.hooks.on_startup.preload == ["llama"]
    plan = policy_of(config).plan("gemma-model", ["llama-70B", "voxtral-model"])
    assert (plan.evict, plan.set, plan.cost) == (("llama-70B",), "standard", 30)


SPLINTERS = st.sampled_from(
    [*"{}[]:,#'|-", "\n", "  ", "null", "5", "-1", "1.5", "'x'", "${x}", "${PORT}", "${env.NO}", "*a", "&a ", "<<: *a"]
)


@given(st.lists(st.tuples(st.floats(0, 1), st.sampled_from([0, 1, 3, 10, 40]), SPLINTERS), min_size=1, max_size=4))
def test_a_damaged_file_is_understood_or_told_with_places(damage: list[tuple[float, int, str]]) -> None:
    text = SEED.read_text("utf-8")
    for where, length, splinter in damage:
        at = int(where * len(text))
        text = text[:at] + splinter + text[at + length :]
    loaded = load([SourceFile("seed.yaml", text)], SEED_ENV)
    assert (loaded.config is None) == bool(loaded.errors)
    assert all(problem.at is not None and problem.message for problem in loaded.problems)


@pytest.mark.parametrize("text", ["plugins:", "plugins: {}", "plugins: null", '{"plugins": {}}', "models: {}"])
def test_the_key_alone_says_that_there_are_plugins(text: str):
    assert read(text).require().plugins == ({} if "plugins" in text else None)


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
