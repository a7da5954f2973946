"""``config``: the verbs on real files, as text and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import Command

MODELS = """\
models:
  llama: {cmd: "llama-server --port ${PORT} -m llama.gguf", aliases: [gpt-4o]}
  qwen: {cmd: "llama-server --port ${PORT} -m qwen.gguf", aliases: [small]}
  gemma: {cmd: "llama-server --port ${PORT} -m ${env.GEMMA}"}
peers:
  box: {proxy: "http://192.168.1.23", models: [far, org/model]}
"""
MATRIX = "matrix:\n  vars: {l: llama, q: qwen, g: gemma}\n  evict_costs: {l: 30}\n  sets: {big: l, pair: q & g}\n"


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMMA", "gemma.gguf")


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "config.yaml"
    path.write_text(MODELS + MATRIX)
    return str(path)


def test_a_good_file(command: Command, file: str) -> None:
    outcome = command("config", "check", "--config", file)
    assert (outcome.status, outcome.out, outcome.err) == (0, "OK: 3 models\n", "")
    assert command.json("config", "check", "--config", file) == {"ok": True, "models": 3, "problems": []}


def test_a_value_that_is_far_too_large_is_a_mistake_in_the_file(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    nines = "9" * 100_000
    for line, key in (
        (f"globalTTL: {nines}", "globalTTL"),
        (f"performance: {{every: {nines}s}}", "performance.every"),
        (f"models: {{a: {{cmd: 'run ${{PORT}}', memory: {nines}GiB}}}}", "models.a"),
    ):
        path.write_text(f"{line}\n")
        outcome = command("config", "check", "--config", str(path))
        assert (outcome.status, outcome.out) == (2, ""), key
        assert key in outcome.err
        assert len(outcome.err) < 3000, "a value that is wrong is said in short"


def test_a_bad_file_is_told_line_by_line(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("startport: 1\nglobalTTL: x\nmodels:\n  a: {cmd: run}\n")
    outcome = command("config", "check", "--config", str(path))
    assert (outcome.status, outcome.out) == (2, "")
    lines = outcome.err.splitlines()
    assert len(lines) == 3
    assert lines[0] == f"{path}:1:1: warning: startport: unknown key, ignored; did you mean 'startPort'?"
    assert lines[1].startswith(f"{path}:2:12: error: globalTTL: must be a whole number")
    assert lines[2].startswith(f"{path}:4:12: error: models.a.proxy: ")
    outcome = command("config", "check", "--config", str(path), "--json")
    assert outcome.status == 2
    told = json.loads(outcome.out)
    assert (told["ok"], told["models"]) == (False, 0)
    assert told["problems"][0] == {
        "level": "warning",
        "message": "unknown key, ignored; did you mean 'startPort'?",
        "path": "startport",
        "at": {"file": str(path), "line": 1, "column": 1},
    }


@pytest.mark.parametrize("verb", [("show",), ("resolve", "a"), ("plan", "--want", "a"), ("show", "--json")])
def test_a_bad_file_is_of_no_use_to_any_verb(command: Command, tmp_path: Path, verb: tuple[str, ...]) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("globalTTL: x\nmodels: {a: {cmd: run}}\n")
    outcome = command("config", *verb, "--config", str(path))
    assert (outcome.status, outcome.out) == (2, "")
    assert outcome.err.count("\n") == 2


@pytest.mark.parametrize("verb", [("check",), ("show",), ("resolve", "a"), ("plan", "--want", "a")])
def test_a_file_that_is_not_there(command: Command, tmp_path: Path, verb: tuple[str, ...]) -> None:
    for argv in ((), ("--config", str(tmp_path / "gone.yaml")), ("--config-dir", str(tmp_path))):
        outcome = command("config", *verb, *argv)
        assert (outcome.status, outcome.out) == (2, "")
        assert outcome.err.startswith("llama-appliance: error: there is no ")
        assert outcome.err.count("\n") == 1


def test_show(command: Command, file: str, tmp_path: Path) -> None:
    tree = command.json("config", "show", "--config", file)
    assert tree["models"]["gemma"]["argv"] == ["llama-server", "--port", "5800", "-m", "gemma.gguf"]
    assert tree["models"]["llama"]["proxy"] == "http://localhost:5801"
    assert tree["routing"]["router"]["use"] == "matrix"
    text = command("config", "show", "--config", file).out
    again = tmp_path / "again.yaml"
    again.write_text(text)
    assert "  gemma:\n    cmd: llama-server --port 5800 -m gemma.gguf\n" in text
    assert command.json("config", "show", "--config", str(again)) == tree
    assert command("config", "show", "--config", str(again)).out == text


def test_a_folder(command: Command, tmp_path: Path) -> None:
    (tmp_path / "1.yaml").write_text(MODELS)
    (tmp_path / "2.yml").write_text(MATRIX)
    assert command.json("config", "check", "--config-dir", str(tmp_path))["models"] == 3
    twice = ("--config-dir", tmp_path, "--config", tmp_path / "1.yaml")
    assert "would be read twice" in command.bad("config", "check", *twice)


def test_a_root(command: Command, tmp_path: Path) -> None:
    folder = tmp_path / "conf.d"
    folder.mkdir()
    (folder / "10.yaml").write_text(MODELS)
    (folder / "20.yaml").write_text(MATRIX)
    root = ("--config-root", str(tmp_path))
    assert command.json("config", "check", *root)["models"] == 3
    (tmp_path / "config.yaml").write_text("globalTTL: 7")
    assert command.json("config", "show", *root)["globalTTL"] == 7
    (tmp_path / "other.yaml").write_text("globalTTL: 8")
    assert command.json("config", "show", *root, "--config", str(tmp_path / "other.yaml"))["globalTTL"] == 8
    assert "there is no folder" in command.bad("config", "check", *root, "--config-dir", tmp_path / "none")


PAIR, BIG = "the set 'pair'", "the set 'big'; with llama may run: llama"
ELSEWHERE = """\
  open: {proxy: "http://192.168.1.24"}
