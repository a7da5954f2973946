"""The Responses API over HTTP and websockets, on a whole server with the engine of the tests; and its docs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import sdk_types
import trio
from command_lines import command_line
from http_harness import Answer, Appliance, OpenServer, model
from swap_harness import Configure
from trio_websocket import WebSocketConnection

from appliance.features.responses.core.members import ITEMS, MEMBERS, PARTS, TOOLS
from appliance.features.responses.reading import MAX_KEPT, KeptItems

PATH = "/v1/responses"
STORY = "Once upon a time a small llama carried"
LOOK = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
PATCH = {"type": "custom", "name": "patch"}
OLD = Path(__file__).with_name("old_server.py")


def script(*turns: dict[str, object]) -> tuple[str, str]:
    return "--script", json.dumps(turns)


def types(answer: Answer) -> list[str]:
    return [event.type.removeprefix("response.") for event in sdk_types.events(answer.body)]


@pytest.mark.parametrize("path", [PATH, "/responses", "/v/responses"])
async def test_whole_and_streamed_answers_say_the_same(server: Appliance, path: str):
    body = {"model": "alpha", "input": "hi", "max_output_tokens": 8, "instructions": "i"}
    whole = sdk_types.whole((await server.good("POST", path, body)).body)
    streamed = await server.good("POST", path, {**body, "stream": True})
    assert streamed.header("content-type") == "text/event-stream"
    last = sdk_types.events(streamed.body)[-1].response
    for found in (whole, last):
        assert (found.output_text, found.status, found.model) == (STORY, "incomplete", "alpha")
        assert found.usage.output_tokens == 8
        assert found.instructions == "i"
    row = (await server.rows())[0]
    assert (row["req_path"], row["tokens"]["output_tokens"], row["resp_status_code"]) == (path, 8, 200)


@pytest.mark.parametrize("refers", [False, True], ids=["items", "references"])
async def test_a_tool_is_called_and_its_result_goes_back(open_server: OpenServer, fake_model: Path, *, refers: bool):
    calls = [
        {"name": "look", "arguments": '{"x": 1}', "id": "c1"},
        {"name": "patch", "arguments": '{"input": "+a\\n"}', "id": "c2"},
    ]
    turns = script({"reasoning": "hm", "text": "I look.", "calls": calls, "finish": "tool_calls"}, {"echo": True})
    async with open_server(models=[model(fake_model, "alpha", args=turns)]) as server:
        asks: dict[str, Any] = {"model": "alpha", "stream": True, "tools": [LOOK, PATCH]}
        items: list[Any] = [{"role": "user", "content": "x"}]
        first = await server.good("POST", PATH, {**asks, "input": items})
        response = sdk_types.events(first.body)[-1].response
        assert [item.type for item in response.output] == ["reasoning", "message", "function_call", "custom_tool_call"]
        assert response.output[3].input == "+a\n"
        if refers:  # as the AI SDK does
            items += [{"type": "item_reference", "id": item.id} for item in response.output]
        else:
            items += [item.model_dump(mode="json", exclude_none=True) for item in response.output]
        items += [
            {"type": "function_call_output", "call_id": "c1", "output": "seen"},
            {"type": "custom_tool_call_output", "call_id": "c2", "output": "done"},
        ]
        second = await server.good("POST", PATH, {**asks, "input": items})
        sent = json.loads(sdk_types.events(second.body)[-1].response.output_text)["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "tool", "tool"]
    assert (sent[1]["content"], sent[1]["reasoning_content"]) == ("I look.", "hm")
    assert [json.loads(call["function"]["arguments"]) for call in sent[1]["tool_calls"]] == [
        {"x": 1},
        {"input": "+a\n"},
    ]


async def test_items_are_kept_unless_the_client_wants_that_not(server: Appliance):
    body: dict[str, Any] = {"model": "alpha", "input": "hi", "max_output_tokens": 3}
    for store, status in ((True, 200), (None, 200), (False, 400)):
        item = (await server.good("POST", PATH, body | {"store": store})).json["output"][0]
        again = await server.ask("POST", PATH, body | {"input": [{"type": "item_reference", "id": item["id"]}]})
        assert (store, again.status) == (store, status)


def test_the_oldest_items_are_forgotten():
    kept = KeptItems()
    for number in range(5):
        kept.keep(f"msg_{number}", b'{"x":"%b"}' % (b"x" * (MAX_KEPT // 3)))
    assert [number for number in range(5) if kept.find(f"msg_{number}")] == [3, 4]


async def test_tokens_are_counted_of_what_is_sent(server: Appliance):
    async def count(path: str, **members: object) -> int:
        answer = await server.good("POST", path, {"model": "alpha", "input": "hi", **members})
        assert answer.json["object"] == "response.input_tokens"
        return answer.json["input_tokens"]

    plain = await count("/v1/responses/input_tokens")
    assert await count("/responses/input_tokens") == plain
    assert await count("/v1/responses/input_tokens", instructions="be brief") > plain


@pytest.mark.parametrize("stream", [False, True])
async def test_a_clients_mistake_is_a_400_that_names_the_member(server: Appliance, stream: bool):
    for members, param in (
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"temperature": "hot"}, "temperature"),
    ):
        body = {"model": "alpha", "input": "hi", "stream": stream, **members}
        answer = await server.refuses(400, "invalid_request", "POST", PATH, body)
        assert answer.error["param"] == param


async def test_a_server_of_another_kind_is_asked_as_it_is_and_in_chats_where_it_has_no_such_route(
    open_server: OpenServer, configured: Configure
):
    """The one speaks the dialect; the other answers 404, and knows chat completions."""
    models = {
        name: {"cmd": command_line((sys.executable, str(OLD), "${PORT}", name)), "checkEndpoint": "/health"}
        for name in ("speaks", "lacks")
    }
    async with open_server(config=configured(models)) as server:
        own = await server.good("POST", PATH, {"model": "speaks", "input": "hi", "background": True})
        assert own.json == {"own": True, "background": True}
        found = sdk_types.whole((await server.good("POST", PATH, {"model": "lacks", "input": "hi"})).body)
        assert found.output_text == "hi from a chat"
        streamed = await server.good("POST", PATH, {"model": "lacks", "input": "hi", "stream": True})
        assert sdk_types.events(streamed.body)[-1].response.output_text == "hi from a chat"
        await server.refuses(400, None, "POST", PATH, {"model": "lacks", "input": "hi", "background": True})


async def test_a_server_for_one_model_is_llama_server_to_the_letter(open_server: OpenServer):
    async with open_server(single="alpha") as server:
        answer = await server.good("POST", PATH, {"input": "hi", "max_output_tokens": 2})
        assert "parallel_tool_calls" not in answer.json


# ---- websockets ------------------------------------------------------------------------------------------------------


async def create(socket: WebSocketConnection, **members: object) -> list[dict[str, Any]]:
    """The events of one response."""
    await socket.send_message(json.dumps({"type": "response.create", "model": "alpha", **members}))
    events: list[dict[str, Any]] = []
    with trio.fail_after(15):
        while not events or events[-1]["type"].rpartition(".")[2] not in ("completed", "incomplete", "failed", "error"):
            events.append(json.loads(await socket.get_message()))
    return events


async def test_a_websocket_answers_each_create_with_the_events_of_its_stream(open_server: OpenServer, fake_model: Path):
    alpha = model(fake_model, "alpha", args=script({"text": "Well."}, {"echo": True}))
    async with open_server(models=[alpha]) as server, server.joined(PATH) as socket:
        events = await create(socket, input="hi", store=False)
        wire = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
        response = sdk_types.events(wire.encode())[-1].response
        assert (response.status, response.output_text) == ("completed", "Well.")
        more = [{"role": "user", "content": "go on"}]
        events = await create(socket, input=more, previous_response_id=response.id, stream_id="s")
        assert {event["stream_id"] for event in events} == {"s"}
        sent = json.loads(events[-1]["response"]["output"][0]["content"][0]["text"])["messages"]
        assert [message["content"] for message in sent] == ["hi", "Well.", "go on"]
        rows = await server.rows()
        assert [row["req_path"] for row in rows] == [PATH, PATH]


async def test_a_websocket_may_prepare_and_go_on_from_there(open_server: OpenServer, fake_model: Path):
    alpha = model(fake_model, "alpha", args=script({"echo": True}))
    async with open_server(models=[alpha]) as server, server.joined("/responses") as socket:
        ready = (await create(socket, input="hi", generate=False))[-1]["response"]
        assert (ready["status"], ready["output"]) == ("completed", [])
        assert await server.rows() == []
        events = await create(socket, input=[], previous_response_id=ready["id"])
        sent = json.loads(events[-1]["response"]["output"][0]["content"][0]["text"])["messages"]
        assert sent == [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("message", "status", "param", "code"),
    [
        ("no json", 400, "type", "invalid_request"),
        ('{"type":"response.steer"}', 400, "type", "invalid_request"),
        ('{"type":"response.create","model":"alpha","input":5}', 400, "input[0].content", "invalid_request"),
        ('{"type":"response.create","model":"nope","input":"x"}', 404, None, "model_not_found"),
        (
            '{"type":"response.create","model":"alpha","input":"x","previous_response_id":"r"}',
            400,
            "previous_response_id",
            "previous_response_not_found",
        ),
    ],
)
async def test_a_mistake_in_a_websocket_is_an_error_event_and_ends_nothing(
    server: Appliance, message: str, status: int, param: str | None, code: str
):
    async with server.joined(PATH) as socket:
        await socket.send_message(message)
        with trio.fail_after(15):
            told = json.loads(await socket.get_message())
        assert (told["type"], told["status"]) == ("error", status)
        assert (told["error"]["param"], told["error"]["code"]) == (param, code)
        assert (await create(socket, input="hi", max_output_tokens=2))[-1]["type"] == "response.incomplete"


async def test_an_engine_that_dies_tells_a_websocket_why(server: Appliance):
    async with server.joined(PATH) as socket:
        events = await create(socket, input="hi", fake={"die_after_tokens": 2, "exit_code": 7})
        assert events[-1]["type"] == "error"
        assert "exit status 7" in events[-1]["error"]["message"]
        assert (await create(socket, input="hi", max_output_tokens=2))[-1]["type"] == "response.incomplete"
        refused = await create(socket, input="hi", fake={"status": 429})
        assert (refused[-1]["status"], refused[-1]["error"]["message"]) == (429, "the fake was told to refuse")


async def test_a_client_that_leaves_ends_its_response(server: Appliance):
    async with server.joined(PATH) as socket:
        asks = {"type": "response.create", "model": "alpha", "input": "hi"}
        await socket.send_message(json.dumps(asks | {"fake": {"tokens": 5000, "token_delay": 0.01}}))
        await socket.get_message()
    await server.wait_idle("alpha")


DOCS = Path(__file__).parents[3] / "docs" / "dialects.md"


def table(head: str, rows: Iterable[tuple[str, str, str]]) -> list[str]:
    return [f"| {head} | what becomes of it | |", "|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows)]


def grouped(facts: Mapping[str, tuple[str, str]]) -> list[tuple[str, str, str]]:
    """One row for those of which the same is said."""
    names: dict[tuple[str, str], list[str]] = {}
    for name, fact in facts.items():
        names.setdefault(fact, []).append(f"`{name}`")
    return [(" ".join(each), *fact) for fact, each in names.items()]


TABLES = [
    table("member", grouped({name: (each.treatment, each.words) for name, each in MEMBERS.items()})),
    table("input item", grouped(ITEMS)),
    table("part of a message", grouped(PARTS)),
    table("tool", [*grouped(TOOLS), ("every other type", "ignored", "")]),
]


def test_the_tables_are_those_of_the_code():
    section = DOCS.read_text("utf-8").partition("## OpenAI's Responses")[2].partition("\n## ")[0].splitlines()
    told = [line for line in section if line.startswith("|")]
    assert told == [line for each in TABLES for line in each], "\n".join("\n".join(each) for each in TABLES)


def test_every_member_and_item_of_openais_client_is_there():
    from openai.types.responses import ResponseInputItemParam
    from openai.types.responses.input_token_count_params import InputTokenCountParams
    from openai.types.responses.response_create_params import ResponseCreateParamsBase

    known = {*get_type_hints(ResponseCreateParamsBase), *get_type_hints(InputTokenCountParams), "stream"}
    assert known == set(MEMBERS) - {"client_metadata"}  # of Codex alone
    items = {get_args(word)[0] for kind in get_args(ResponseInputItemParam) for word in types_of(kind)}
    assert items == set(ITEMS)


def types_of(kind: type) -> list[object]:
    """The ``type`` of a typed dictionary: a literal, which may be required or null."""
    found = get_type_hints(kind).get("type")
    while found is not None and not isinstance(get_args(found)[0], str):
        found = get_args(found)[0]
    return [] if found is None else [found]
