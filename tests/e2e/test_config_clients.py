"""A configuration of real llama-servers: the official clients, and the verbs of the command line."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path

import anthropic
import openai
import pytest
from config_files import ANY_PORT, ConfigFile, ask, running
from program import STARTER_QUESTION, Server, http, run_command
from waiting import wait

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="commands of POSIX shells")

QUESTION = [{"role": "user", "content": STARTER_QUESTION}]
Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def file(built_engine: str, starter_model: Path, tmp_path_factory: pytest.TempPathFactory) -> ConfigFile:
    folder = tmp_path_factory.mktemp("config")
    words = (built_engine, "--model", starter_model, "--threads", "1", "--ctx-size", "2048", "--no-warmup")
    file = ConfigFile(folder / "config.yaml", *words)
    file.write(
        {
            "one": {"aliases": ["gpt-4o-mini"], "sendLoadingState": True, "metadata": {"port": "${PORT}"}},
            "two": {"cmd": f"# the other one\n{file.cmd()} \\\n  --parallel 1", "checkEndpoint": "/v1/models"},
            "hidden": {"unlisted": True, "filters": {"setParamsByID": {"hidden:short": {"max_tokens": 2}}}},
        },
        logToStdout="none",
        includeAliasesInList=True,
    )
    return file


@pytest.fixture(scope="module")
def server(file: ConfigFile) -> Generator[Server]:
    with Server(["serve", *ANY_PORT, "--config", str(file.path)], file.path.parent) as running_server:
        yield running_server.wait_listening()
        running_server.process.terminate()
        assert running_server.wait(15) == 0, running_server.told()


@pytest.fixture
def openai_client(server: Server) -> Generator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture
def cli(server: Server, tmp_path: Path) -> Cli:
    return lambda *argv: run_command(*argv, "--url", server.url, cwd=tmp_path)


def test_openai_whole_and_streamed_and_swapped(server: Server, openai_client: openai.OpenAI) -> None:
    texts: set[str] = set()
    for model, there in (("two", "two"), ("gpt-4o-mini", "one"), ("two", "two")):
        whole = openai_client.chat.completions.create(model=model, messages=QUESTION, temperature=0)  # type: ignore[arg-type]
        texts.add(whole.choices[0].message.content or "")
        stream = openai_client.chat.completions.create(model=model, messages=QUESTION, temperature=0, stream=True)  # type: ignore[arg-type]
        texts.add("".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices))
        assert running(server) == {there: "ready"}
    assert len(texts) == 1
    assert len(texts.pop().split()) >= 3
    listed = {model.id: model for model in openai_client.models.list()}
    assert sorted(listed) == ["gpt-4o-mini", "one", "two"]


def test_openai_is_told_that_a_model_loads(server: Server, openai_client: openai.OpenAI) -> None:
    http(server, "POST", "/api/models/unload")
    stream = openai_client.chat.completions.create(model="one", messages=QUESTION, temperature=0, stream=True)  # type: ignore[arg-type]
    thought, said = "", ""
    for chunk in stream:
        if chunk.choices:
            delta = chunk.choices[0].delta
            piece = (delta.model_extra or {}).get("reasoning_content")
            assert not (piece and said)
            thought += piece or ""
            said += delta.content or ""
    assert "loading model: one" in thought
    assert "Done!" in thought
    assert len(said.split()) >= 3


def test_anthropic_whole_and_streamed_and_swapped(server: Server) -> None:
    with anthropic.Anthropic(base_url=server.url, api_key="unused", max_retries=0, timeout=60) as client:
        whole = client.messages.create(model="two", max_tokens=60, messages=QUESTION)  # type: ignore[arg-type]
        block = whole.content[0]
        assert block.type == "text"
        with client.messages.stream(model="gpt-4o-mini", max_tokens=60, messages=QUESTION) as stream:  # type: ignore[arg-type]
            assert "".join(stream.text_stream).split()
        assert running(server) == {"one": "ready"}
        assert client.messages.count_tokens(model="one", messages=QUESTION).input_tokens > 3  # type: ignore[arg-type]


def test_the_verbs(server: Server, cli: Cli) -> None:
    http(server, "POST", "/api/models/unload")
    assert json.loads(cli("ps", "--json").stdout)["running"] == []
    loaded = cli("load", "gpt-4o-mini")
    assert loaded.stdout.startswith("gpt-4o-mini: loaded"), loaded.stderr
    assert json.loads(cli("load", "one", "--json").stdout)["state"] == "loaded"
    assert [line.split() for line in cli("ps").stdout.splitlines()[1:]] == [["one", "loaded", "-"]]
    rows = {row["id"]: row["state"] for row in json.loads(cli("ls", "--json").stdout)["models"]}
    assert (rows["one"], rows["two"]) == ("loaded", "unloaded")
    assert len(cli("run", "gpt-4o-mini", STARTER_QUESTION, "--temp", "0").stdout.split()) >= 3
    assert cli("load", "hidden").stdout.startswith("hidden: loaded")
    assert [entry["id"] for entry in json.loads(cli("ps", "--json").stdout)["running"]] == ["hidden"]
    assert cli("unload", "hidden:short").returncode == 0
    assert cli("unload", "one").returncode == 2


def test_the_logs_are_the_models_whatever_the_console_shows(server: Server, cli: Cli) -> None:
    ask(server, "one")
    ask(server, "two")
    assert http(server, "GET", "/logs").body == b""
    everything = cli("logs").stdout.splitlines()
    assert {line.split(" ")[0] for line in everything} >= {"[one]", "[two]"}
    own = cli("logs", "gpt-4o-mini").stdout.splitlines()
    assert own == [line.removeprefix("[one] ") for line in everything if line.startswith("[one] ")]
    assert any("model loaded" in line for line in own)
    assert all(isinstance(json.loads(line), str) for line in cli("logs", "two", "--json").stdout.splitlines())
    unknown = cli("logs", "ona")
    assert unknown.returncode == 2
    assert "'one'" in unknown.stderr


def test_the_file_explained(server: Server, file: ConfigFile, cli: Cli, tmp_path: Path) -> None:
    def config(verb: str, *argv: str) -> str:
        done = run_command("config", verb, "--config", str(file.path), *argv, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert config("check") == "OK: 3 models\n"
    shown = json.loads(config("show", "--json"))["models"]
    ask(server, "two")
    wait(lambda: [child.cmdline() for child in server.children()].count(shown["two"]["argv"]) == 1)
    assert shlex.split(shown["one"]["cmd"]) == shown["one"]["argv"]
    assert json.loads(config("resolve", "hidden:short", "--json"))["model"] == "hidden"
    assert json.loads(config("plan", "--running", "two", "--want", "gpt-4o-mini", "--json"))["evict"] == ["two"]
    ask(server, "gpt-4o-mini")
    assert list(running(server)) == ["one"]
    schema = json.loads(run_command("config", "schema", cwd=tmp_path).stdout)
    assert {"models", "matrix", "groups"} <= schema["properties"].keys() | schema.get("$defs", {}).keys()
