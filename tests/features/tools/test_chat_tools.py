"""Tools of the server in a plain chat: by the official client, whole and streamed, and everything that can go wrong."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from http_harness import CHAT, Appliance, OpenServer
from plugin_folders import write_plugin
from tool_files import LOOKS, QUESTION, SAYS, Files, asked
from waiting import until

from appliance.core.bodies.sse import Decoder
from appliance.core.settings import FleetSettings
from appliance.features.tools.box import OpenToolbox

OWN = {"type": "function", "function": {"name": "ask_me", "parameters": {"type": "object", "properties": {"q": {}}}}}


def records(body: bytes) -> list[dict[str, object]]:
    *found, done = [event.data for event in Decoder().feed(body)]
    assert done == "[DONE]"
    return [json.loads(data) for data in found]


@pytest.fixture
def files() -> Files:
    return Files()


@pytest.fixture
async def server(open_server: OpenServer, files: Files) -> AsyncGenerator[Appliance]:
    async with open_server(tools=OpenToolbox([files])) as running:
        yield running


async def whole(server: Appliance, body: dict[str, object]) -> dict[str, object]:
    return (await server.good("POST", CHAT, body, patience=30)).json


async def test_a_model_reads_a_file_and_answers_in_one_piece(server: Appliance, files: Files):
    answer = await whole(server, asked(LOOKS, SAYS))
    assert files.used == [("read_file", {"path": "notes"})]
    [choice] = answer["choices"]
    assert choice["finish_reason"] == "stop"
    said = {"content": "Let me look.\n\nMilk and eggs.", "reasoning_content": "So that is it."}
    assert choice["message"] == {"role": "assistant", **said}
    assert answer["object"] == "chat.completion"
    assert answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"] + answer["usage"]["completion_tokens"]
    [used] = answer["appliance"]["tool_trace"]
    assert (used["id"], used["name"]) == ("c1", "read_file")
    assert (used["arguments"], used["result"]) == ({"path": "notes"}, "read_file: notes")
    assert answer["appliance"]["tool_iterations_used"] == 1


async def test_the_engine_is_given_the_tools_and_the_results_and_never_the_member(server: Appliance, files: Files):
    body = asked({"calls": LOOKS["calls"]}, {"echo": True}, tools=["mcp:*", "read_file"], temperature=0.5, seed=7)
    sent = json.loads((await whole(server, body))["choices"][0]["message"]["content"])
    assert "appliance" not in sent
    assert (sent["temperature"], sent["seed"], sent["stream"]) == (0.5, 7, True)
    assert [tool["function"]["name"] for tool in sent["tools"]] == ["web_search", "read_file"]
    question, called, result = sent["messages"]
    assert question == QUESTION[0]
    assert called["tool_calls"][0]["function"] == {"name": "read_file", "arguments": '{"path": "notes"}'}
    assert result == {"role": "tool", "tool_call_id": "c1", "content": "read_file: notes"}


async def test_the_official_client_takes_it(server: Appliance, files: Files):
    import openai  # not at the top: it takes a second of each process that collects the tests

    body = asked(LOOKS, SAYS)
    extra = {name: body[name] for name in ("appliance", "fake")}

    def ask(port: int) -> tuple[list[Any], str | None]:
        with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="x", max_retries=0, timeout=30) as client:
            create = partial(client.chat.completions.create, model="alpha", messages=QUESTION, extra_body=extra)
            return list(create(stream=True)), create().choices[0].message.content

    chunks, whole_text = await trio.to_thread.run_sync(ask, server.port)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Let me look.\n\nMilk and eggs."
    assert whole_text == "Let me look.\n\nMilk and eggs."
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["stop"]
    called, result, end = [chunk.model_extra["appliance"] for chunk in chunks if "appliance" in chunk.model_extra]
    assert called["tool_call"]["name"] == "read_file"
    assert (result["tool_result"]["id"], result["tool_result"]["result"]) == ("c1", "read_file: notes")
    assert end["tool_iterations_used"] == 1


async def test_usage_is_a_chunk_of_its_own_where_the_client_asks_for_it(server: Appliance, files: Files):
    body = asked(LOOKS, SAYS, stream=True, stream_options={"include_usage": True})
    with_usage = records((await server.ask("POST", CHAT, body)).body)
    without = records((await server.ask("POST", CHAT, asked(LOOKS, SAYS, stream=True))).body)
    assert [record["choices"] for record in with_usage if "usage" in record] == [[]]
    assert [bool(record["choices"]) for record in without if "usage" in record] == [True]
    assert with_usage[-1]["usage"] == without[-1]["usage"]
    assert {record["object"] for record in with_usage} == {"chat.completion.chunk"}


async def test_a_function_of_the_client_ends_the_answer_and_nothing_is_used(server: Appliance, files: Files):
    calls = [*LOOKS["calls"], {"name": "ask_me", "arguments": "{broken", "id": "q"}]
    answer = await whole(server, {**asked({"calls": calls}), "tools": [OWN]})
    streamed = records((await server.ask("POST", CHAT, {**asked({"calls": calls}, stream=True), "tools": [OWN]})).body)
    call = {"id": "q", "type": "function", "function": {"name": "ask_me", "arguments": "{broken"}}
    assert files.used == []
    [choice] = answer["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"] == {"role": "assistant", "content": None, "tool_calls": [{"index": 0, **call}]}
    assert streamed[-2]["choices"][0]["delta"] == {"tool_calls": [{"index": 0, **call}]}
    assert streamed[-1]["choices"][0]["finish_reason"] == "tool_calls"


async def test_what_a_tool_cannot_do_is_told_to_the_model(server: Appliance, files: Files):
    calls = [{"name": "refuse", "arguments": "{}", "id": "c1"}]
    answer = await whole(server, asked({"calls": calls}, {"echo": True}, tools=["refuse"]))
    sent = json.loads(answer["choices"][0]["message"]["content"])
    assert sent["messages"][-1]["content"] == "error: tool 'refuse': there is no shell"


async def test_a_spent_budget_is_an_error_that_says_so(server: Appliance, files: Files):
    answer = await server.refuses(500, "tool_loop_failed", "POST", CHAT, asked(LOOKS, max_iterations=2))
    streamed = await server.good("POST", CHAT, asked(LOOKS, stream=True, max_iterations=0))
    assert answer.error["message"] == "model 'alpha' could not be answered with tools: tool budget exhausted"
    assert len(files.used) == 2
    last = json.loads(Decoder().feed(streamed.body)[-1].data)
    assert last["error"]["reason"] == "tool_loop_failed"
    assert b"Let me" in streamed.body


async def test_a_mistake_is_told(server: Appliance):
    for more, told in (
        ({"appliance": {"tool": ["read_file"]}}, "'appliance' cannot be used: Object contains unknown field `tool`"),
        ({"appliance": {"tools": "read_file"}}, "'appliance' cannot be used: Expected `array`, got `str`"),
        ({"appliance": {"max_iterations": -1, "tools": []}}, "'appliance' cannot be used: Expected `int` >= 0"),
        ({"appliance": {"tools": ["read_fil"]}}, "there is no tool 'read_fil'; did you mean 'read_file'?"),
        ({"n": 2}, "'n' must be 1"),
        ({"messages": "hi"}, "the request body cannot be used with tools of this server: Expected `array`"),
        ({"tools": [{"function": {"name": "read_file"}}]}, "two tools are called 'read_file'"),
        ({"tools": [{"function": {}}]}, "the request body cannot be used with tools of this server: Object missing"),
    ):
        answer = await server.ask("POST", CHAT, {**asked(SAYS), **more})
        assert (answer.status, answer.error["message"].startswith(told)) == (400, True), answer.body


async def test_tools_that_are_switched_off_say_which_flag_helps(open_server: OpenServer):
    async with open_server() as server:
        await server.refuses(403, None, "POST", CHAT, asked(SAYS), words="--tools")


async def test_a_member_that_is_there_twice_slips_past_nobody(server: Appliance):
    for members in (
        b'"appliance": {"tools": ["*"]}, "appliance": null',
        b'"appliance": null, "appliance": {"tools": ["*"]}',
        b'"appliance": {"tools": ["*"]}, "\\u0061ppliance": null',
    ):
        answer = await server.ask("POST", CHAT, b'{"model": "alpha", "messages": [], %b}' % members)
        assert (answer.status, answer.error["message"]) == (400, "'appliance' is there twice; say it once")


async def test_only_a_chat_has_tools(server: Appliance, files: Files):
    body = {"model": "alpha", "prompt": "hi", "appliance": {"tools": ["read_file"]}}
    answer = await server.ask("POST", "/v1/completions", body)
    assert (answer.status, answer.error["param"]) == (400, "appliance")


async def test_without_tools_the_request_is_any_other_but_for_the_member(server: Appliance):
    for member in ({}, {"tools": []}, None):
        body = {"model": "alpha", "messages": QUESTION, "appliance": member, "fake": {"echo": True}}
        sent = json.loads((await server.ask("POST", CHAT, body)).json["body"])
        assert sent == {name: value for name, value in body.items() if name != "appliance"}


async def test_the_programs_own_requests_use_no_tools(server: Appliance, files: Files):
    body = asked({"echo": True})
    async with server.opened.kernel.inward.ask(CHAT, json.dumps(body).encode()) as reply:
        answer = json.loads(await reply.read(1 << 20))
    sent = json.loads(answer["choices"][0]["message"]["content"])
    assert not {"appliance", "tools"} & set(sent)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_stops_the_tool(server: Appliance, files: Files, stream: bool):
    calls = [{"name": "wait", "arguments": "{}"}]
    async with server.connect() as client:
        await client.send("POST", CHAT, asked({"calls": calls}, tools=["wait"], stream=stream))
        await until(files.begun.is_set)
        await until(lambda: server.slots_busy("alpha"), lambda busy: not busy)  # while its tools are used
    await until(files.stopped.is_set)


async def test_a_silent_tool_does_not_make_the_stream_silent(open_server: OpenServer, files: Files):
    body = asked({"calls": [{"name": "wait", "arguments": "{}"}]}, SAYS, tools=["wait"], stream=True)
    async with open_server(tools=OpenToolbox([files]), ping_after=0.05) as server, server.begun(body) as client:
        await client.until(b'"tool_call"')
        await client.until(b": ping")
        files.gate.set()
        assert b"Milk" in await client.until(b"[DONE]")


async def test_calls_of_one_turn_run_at_once_where_the_client_allows_it(server: Appliance, files: Files):
    calls = [{"name": "wait", "arguments": "{}", "id": "c1"}, {"name": "read_file", "arguments": "{}", "id": "c2"}]
    body = asked({"calls": calls}, SAYS, tools=["*"], parallel_tool_calls=True)
    async with server.asking(body, patience=30) as answers:
        await until(lambda: len(files.used) == 2)
        files.gate.set()
    assert answers[0].json["appliance"]["tool_iterations_used"] == 1


async def test_what_the_engine_refuses_is_its_own_answer(server: Appliance, files: Files):
    for stream in (False, True):
        body = {**asked(SAYS, stream=stream), "fake": {"status": 400}}
        assert (await server.refuses(400, None, "POST", CHAT, body)).error["fake"] is True


@pytest.mark.parametrize("ending", [{"die": 1}, {"close": True}])
async def test_an_engine_that_fails_in_the_middle_keeps_what_was_said(
    open_server: OpenServer, files: Files, ending: dict[str, object]
):
    async with open_server(tools=OpenToolbox([files]), fleet=FleetSettings(stop_timeout=2.0)) as server:
        body = asked(LOOKS, {"text": "It says", **ending}, stream=True)
        answer = await server.ask("POST", CHAT, body, patience=30)
    *before, last = [json.loads(event.data) for event in Decoder().feed(answer.body)]
    assert last["error"]["reason"] == "upstream_failed"
    said = "".join(choice["delta"].get("content") or "" for record in before for choice in record["choices"])
    assert said == "Let me look.\n\nIt says"


UPPER = """
async def on_stream(events, context):
    async for event in events:
        for choice in event.data["choices"] if event.data is not None else ():
            choice["delta"]["content"] = (choice["delta"].get("content") or "").upper()
        yield event
