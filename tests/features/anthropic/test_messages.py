"""Messages over a real server: the embedded engine with the starter model, and the official client."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from chat_templates import ONE_SYSTEM_FIRST
from fleet_harness import InOrder
from http_harness import Answer, Appliance, OpenServer, model
from strict_types import count_of, error_of, event_of, message_of

from appliance.core.engine import EMBEDDED
from appliance.features.engines.found import find_engine, list_engines

MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"
ASK: dict[str, Any] = {
    "model": "starter",
    "max_tokens": 40,
    "temperature": 0,
    "messages": [{"role": "user", "content": "Who are you?"}],
}
BOTH = pytest.mark.parametrize(
    "compiled", [False, pytest.param(True, marks=(pytest.mark.needs("llama-server"), pytest.mark.slow))]
)
TOOL = {
    "name": "choose",
    "description": "Choose a colour",
    "input_schema": {
        "type": "object",
        "properties": {"colour": {"enum": ["red", "blue"]}},
        "required": ["colour"],
        "additionalProperties": False,
    },
}


@asynccontextmanager
async def serving(
    open_server: OpenServer, starter: Path, *args: str, compiled: bool = False
) -> AsyncGenerator[Appliance]:
    """The embedded engine with the starter model, or a compiled llama-server."""
    engine = next(each for each in list_engines() if each.name != EMBEDDED) if compiled else find_engine(EMBEDDED)
    engines, models = InOrder(engine), [model(starter, "starter", args=args)]
    async with open_server(chooser=engines, models=models) as server:
        yield server


def events(answer: Answer) -> list[dict[str, Any]]:
    found = [json.loads(event.partition("\ndata: ")[2]) for event in answer.events if event.startswith("event: ")]
    for each in found:
        event_of(each)
    return found


async def message(server: Appliance, **members: object) -> dict[str, Any]:
    found = (await server.good("POST", MESSAGES, ASK | members, patience=60)).json
    message_of(found)
    return found


@BOTH
async def test_an_answer_is_the_same_whole_and_streamed(
    open_server: OpenServer, starter_model: Path, compiled: bool
) -> None:
    async with serving(open_server, starter_model, compiled=compiled) as server:
        whole = await message(server)
        for path in (MESSAGES, "/v/messages", "//v1/messages", "/v1/v1/messages"):
            found = events(await server.good("POST", path, ASK | {"stream": True}, patience=60))
            said = "".join(e["delta"].get("text", "") for e in found if e["type"] == "content_block_delta")
            assert whole["content"] == [{"type": "text", "text": said}]
            start, end = found[0]["message"]["usage"], found[-2]["usage"]
            assert start["input_tokens"] + start["cache_read_input_tokens"] == sum(
                whole["usage"][name] for name in ("input_tokens", "cache_read_input_tokens")
            )
            assert {**end, "output_tokens": 0} == start
            assert end["output_tokens"] == whole["usage"]["output_tokens"]
            assert found[-2]["delta"]["stop_reason"] == whole["stop_reason"]
        assert found[0]["message"]["usage"]["cache_read_input_tokens"] > 0
        counted = (await server.good("POST", COUNT, ASK)).json
        count_of(counted)
        assert counted["input_tokens"] == whole["usage"]["input_tokens"] + whole["usage"]["cache_read_input_tokens"]
        word = said.split()[1]
        for stream in (False, True):
            wanted = ASK | {"stop_sequences": [word, "never said"], "stream": stream}
            answer = await server.good("POST", MESSAGES, wanted, patience=60)
            stopped = events(answer)[-2]["delta"] if stream else answer.json
            assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", word)
        assert (await message(server, max_tokens=2))["stop_reason"] == "max_tokens"
        rows = await server.rows()
        assert {row["req_path"] for row in rows} <= {MESSAGES, "/v/messages", COUNT}


async def test_what_is_in_a_document_is_in_the_prompt(open_server: OpenServer, starter_model: Path) -> None:
    async with serving(open_server, starter_model, "--ctx-size", "512") as server:
        source = {"type": "text", "media_type": "text/plain", "data": "hello " * 20}
        with_it = [
            {"type": "document", "source": source, "citations": {"enabled": True}},
            {"type": "text", "text": "x"},
        ]
        asked = [ASK | {"messages": [{"role": "user", "content": each}]} for each in ("x", with_it)]
        counts = [(await server.good("POST", COUNT, each)).json["input_tokens"] for each in asked]
        assert counts[1] > counts[0] + 20
        answer = await server.good("POST", MESSAGES, asked[1], patience=60)
        assert answer.header("X-Appliance-Ignored") == "document: citations"
        for stream in (False, True):
            long = ASK | {"messages": [{"role": "user", "content": "word " * 3000}], "stream": stream}
            refused = await server.ask("POST", MESSAGES, long, patience=60)
            error_of(refused.json)
            assert (refused.status, refused.json["error"]["type"]) == (400, "invalid_request_error")
            assert "tokens > 512 maximum" in refused.json["error"]["message"]
        for body, param in ((ASK | {"messages": 5}, "messages"), (ASK | {"max_tokens": "x"}, "max_tokens")):
            refused = await server.ask("POST", MESSAGES, body)
            assert (refused.status, refused.json["error"]["param"]) == (400, param)
        image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
        picture = await server.ask("POST", MESSAGES, ASK | {"messages": [{"role": "user", "content": [image]}]})
        assert (picture.status, picture.json["error"]["type"]) == (400, "invalid_request_error")
        result = {"type": "tool_result", "tool_use_id": "a", "content": [image]}
        await server.good("POST", MESSAGES, ASK | {"messages": [{"role": "user", "content": [result]}]}, patience=60)


TEXT = {"type": "text"}


def used(result: object) -> list[object]:
    """A chat in which the tool was called, with this result."""
    call = {"type": "tool_use", "id": "a", "name": "choose", "input": {"colour": "red"}}
    found = {"type": "tool_result", "tool_use_id": "a", "content": result}
    return [*ASK["messages"], {"role": "assistant", "content": [call]}, {"role": "user", "content": [found]}]


NATIVE: list[dict[str, Any]] = [
    {"system": "Be brief."},
    {"system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]},
    {"messages": [{"role": "user", "content": [TEXT | {"text": "Who"}, TEXT | {"text": "are you?"}]}]},
    {"messages": [*ASK["messages"], {"role": "assistant", "content": "I am"}]},
    {"messages": [*ASK["messages"], {"role": "assistant", "content": [{"type": "text", "text": "I am"}]}]},
    {"tools": [TOOL], "tool_choice": {"type": "auto"}},
    {"tools": [TOOL], "messages": used([TEXT | {"text": "ok"}])},
    {"stop_sequences": ["model"], "thinking": {"type": "enabled", "budget_tokens": 1024}, "top_k": 1, "seed": 1},
]


@BOTH
async def test_the_model_gets_the_prompt_that_llama_servers_own_route_makes(
    open_server: OpenServer, starter_model: Path, tmp_path: Path, compiled: bool
) -> None:
    template = tmp_path / "tools.jinja"
    template.write_text(ONE_SYSTEM_FIRST)
    async with serving(open_server, starter_model, "--chat-template-file", str(template), compiled=compiled) as server:
        for members in NATIVE:
            body = ASK | {"max_tokens": 12} | members
            (count, ours), (same, theirs) = [
                [(await server.good("POST", below + path, body, patience=60)).json for path in (COUNT, MESSAGES)]
                for below in ("", "/upstream/starter")
            ]
            assert count == same, members
            assert ours["content"] == theirs["content"], members
            names = ("input_tokens", "cache_read_input_tokens", "output_tokens")
            assert sum(ours["usage"][name] for name in names) == sum(theirs["usage"][name] for name in names)
            assert ours["stop_reason"] == theirs["stop_reason"] or ours["stop_reason"] == "stop_sequence"


async def test_structured_output_and_the_history_of_tools(
    open_server: OpenServer, starter_model: Path, tmp_path: Path
) -> None:
    template = tmp_path / "tools.jinja"
    template.write_text(ONE_SYSTEM_FIRST)
    async with serving(open_server, starter_model, "--chat-template-file", str(template)) as server:
        properties = {"a": {"enum": [1, 2]}}
        schema = {"type": "object", "properties": properties, "required": ["a"], "additionalProperties": False}
        form = {"output_config": {"format": {"type": "json_schema", "schema": schema}}, "max_tokens": 200}
        (said,) = (await message(server, **form))["content"]
        assert json.loads(said["text"])["a"] in (1, 2)
        answer = await message(server, tools=[TOOL], messages=used("done"), max_tokens=5)
        assert answer["usage"]["input_tokens"] + answer["usage"]["cache_read_input_tokens"] > 100
        assert answer["stop_reason"] in ("max_tokens", "end_turn", "tool_use")


CLIENT = """
import sys, anthropic
with anthropic.Anthropic(base_url=sys.argv[1], api_key="x", max_retries=0, timeout=60) as client:
    ask = dict(model="alpha", max_tokens=8, messages=[{"role": "user", "content": "hi"}])
    whole = client.messages.create(**ask)
    with client.messages.stream(**ask) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert final.content[0].text == whole.content[0].text != "", (final, whole)
    assert (final.stop_reason, final.usage.output_tokens) == ("max_tokens", 8), final
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop", kinds
    assert client.messages.count_tokens(model="alpha", messages=ask["messages"]).input_tokens > 0
    try:
        client.messages.create(**{**ask, "model": "nobody"})
    except anthropic.NotFoundError as error:
        assert error.body["error"]["type"] == "not_found_error", error.body
    try:
        client.beta.messages.create(**ask, mcp_servers=[{"type": "url", "name": "x", "url": "http://x"}])
    except anthropic.BadRequestError as error:
        assert "mcp_servers" in str(error)
    else:
        raise AssertionError("not refused")
    print("all is well")
"""


async def test_the_official_client_in_a_process_of_its_own(open_server: OpenServer) -> None:
    async with open_server() as server:
        with trio.fail_after(90):
            argv = [sys.executable, "-c", CLIENT, f"http://127.0.0.1:{server.port}"]
            ended = await trio.run_process(argv, capture_stdout=True, capture_stderr=True, check=False)
        assert ended.stdout == b"all is well\n", ended.stderr.decode()


async def test_a_thread_is_refused_with_the_word_that_anthropics_clients_know(server: Appliance) -> None:
    body = {"model": "alpha", "max_tokens": 3, "messages": [{"role": "user", "content": "Hi"}]}
    answer = await server.ask("POST", MESSAGES, body | {"thread": {"type": "create"}})
    assert (answer.status, answer.error["details"]["error_code"]) == (400, "thread_unsupported_request")
