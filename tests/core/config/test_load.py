"""From text to a configuration: every stage in turn, and every mistake of every stage at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.core.config.load import Loaded, SourceFile, load
from appliance.core.scheduling.policy import policy_of
from appliance.errors import InvalidConfig, UsageError

SEED = Path(__file__).parents[2] / "examples" / "llama-swap-seed.yaml"
SEED_ENV = {"HOME": "/home/u", "API_KEY_1": "one", "API_KEY_2": "two", "OPENROUTER_API_KEY": "sk-or"}


def read(*texts: str, **env: str) -> Loaded:
    return load([SourceFile(f"{n}.yaml", text) for n, text in enumerate(texts, 1)], env)


def told(*texts: str, **env: str) -> list[str]:
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
    assert told("startPort: 1\n", "globalTTL: x\nstartport: 2\n") == [
        "2.yaml:1:12: error: globalTTL: must be a whole number, and is the text 'x'",
        "2.yaml:2:1: warning: startport: unknown key, ignored; did you mean 'startPort'?",
    ]


def test_every_stage_tells_what_it_finds_in_one_go() -> None:
    lines = told(
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
    (line,) = told("globalTTL: ${env.TTL}")
    assert "environment variable TTL is not set" in line
    (line,) = told("globalTTL: ${ttl}")
    assert "ttl" in line
    (line,) = told("models: {m: {cmd: run}}")
    assert "models.m.proxy" in line
    (line,) = told("models: {m: {cmd: run, proxy: 'http://h:${PORT}'}}")
    assert "models.m.proxy" in line
    (line,) = told("models: {m: {cmd: 'run ${portt}'}}")
    assert "models.m.cmd" in line
    (line,) = told("peers: {p: {proxy: [x], models: [y]}}")
    assert "peers.p.proxy" in line


def test_but_the_same_value_used_twice_is_told_twice() -> None:
    lines = told("models:\n  a: &a {cmd: run, proxy: 'http://h', ttl: x}\n  b: *a\n")
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
    told = str(raised.value).splitlines()
    assert told[0] == "the configuration has 2 mistakes:"
    assert [line.strip() for line in told[1:]] == [str(problem) for problem in loaded.errors]


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
