"""Plugins in the installed program: official clients through hooks of either form, reload by signal, by watching."""

from __future__ import annotations

import signal
import sys
from collections.abc import Generator
from pathlib import Path

import anthropic
import openai
import pytest
from config_files import ConfigFile
from plugin_folders import write_plugin
from program import ANY_PORT, Server, StartServer, http
from waiting import wait

TEXT = "Once upon a time a small llama carried"
WHOLE = """
def on_response(response, context):
    response.body["seen"] = context.model
"""
STREAM = """
async def on_stream(events, context):
    async for event in events:
        yield event
"""
COMMANDS = pytest.mark.parametrize("commands", ["/whole", "/stream", "/stream /whole", "/whole /stream"])


@pytest.fixture
def file(tmp_path: Path, fake_engine: Path, fake_model: Path) -> ConfigFile:
    return ConfigFile(tmp_path / "config.yaml", fake_engine, "--model", fake_model)


@pytest.fixture
def plugins(tmp_path: Path) -> Path:
    folder = tmp_path / "plugins"
    write_plugin(folder, "whole", WHOLE)
    write_plugin(folder, "stream", STREAM)
    return folder


@pytest.fixture
def hooked(start_server: StartServer, file: ConfigFile, plugins: Path) -> Server:
    config = file.write({"m": ()})
    return start_server("serve", *ANY_PORT, "--config", config, "--plugins", str(plugins))


@pytest.fixture
def openai_client(hooked: Server) -> Generator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{hooked.url}/v1", api_key="unused", max_retries=0, timeout=60) as client:
        yield client


@COMMANDS
def test_openais_client(openai_client: openai.OpenAI, commands: str) -> None:
    messages = [{"role": "user", "content": f"{commands} hi"}]
    whole = openai_client.chat.completions.create(model="m", messages=messages)  # type: ignore[arg-type]
    assert whole.choices[0].message.content == TEXT
    with openai_client.chat.completions.create(model="m", messages=messages, stream=True) as stream:  # type: ignore[arg-type]
        chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == TEXT
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length"
    with openai_client.responses.create(model="m", input=f"{commands} hi", stream=True) as events:
        deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == TEXT
    if commands != "/stream":  # events made here; those of the engine alone do not satisfy the client's accumulator
        with openai_client.responses.stream(model="m", input=f"{commands} hi") as responses:
            assert responses.get_final_response().output_text == TEXT
    assert openai_client.responses.create(model="m", input=f"{commands} hi").output_text == TEXT
    assert openai_client.completions.create(model="m", prompt=f"{commands} hi").choices[0].text == TEXT


@COMMANDS
def test_anthropics_client(hooked: Server, commands: str) -> None:
    messages = [{"role": "user", "content": f"{commands} hi"}]
    with anthropic.Anthropic(base_url=hooked.url, api_key="unused", max_retries=0, timeout=60) as client:
        whole = client.messages.create(model="m", max_tokens=8, messages=messages)  # type: ignore[arg-type]
        assert whole.content[0].type == "text"
        assert whole.content[0].text == TEXT
        with client.messages.stream(model="m", max_tokens=8, messages=messages) as stream:  # type: ignore[arg-type]
            assert "".join(stream.text_stream) == TEXT
            assert stream.get_final_message().stop_reason == "max_tokens"


def names(server: Server) -> set[str]:
    return {each["name"] for each in http(server, "GET", "/api/agents").json()["agents"]}


@pytest.mark.skipif(sys.platform == "win32", reason="a signal of POSIX")
def test_a_hangup_looks_for_plugins_again(hooked: Server, plugins: Path) -> None:
    assert names(hooked) > {"whole", "stream"}  # and those that are shipped along
    write_plugin(plugins, "new", STREAM)
    hooked.signal(signal.SIGHUP)
    wait(lambda: "new" in names(hooked))
