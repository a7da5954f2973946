"""The official client of Ollama, pointed at the installed program with real engines, and the scripted one."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Generator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from program import STARTER_QUESTION, Server, StartServer

if TYPE_CHECKING:  # and where it is used: it takes a second of each process that collects the tests
    import ollama

QUESTION = [{"role": "user", "content": STARTER_QUESTION}]
STEADY = {"temperature": 0, "seed": 1}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
OpenClient = Callable[[str], Any]


@pytest.fixture
def open_client() -> Generator[OpenClient]:
    """Clients by address, which are closed afterwards."""
    import ollama

    with ExitStack() as stack:
        yield lambda url: stack.enter_context(ollama.Client(host=url, timeout=60))


@pytest.fixture
def client(server: Server, open_client: OpenClient) -> ollama.Client:
    return open_client(server.url)


def test_lists_and_details(client: ollama.Client) -> None:
    [listed] = client.list().models
    assert (listed.model, listed.details.quantization_level if listed.details else "") == ("starter:latest", "Q8_0")
    shown = client.show("starter")
    assert shown.capabilities == ["completion"]
    assert shown.modelinfo["general.architecture"] == "llama"
    assert shown.modelinfo["llama.context_length"] == 8192


def test_chat_whole_and_streamed_say_the_same(client: ollama.Client) -> None:
    whole = client.chat("starter", messages=QUESTION, options=STEADY)
    text = whole.message.content
    assert text
    assert (whole.done, whole.done_reason) == (True, "stop")
    assert whole.eval_count
    assert whole.prompt_eval_count
    assert whole.eval_duration
    told = client.chat("starter:latest", messages=QUESTION, options=STEADY, stream=True, tools=[TOOL])
    parts = list(told)  # it knows no tools
    assert "".join(part.message.content or "" for part in parts) == text
    assert [part.done for part in parts].index(True) == len(parts) - 1
    assert parts[-1].eval_count == whole.eval_count
    assert client.ps().models[0].context_length == 8192


def test_generate_with_and_without_the_template(client: ollama.Client) -> None:
    whole = client.generate("starter", prompt=STARTER_QUESTION, options=STEADY)
    assert whole.response == client.chat("starter", messages=QUESTION, options=STEADY).message.content
    parts = list(
        client.generate("starter", prompt="Hello", raw=True, options={**STEADY, "num_predict": 4}, stream=True)
    )
    assert (parts[-1].done_reason, parts[-1].eval_count) == ("length", 4)
    assert client.generate("starter").done_reason == "load"


def test_formats_bind_the_answer(client: ollama.Client) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "boolean"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    answer = client.chat("starter", messages=QUESTION, format=schema, options={**STEADY, "num_predict": 200})
    if answer.done_reason == "stop":
        assert isinstance(json.loads(answer.message.content or "")["a"], bool)
    else:
        assert (answer.message.content or "").lstrip().startswith("{")


def test_log_probabilities(client: ollama.Client) -> None:
    answer = client.chat(
        "starter", messages=QUESTION, options={**STEADY, "num_predict": 2}, logprobs=True, top_logprobs=2
    )
    assert answer.logprobs is not None
    assert len(answer.logprobs) == 2
    assert all(one.logprob <= 0 and len(one.top_logprobs or ()) == 2 for one in answer.logprobs)


def test_errors_are_the_ones_that_clients_look_for(client: ollama.Client) -> None:
    import ollama

    for ask, status, text in (
        (lambda: client.chat("nope", messages=QUESTION), 404, "model 'nope' not found"),
        (lambda: client.chat("starter", messages=QUESTION, think=True), 400, "does not support thinking"),
        (lambda: client.embed("starter", "text"), 400, "does not support embeddings"),
        (lambda: client.generate("starter", prompt="a", suffix="b"), 400, "does not support insert"),
        (lambda: client.push("starter"), 501, "cannot be published"),
    ):
        with pytest.raises(ollama.ResponseError) as refused:
            ask()
        assert refused.value.status_code == status
        assert text in refused.value.error


async def _async(url: str) -> str:
    import ollama

    text = ""
    async with ollama.AsyncClient(host=url, timeout=60) as client:
        async for part in await client.chat("starter", messages=QUESTION, options=STEADY, stream=True):
            text += part.message.content or ""
    return text


def test_the_asynchronous_client(server: Server, client: ollama.Client) -> None:
    import asyncio

    assert asyncio.run(_async(server.url)) == client.chat("starter", messages=QUESTION, options=STEADY).message.content


def test_a_model_stays_as_long_as_the_client_wishes(serve: StartServer, engine: str, open_client: OpenClient) -> None:
    server = serve("--no-stores", engine=engine)
    client = open_client(server.url)
    client.generate("starter", keep_alive="1h")
    [loaded] = client.ps().models
    assert loaded.expires_at is not None
    assert timedelta(minutes=50) < loaded.expires_at - datetime.now(UTC) <= timedelta(hours=1)
    engines = {child.pid for child in server.children()}
    for number in range(6):
        options = {"num_ctx": 131_072 if number % 2 else 2048, "num_predict": 2}
        client.chat("starter", messages=QUESTION, options=options)
    assert {child.pid for child in server.children()} == engines
    assert client.generate("starter", keep_alive=0).done_reason == "unload"
    assert client.ps().models == []


def test_derived_models_outlive_the_program_and_the_port_of_ollama_is_taken_only_if_it_is_free(
    serve: StartServer, open_client: OpenClient, tmp_path: Path
) -> None:
    """That port may also be in the configuration."""
    import ollama

    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        server = serve("--no-stores", "--ollama-port", str(taken))
    (told,) = [line for line in server.told().splitlines() if f"cannot listen on 127.0.0.1:{taken}" in line]
    assert "another program listens there already; choose another with --ollama-port, or leave it out" in told
    assert "--listen" not in told
    client = open_client(server.url)
    client.copy("starter", "mine")
    assert client.create("poet", from_="mine", system="Be brief.", parameters={"num_predict": 3}).status == "success"
    server.process.terminate()
    assert server.wait(20) == 0
    config = tmp_path / "config.yaml"
    config.write_text(f"ollamaPort: {taken}\n")
    assert f"and http://127.0.0.1:{taken}" in serve("--no-stores", "--config", str(config)).told()
    client = open_client(f"http://127.0.0.1:{taken}")
    assert {model.model for model in client.list().models} == {"starter:latest", "mine:latest", "poet:latest"}
    assert client.chat("poet", messages=QUESTION).eval_count == 3
    client.delete("poet")
    with pytest.raises(ollama.ResponseError):
        client.show("poet")
