"""What the frozen program does beyond serving a model: plugins, JSON schemas, tools, MCP on both sides, agent runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from frozen_harness import PATIENCE, SUFFIX, Server, bare_environment

pytestmark = pytest.mark.frozen

MCP_SERVER = Path(__file__).parents[1] / "fakes" / "mcp_server.py"
CHAT = "/v1/chat/completions"
KEY = "k"
HOURS = "The museum of clocks opens at ten in winter and at nine in summer."
AGE = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}


def environment(home: Path) -> dict[str, str]:
    return bare_environment() | {"PATH": os.environ["PATH"], "HOME": str(home), "LLAMA_APPLIANCE_API_KEY": KEY}


def scripted(*turns: object) -> dict[str, object]:
    """What the model says, turn by turn."""
    return {"fake": {"script": json.dumps(turns)}}


def asked(text: str, **more: object) -> dict[str, object]:
    return {"model": "alpha", "messages": [{"role": "user", "content": text}], **more}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home folder of a user with papers."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "papers").mkdir()
    (folder / "papers" / "museum.md").write_text(f"# Hours\n\n{HOURS}\n", "utf-8")
    return folder


@pytest.fixture(scope="module")
def server(program: Path, home: Path, fake_llama_server: tuple[str, ...]) -> Generator[Server]:
    """A model that says what it is told to, one that embeds, and everything that is off without being asked for."""
    [engine] = (program.parent / "engines").glob(f"*/*/llama-server{SUFFIX}")
    [starter] = (program.parent / "_internal" / "appliance" / "catalog" / "starter").glob("*.gguf")
    alpha = " ".join([*fake_llama_server, "--model", str(home / "fake.gguf")])
    (home / "fake.gguf").write_bytes(b"GGUF")
    embeds = f"'{engine}' --model '{starter}' --threads 1 --ctx-size 512 --embeddings --pooling mean"
    config = {
        "models": {name: {"cmd": f"{cmd} --port ${{PORT}}"} for name, cmd in (("alpha", alpha), ("embedder", embeds))},
        "groups": {"both": {"swap": False, "members": ["alpha", "embedder"]}},
        "plugins": {
            "rag": {"settings": {"documents": ["~/papers"], "embedding_model": "embedder", "min_score": 0.0}},
            "json": {"settings": {"attempts": 0}},
        },
        "mcp_servers": {"other": {"command": sys.executable, "args": ["-S", "-E", str(MCP_SERVER), "--tools", "echo"]}},
        "tools": {"enable": ["grep_search"], "root": str(home)},
        "mcpServer": {"enabled": True},
        "apiKeys": [KEY],
    }
    file = home / "config.json"
    file.write_text(json.dumps(config), "utf-8")
    with Server(program, home, environment(home), "--config", str(file), key=KEY) as running:
        yield running


def test_documents_that_the_configuration_names_are_answered_from(server: Server) -> None:
    answer = json.loads(server.ask(CHAT, asked("/rag When does the museum open?", **scripted({"text": "At ten [1]."}))))
    assert answer["choices"][0]["message"]["content"].startswith("At ten [1].\n\nSources:\n[1] papers/museum.md")
    assert answer["sources"][0]["cited"] is True


def test_answers_are_checked_against_schemas_and_so_are_schemas(server: Server) -> None:
    held = {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": AGE}}}
    fits = json.loads(server.ask(CHAT, asked("/json How old?", **held, **scripted({"text": '{"age": 3}'}))))
    assert json.loads(fits["choices"][0]["message"]["content"]) == {"age": 3}
    status, message = server.refused(CHAT, asked("/json How old?", **held, **scripted({"text": '{"age": "x"}'})))
    assert status == 502
    assert "is not of type 'integer'" in message
    status, message = server.refused(CHAT, asked('/json x\n```schema\n{"type": "objekt"}\n```'))
    assert status == 400
    assert "objekt" in message


def test_the_other_plugins_work_too(server: Server) -> None:
    answer = json.loads(server.ask(CHAT, asked("/parallel Which?", **scripted({"text": "This one."}))))
    assert answer["parallel"]["how"] == "all agree"
    status, message = server.refused(CHAT, asked("/summarize"))
    assert status == 400
    assert "no text to summarize" in message
    listing = json.loads(server.ask("/api/agents/reload", {}))
    assert {each["name"]: (each["state"], each["warnings"]) for each in listing["agents"]} == dict.fromkeys(
        ("json", "parallel", "rag", "summarize"), ("ready", [])
    )


def test_tools_of_an_mcp_server_are_used(server: Server) -> None:
    answer = json.loads(server.ask("/tools", {"tool": "other_echo", "params": {"message": "hello"}}))
    assert "hello" in answer["plain_text_response"]


def run(program: Path, home: Path, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command, env = [str(program), *arguments], environment(home)
    return subprocess.run(command, cwd=home, env=env, input=stdin, capture_output=True, text=True, timeout=PATIENCE)


def test_an_agent_works_with_tools_whose_arguments_are_checked(program: Path, home: Path, server: Server) -> None:
    calls = [
        {"name": "grep_search", "arguments": json.dumps({"path": str(home / "papers"), "pattern": "winter"})},
        {"name": "other_echo", "arguments": json.dumps({"message": "hello"})},
    ]
    task = {"model": "alpha", "user_prompt": "When?", "tools": ["grep_search", "other_echo"]}
    script = scripted({"text": "Looking.\n", "calls": calls}, {"text": "Found it."})
    (home / "task.json").write_text(json.dumps(task | {"params": script}), "utf-8")
    done = run(program, home, "agent", "run", "--url", server.url, "task.json")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["Looking.", "Found", "it."]
    assert "museum.md" in done.stderr
    assert "echo: hello" in done.stderr
    script = scripted({"calls": [{"name": "grep_search", "arguments": '{"path": ".", "pattern": 5}'}]})
    (home / "task.json").write_text(json.dumps(task | {"params": script}), "utf-8")
    done = run(program, home, "agent", "run", "--url", server.url, "task.json")
    assert done.returncode == 1
    assert "5 is not of type 'string'" in done.stderr


def test_a_desktop_client_is_connected_to_the_program(program: Path, home: Path, server: Server) -> None:
    messages = [
        ("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {}}),
        ("tools/list", {}),
        (
            "tools/call",
            {"name": "chat", "arguments": {"model": "alpha", "prompt": "hi", "params": scripted({"text": "Hm."})}},
        ),
    ]
    lines = [
        json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        for number, (method, params) in enumerate(messages)
    ]
    done = run(program, home, "mcp", "--url", server.url, stdin="\n".join(lines) + "\n")
    assert done.returncode == 0, done.stderr
    answers = {answer["id"]: answer["result"] for answer in map(json.loads, done.stdout.splitlines())}
    assert answers[0]["protocolVersion"] == "2025-06-18"
    assert "run_agent" in [tool["name"] for tool in answers[1]["tools"]]
    assert answers[2]["structuredContent"]["text"] == "Hm."


def test_what_the_program_started_ends_with_it(server: Server) -> None:
    assert server.stop() == 0
