"""``/mcp``: the program as an MCP server, for clients of both eras."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator

import pytest
from http_harness import Answer, Appliance, OpenServer
from mcp_harness import entry, opened
from waiting import until

from appliance.core.records.activity import Query
from appliance.core.settings import FleetSettings
from appliance.errors import BadRequest
from appliance.features.tools.box import OpenToolbox

KEY = ("Authorization", "Bearer k")
BOTH = ("Accept", "application/json, text/event-stream")
ON = {"mcp_server": True, "api_keys": ("k",)}
META = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}


@pytest.fixture
async def server(open_server: OpenServer) -> AsyncGenerator[Appliance]:
    async with open_server(**ON) as running:
        yield running


async def post(server: Appliance, body: object, *headers: tuple[str, str], accept: bool = True) -> Answer:
    always = [KEY, BOTH] if accept else [KEY]
    return await server.ask("POST", "/mcp", body, [*always, *headers], patience=30)


def message(method: str, **params: object) -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


async def rpc(server: Appliance, method: str, *headers: tuple[str, str], **params: object) -> Answer:
    return await post(server, message(method, **params), *headers)


async def use(server: Appliance, name: str, **arguments: object) -> dict:
    answer = await rpc(server, "tools/call", name=name, arguments=arguments)
    assert answer.status == 200
    return answer.json["result"]


async def failed(server: Appliance, name: str, **arguments: object) -> str:
    """What a model is told of a tool that failed."""
    found = await use(server, name, **arguments)
    assert found["isError"] is True
    return found["content"][0]["text"]


def modern(method: str, name: str = "") -> list[tuple[str, str]]:
    found = {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": method} | ({"Mcp-Name": name} if name else {})
    return list(found.items())


def messages(answer: Answer) -> list[dict]:
    """What the events of a stream say; pings are no messages."""
    records = [record for record in answer.events if not record.startswith(":")]
    return [json.loads(record.split("data: ", 1)[1]) for record in records]


async def test_it_is_off_by_default(open_server: OpenServer) -> None:
    async with open_server() as server:
        answer = await rpc(server, "initialize")
    assert (answer.status, "--mcp-server" in answer.error["message"]) == (403, True)


async def test_without_a_key_it_must_have_been_allowed(open_server: OpenServer) -> None:
    """As when a configuration that is read again has lost its keys."""
    async with open_server(mcp_server=True) as server:
        answer = await rpc(server, "ping")
        assert (answer.status, "needs an API key" in answer.error["message"]) == (403, True)
    async with open_server(mcp_server=True, mcp_server_open=True) as server:
        assert (await rpc(server, "ping")).status == 200


async def test_the_handshake_of_older_clients(server: Appliance) -> None:
    answer = await rpc(server, "initialize", protocolVersion="2024-11-05", capabilities={}, clientInfo={})
    found = answer.json["result"]
    assert (found["protocolVersion"], found["capabilities"]) == ("2024-11-05", {"tools": {}})
    assert found["serverInfo"]["name"] == "llama-appliance"
    assert (answer.header("mcp-session-id"), answer.header("content-type")) == (None, "application/json")
    begun = await post(server, {"jsonrpc": "2.0", "method": "notifications/initialized"})
    assert (begun.status, begun.body) == (202, b"")
    listed = (await rpc(server, "tools/list", ("MCP-Protocol-Version", "2024-11-05"))).json["result"]
    assert [tool["name"] for tool in listed["tools"]] == ["list_models", "chat", "embed", "run_agent"]
    assert "resultType" not in listed


async def test_the_stateless_revision(server: Appliance) -> None:
    found = (await rpc(server, "server/discover", *modern("server/discover"), _meta=META)).json["result"]
    assert (found["supportedVersions"][0], found["resultType"]) == ("2026-07-28", "complete")
    assert (found["ttlMs"] >= 0, found["cacheScope"]) == (True, "private")
    assert found["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "llama-appliance"
    listed = (await rpc(server, "tools/list", *modern("tools/list"), _meta=META)).json["result"]
    assert listed["resultType"] == "complete"
    assert {"ttlMs", "cacheScope", "tools"} <= set(listed)
    headers = modern("tools/call", "list_models")
    called = await rpc(server, "tools/call", *headers, _meta=META, name="list_models", arguments={})
    assert called.json["result"]["resultType"] == "complete"
    assert (await rpc(server, "ping", *modern("ping"), _meta=META)).json["result"]["resultType"] == "complete"
    gone = await rpc(server, "logging/setLevel", *modern("logging/setLevel"), _meta=META)
    assert (gone.status, gone.error["code"]) == (404, -32601)
    broken = await post(server, b"{")
    assert (broken.status, broken.error["code"], broken.json["jsonrpc"]) == (400, -32700, "2.0")


async def test_other_methods_and_forms(server: Appliance) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    for method in ("GET", "DELETE", "PUT"):
        answer = await server.ask(method, "/mcp", None if method == "GET" else b"", [KEY, BOTH])
        assert (answer.status, answer.header("allow")) == (405, "POST")
    assert (await post(server, body, ("Accept", "text/html"), accept=False)).status == 406
    for accept in ([], *([("Accept", each)] for each in ("*/*", "application/json", "text/event-stream"))):
        assert (await post(server, body, *accept, accept=False)).status == 200
    assert (await post(server, {"jsonrpc": "2.0", "id": "x", "result": {}})).status == 202


async def test_models_are_listed(server: Appliance) -> None:
    found = await use(server, "list_models")
    models = {each["id"]: each for each in found["structuredContent"]["models"]}
    assert set(models) == {"alpha", "beta"}
    assert models["alpha"]["status"] == "unloaded"
    assert models["alpha"]["aliases"] == ["al"]
    assert json.loads(found["content"][0]["text"]) == found["structuredContent"]
    assert "args" not in json.dumps(found)


async def test_a_model_is_asked(server: Appliance) -> None:
    found = await use(server, "chat", model="al", prompt="hi", system="be kind", max_tokens=5, params={"seed": 1})
    assert not found.get("isError")
    assert found["content"] == [{"type": "text", "text": found["structuredContent"]["text"]}]
    assert found["structuredContent"]["text"]
    assert found["structuredContent"]["usage"]["completion_tokens"] >= 1
    assert server.state("alpha") == "loaded"
    whole = await use(server, "chat", model="alpha", messages=[{"role": "user", "content": "hi"}])
    assert whole["structuredContent"]["text"]
    rows = await server.traffic.recorder.page(Query())
    assert [row.model for row in rows.data] == ["alpha", "alpha"]


async def test_what_a_model_can_mend_is_told_as_a_result(server: Appliance) -> None:
    for arguments, words in (
        ({"model": "nobody", "prompt": "hi"}, "model 'nobody' not found"),
        ({"model": "alpha"}, "either 'prompt' or 'messages'"),
        ({"model": "alpha", "prompt": "hi", "messages": [{}]}, "either 'prompt' or 'messages'"),
        ({"model": "alpha", "prompt": "hi", "params": {"stream": True}}, "'stream' cannot be among"),
        ({"model": "alpha", "promt": "hi"}, "promt"),
        ({"model": 7, "prompt": "hi"}, "arguments cannot be used"),
    ):
        assert words in await failed(server, "chat", **arguments)
    assert server.state("alpha") != "loaded", "none of them has loaded a model"


async def test_texts_are_embedded(open_server: OpenServer) -> None:
    fleet = FleetSettings(stop_timeout=2.0, engine_args=("--embeddings",))
    async with open_server(**ON, fleet=fleet) as server:
        for texts, count in ((["a", "b"], 2), ("a", 1)):
            found = await use(server, "embed", model="alpha", input=texts)
            assert len(found["structuredContent"]["embeddings"]) == count
    async with open_server(**ON) as server:
        told = await failed(server, "embed", model="alpha", input="a")
        assert "Start it with `--embeddings`" in told, "the engine's own words"


async def test_progress_is_told_as_it_comes(server: Appliance) -> None:
    slow = {"model": "alpha", "prompt": "hi", "params": {"fake": {"tokens": 12, "token_delay": 0.1}}}
    answer = await rpc(server, "tools/call", name="chat", arguments=slow, _meta={"progressToken": "t"})
    assert answer.header("content-type") == "text/event-stream"
    *listed, last = messages(answer)
    assert len(listed) >= 2
    assert {each["method"] for each in listed} == {"notifications/progress"}
    assert {each["params"]["progressToken"] for each in listed} == {"t"}
    steps = [each["params"]["progress"] for each in listed]
    assert steps == sorted(set(steps))
    text = last["result"]["structuredContent"]["text"]
    assert "".join(each["params"]["message"] for each in listed) == text
    assert last["id"] == 1


async def test_silence_becomes_a_stream_that_is_kept_open(open_server: OpenServer) -> None:
    slow = {"model": "alpha", "prompt": "hi", "params": {"fake": {"tokens": 3, "token_delay": 0.15}}}
    async with open_server(**ON, ping_after=0.05) as server:
        answer = await rpc(server, "tools/call", name="chat", arguments=slow)
        assert answer.header("content-type") == "text/event-stream"
        assert any(record.startswith(":") for record in answer.events)
        assert len(messages(answer)) == 1
        body = message("tools/call", name="chat", arguments=slow)
        plain = await post(server, body, ("Accept", "application/json"), accept=False)
        assert plain.header("content-type") == "application/json"
    async with open_server(**ON, ping_after=0) as server:
        answer = await rpc(server, "tools/call", name="chat", arguments=slow)
        assert answer.header("content-type") == "application/json"


async def test_who_leaves_stops_the_model(server: Appliance) -> None:
    await use(server, "chat", model="alpha", prompt="hi")
    endless = {"model": "alpha", "prompt": "hi", "params": {"fake": {"tokens": 1000, "token_delay": 0.1}}}
    async with server.connect() as client:
        await client.send("POST", "/mcp", message("tools/call", name="chat", arguments=endless), [KEY, BOTH])
        await until(lambda: server.slots_busy("alpha"))
    await server.wait_idle("alpha")


async def test_only_those_of_the_programs_tools_that_were_chosen(open_server: OpenServer) -> None:
    async with (
        opened(s=entry()) as tools,
        open_server(**ON, tools=OpenToolbox([tools]), mcp_server_tools=("s_echo", "s_fail")) as server,
    ):
        listed = (await rpc(server, "tools/list")).json["result"]["tools"]
        assert [tool["name"] for tool in listed if tool["name"].startswith("s_")] == ["s_echo", "s_fail"]
        assert (await use(server, "s_echo", message="x"))["content"][0]["text"] == "echo: x\nsecond"
        assert await failed(server, "s_fail", message="no") == "no"
        assert (await rpc(server, "tools/call", name="s_about", arguments={})).error["code"] == -32602


async def test_an_agent_works_with_the_tools_that_were_chosen(open_server: OpenServer) -> None:
    call = {"name": "s_add", "arguments": '{"a": 2, "b": 3}'}
    script = json.dumps([{"calls": [call]}, {"text": "it is five"}])
    asked = {"model": "alpha", "prompt": "2+3?", "tools": ["s_add"], "params": {"fake": {"script": script}}}
    async with (
        opened(s=entry()) as tools,
        open_server(**ON, tools=OpenToolbox([tools]), mcp_server_tools=("s_add",)) as server,
    ):
        found = await use(server, "run_agent", **asked)
        assert found["content"][0]["text"] == "it is five"
        assert [trace["result"] for trace in found["structuredContent"]["tool_trace"]] == ["5"]
        followed = await rpc(server, "tools/call", name="run_agent", arguments=asked, _meta={"progressToken": 1})
        words = "".join(each["params"]["message"] for each in messages(followed)[:-1])
        assert "[uses s_add]" in words
        assert "it is five" in words
        refused = await failed(server, "run_agent", model="alpha", prompt="x", tools=["s_about"])
        assert "--mcp-server-tools s_about" in refused
        assert "model 'nobody' not found" in await failed(server, "run_agent", model="nobody", prompt="x")


async def test_an_agent_that_nobody_waits_for_is_cancelled(server: Appliance) -> None:
    endless = {"model": "alpha", "prompt": "x", "params": {"fake": {"tokens": 5000, "token_delay": 0.1}}}
    async with server.connect() as client:
        await client.send("POST", "/mcp", message("tools/call", name="run_agent", arguments=endless), [KEY, BOTH])
        await until(lambda: server.state("alpha") == "loaded", changed=server.fleet.wait_changed)
        await until(lambda: server.slots_busy("alpha"))

    async def states() -> list[str]:
        return [run["state"] for run in (await server.ask("GET", "/api/runs", headers=[KEY])).json["data"]]

    await until(states, lambda found: found == ["canceled"])
    await server.wait_idle("alpha")


async def test_a_tool_that_there_is_not_ends_the_start(open_server: OpenServer) -> None:
    with pytest.raises(BadRequest, match="nothing"):
        async with open_server(**ON, mcp_server_tools=("nothing",)):
            pass