"""


async def test_plugins_and_tools_go_together(open_server: OpenServer, files: Files, tmp_path: Path):
    """The plugin sees the answer of all turns, as it streams."""
    write_plugin(tmp_path, "upper", UPPER)
    body = asked(LOOKS, SAYS, stream=True, messages=[{"role": "user", "content": "/upper Hello"}])
    async with open_server(tools=OpenToolbox([files]), plugins=[tmp_path]) as server:
        answer = records((await server.ask("POST", CHAT, body, patience=30)).body)
    said = "".join(choice["delta"].get("content") or "" for record in answer for choice in record["choices"])
    assert said == "LET ME LOOK.\n\nMILK AND EGGS."
    assert ["tool_call" in record.get("appliance", {}) for record in answer].count(True) == len(files.used) == 1


async def test_the_activity_log_has_one_request_with_the_tokens_of_all_turns(server: Appliance, files: Files):
    for stream in (False, True):
        answer = await server.ask("POST", CHAT, asked(LOOKS, SAYS, stream=stream))
        last = records(answer.body)[-1] if stream else answer.json
        newest, *others = await server.rows()
        assert (len(others), newest["model"], newest["resp_status_code"]) == (stream, "alpha", 200)
        assert newest["tokens"]["input_tokens"] == last["usage"]["prompt_tokens"]
        assert newest["tokens"]["output_tokens"] == last["usage"]["completion_tokens"]