selectors:
  fast: {strategy: warm, targets: [small, llama]}
  out: {targets: [far]}
"""


@pytest.mark.parametrize(
    ("name", "model", "peer"),
    [
        ("gpt-4o", "llama", None),
        ("box/org/model", None, ["box", "org/model"]),
        ("org/model", None, ["box", "org/model"]),
        ("fast", "qwen", None),
        ("out", None, ["box", "far"]),
        ("open/org/x", None, ["open", "org/x"]),
        ("nobody", None, None),
    ],
)
def test_resolve(command: Command, file: str, name: str, model: str | None, peer: list[str] | None) -> None:
    """A selector resolves to what it takes when nothing runs, and a peer that lists no models may have any."""
    Path(file).write_text(MODELS + ELSEWHERE, "utf-8")
    assert command.json("config", "resolve", name, "--config", file) == {"model": model, "peer": peer}
    outcome = command("config", "resolve", name, "--config", file)
    if model is not None:
        assert outcome.out == f"{name} is the model {model}\n"
    elif peer is not None:
        assert outcome.out == f"{name} is the model {peer[1]} of the peer {peer[0]}\n"
    else:
        assert (outcome.status, outcome.out) == (2, "")
        assert outcome.err == f"llama-appliance: error: nothing in the configuration is called '{name}'\n"


@pytest.mark.parametrize(
    ("running", "want", "evict", "words"),
    [
        ("llama", "gemma", ["llama"], f"unloaded for gemma: llama (cost 30, {PAIR}; with gemma may run: gemma, qwen)"),
        ("qwen", "gemma", [], f"nothing is unloaded: gemma may run beside the running models ({PAIR})"),
        ("gemma", "gemma", [], "gemma is running already; nothing is unloaded"),
        ("small, gemma", "gpt-4o", ["gemma", "qwen"], f"unloaded for llama: gemma, qwen (cost 2, {BIG})"),
    ],
)
def test_plan(command: Command, file: str, running: str, want: str, evict: list[str], words: str) -> None:
    argv = ("plan", "--config", file, "--running", running, "--want", want)
    told = command.json("config", *argv)
    assert (set(told), told["evict"]) == ({"evict", "set", "target_set", "cost"}, evict)
    assert command("config", *argv).out == f"{words}\n"


@pytest.mark.parametrize(
    ("running", "want", "message"),
    [
        ("lama", "qwen", "nothing in the configuration is called 'lama'; did you mean 'llama'?"),
        ("llama", "far", "'far' is a model of the peer 'box'; only models of this machine are unloaded"),
    ],
)
def test_plan_with_names_that_cannot_be_used(
    command: Command, file: str, running: str, want: str, message: str
) -> None:
    outcome = command("config", "plan", "--config", file, "--running", running, "--want", want, "--json")
    assert (outcome.status, outcome.out, outcome.err) == (2, "", f"llama-appliance: error: {message}\n")


def test_schema(command: Command) -> None:
    told = json.loads(command("config", "schema").out)
    assert told["properties"]["models"]["description"] == "Id to model"
