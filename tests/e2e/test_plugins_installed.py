"""Plugins in the installed program: official clients through hooks of either form, reload by signal."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest
from config_files import ConfigFile
from plugin_folders import write_plugin
from program import Server, StartServer, http
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
COMMANDS = "/stream /whole"


@pytest.fixture
def plugins(tmp_path: Path) -> Path:
    folder = tmp_path / "plugins"
    write_plugin(folder, "whole", WHOLE)
    write_plugin(folder, "stream", STREAM)
    return folder


@pytest.fixture
def hooked(serve: StartServer, file: ConfigFile, plugins: Path) -> Server:
    return serve("--config", file.write({"m": ()}), "--plugins", str(plugins))


def test_openais_client(hooked: Server) -> None:
    import openai  # not at the top: it takes a second of each process that collects the tests

    asked = f"{COMMANDS} hi"
    messages = [{"role": "user", "content": asked}]
    with openai.OpenAI(base_url=f"{hooked.url}/v1", api_key="unused", max_retries=0, timeout=60) as openai_client:
        whole = openai_client.chat.completions.create(model="m", messages=messages)  # type: ignore[arg-type]
        assert whole.choices[0].message.content == TEXT
        stream = openai_client.chat.completions.create(model="m", messages=messages, stream=True)  # type: ignore[arg-type]
        choices = [chunk.choices[0] for chunk in stream if chunk.choices]
        assert "".join(choice.delta.content or "" for choice in choices) == TEXT
        assert choices[-1].finish_reason == "length"
        with openai_client.responses.stream(model="m", input=asked) as responses:
            *_, last = responses
        assert last.type == "response.incomplete"  # its tokens were counted, as the "length" above
        assert last.response.output_text == TEXT
        assert openai_client.responses.create(model="m", input=asked).output_text == TEXT
        assert openai_client.completions.create(model="m", prompt=asked).choices[0].text == TEXT


def test_anthropics_client(hooked: Server) -> None:
    import anthropic  # as above

    messages = [{"role": "user", "content": f"{COMMANDS} hi"}]
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
