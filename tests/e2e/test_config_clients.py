"""A configuration of real llama-servers: an official client, and the verbs of the command line."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest
from command_line import Command
from config_files import ConfigFile, ask, running
from program import ANY_PORT, STARTER_QUESTION, Server, StartServer, http
from waiting import wait

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="commands of POSIX shells")

QUESTION = [{"role": "user", "content": STARTER_QUESTION}]


@pytest.fixture
def file(built_engine: str, starter_model: Path, tmp_path: Path) -> ConfigFile:
    words = (built_engine, "--model", starter_model, "--threads", "1", "--ctx-size", "2048", "--no-warmup")
    file = ConfigFile(tmp_path / "config.yaml", *words)
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


@pytest.fixture
def server(file: ConfigFile, start_server: StartServer) -> Server:
    return start_server("serve", *ANY_PORT, "--config", str(file.path))


def test_openai_whole_and_streamed_and_swapped(server: Server) -> None:
    import openai  # not at the top: it takes a second of each process that collects the tests

    texts: set[str] = set()
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0, timeout=60) as client:
        for model, there in (("two", "two"), ("gpt-4o-mini", "one"), ("two", "two")):
            stream = client.chat.completions.create(model=model, messages=QUESTION, temperature=0, stream=True)
            deltas = [chunk.choices[0].delta for chunk in stream if chunk.choices]
            thought = "".join((delta.model_extra or {}).get("reasoning_content") or "" for delta in deltas)
            assert ("loading model: one" in thought) == (there == "one"), "of the one that says so"
            texts.add("".join(delta.content or "" for delta in deltas))
            whole = client.chat.completions.create(model=model, messages=QUESTION, temperature=0)
            texts.add(whole.choices[0].message.content or "")
            assert running(server) == {there: "ready"}
        assert sorted(model.id for model in client.models.list()) == ["gpt-4o-mini", "one", "two"]
    assert len(texts) == 1
    assert len(texts.pop().split()) >= 3


def test_the_verbs(server: Server, file: ConfigFile, command: Command) -> None:
    cli = command.at(server.url)
    assert cli.good("load", "gpt-4o-mini").startswith("gpt-4o-mini: loaded")
    assert cli.json("load", "one")["state"] == "loaded"
    assert cli.rows("ps")[1:] == [["one", "loaded", "-"]]
    assert len(cli.good("run", "gpt-4o-mini", STARTER_QUESTION, "--temp", "0").split()) >= 3
    assert cli.good("load", "hidden").startswith("hidden: loaded")
    assert [entry["id"] for entry in cli.json("ps")["running"]] == ["hidden"]
    cli.good("unload", "hidden:short")
    cli.bad("unload", "one")
    ask(server, "two")
    assert http(server, "GET", "/logs").body == b"", "the console shows nothing"
    everything = cli.good("logs").splitlines()
    assert {line.split(" ")[0] for line in everything} >= {"[one]", "[two]"}
    own = cli.good("logs", "gpt-4o-mini").splitlines()
    assert own == [line.removeprefix("[one] ") for line in everything if line.startswith("[one] ")]
    assert any("model loaded" in line for line in own)
    check_explained(server, file, command)


def check_explained(server: Server, file: ConfigFile, command: Command) -> None:
    """Verbs tell of the file as the server reads it."""
    explain = Command(command.capfd, ("config",), ("--config", str(file.path)))
    assert explain.good("check") == "OK: 3 models\n"
    shown = explain.json("show")["models"]
    ask(server, "two")
    wait(lambda: [child.cmdline() for child in server.children()].count(shown["two"]["argv"]) == 1)
    assert shlex.split(shown["one"]["cmd"]) == shown["one"]["argv"]
    assert explain.json("resolve", "hidden:short")["model"] == "hidden"
    assert explain.json("plan", "--running", "two", "--want", "gpt-4o-mini")["evict"] == ["two"]
    ask(server, "gpt-4o-mini")
    assert list(running(server)) == ["one"], "as it was planned"
