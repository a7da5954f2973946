"""The messages of MCP: lines and garbage, the texts in answers, and what a request to the program's own server is."""

from __future__ import annotations

import json

import msgspec
import pytest
from cutting import cut
from drawn_json import json_values
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import Raw

from appliance.features.tools.core import mcp_serving
from appliance.features.tools.core.mcp_messages import (
    MAX_OFFERS,
    MAX_TEXT,
    LineCutter,
    McpError,
    McpPrompt,
    Resource,
    RpcAnswer,
    RpcRequest,
    call_params,
    notification,
    outcome,
    prompt_text,
    read_message,
    read_offers,
    read_tools,
    refusal,
    reply,
    request,
    resource_text,
    result,
)


def raw(value: object) -> Raw:
    return Raw(json.dumps(value).encode())


LINE = st.binary(max_size=40).map(lambda data: data.replace(b"\n", b""))


@given(st.lists(LINE, max_size=20), st.lists(st.integers(0, 400), max_size=20))
def test_however_a_stream_is_cut_its_lines_are_the_same(lines: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(line + b"\n" for line in lines)
    parser = LineCutter(limit=30)
    found: list[bytes] = []
    for piece in cut(stream, cuts):
        found += parser.feed(piece)
        assert parser.held <= 30
    assert found == [line.strip() for line in lines if len(line) <= 30 and line.strip()]
    assert parser.dropped == sum(len(line) > 30 for line in lines)


def test_a_line_of_any_length_is_not_kept() -> None:
    parser = LineCutter()
    for _ in range(100):
        assert parser.feed(b"x" * (1 << 20)) == []
        assert parser.held <= 8 << 20
    assert parser.feed(b"\n{}\n") == [b"{}"]
    assert parser.dropped == 1


JSON = json_values(
    ["id", "method", "params", "result", "error", "code", "jsonrpc"], text=st.text(max_size=5) | st.just(10**20)
)


@given(JSON)
def test_any_json_is_sorted_by_what_it_is(value: object) -> None:
    found = read_message(json.dumps(value).encode())
    if found is None:
        return
    assert isinstance(value, dict)
    match found:
        case RpcAnswer():
            assert "result" in value or "error" in value
            assert (found.result is None) != (found.error is None)
            assert found.id == value["id"]
        case RpcRequest():
            assert found.method == value["method"]
            assert read_message(reply(found)) is not None, "a server's question always has an answer"


@pytest.mark.parametrize(
    "data", [b"[" * 100_000, b'{"id":1,"result":' + b"[" * 100_000, b'{"id":1,"result":"\xff"', b""]
)
def test_what_would_break_a_parser(data: bytes) -> None:
    assert read_message(data) is None


def test_what_is_read_back_is_what_was_written() -> None:
    asked = read_message(request(7, "tools/call", {"name": "x"}))
    assert (asked.id, asked.method) == (7, "tools/call")
    assert read_message(notification("notifications/initialized")) is None
    answer = read_message(result(7, {"a": 1}))
    assert answer.result is not None
    assert bytes(answer.result) == b'{"a":1}'
    refused = read_message(refusal("x", McpError(code=-32601, message="no")))
    assert refused == RpcAnswer(id="x", error=McpError(code=-32601, message="no"))
    for line in (request(1, "a"), notification("b"), result(1, "\n"), refusal(None, McpError(code=1, message="\r\n"))):
        assert b"\n" not in line


def test_errors_in_any_shape_have_words() -> None:
    for text in ('{"code":"E1"}', '"gone"', "null", "{}", '{"message":"why"}', '{"code":1.5,"message":null}'):
        found = read_message(b'{"id":1,"error":%b}' % text.encode())
        assert found.error.message


def test_a_server_is_answered_properly() -> None:
    assert json.loads(reply(RpcRequest(id="a", method="ping"))) == {"jsonrpc": "2.0", "id": "a", "result": {}}
    for method in ("roots/list", "sampling/createMessage", "elicitation/create", "x" * 10_000):
        said = json.loads(reply(RpcRequest(id=3, method=method)))
        assert said["id"] == 3
        assert said["error"]["code"] == -32601
        assert len(said["error"]["message"]) < 200


A, B, IMAGE, AUDIO = {"type": "text", "text": "a"}, {"type": "text", "text": "b"}, {"type": "image"}, {"type": "audio"}


@pytest.mark.parametrize(
    ("answer", "kind", "told"),
    [
        ({"content": [A, B]}, "plain_text_response", "a\nb"),
        ({"content": [IMAGE, A]}, "plain_text_response", "a"),
        ({"content": [IMAGE, AUDIO, IMAGE]}, "plain_text_response", "[the tool returned no text but: image, audio]"),
        ({"content": [{"type": "text"}], "structuredContent": {"a": 1}}, "plain_text_response", ""),
        ({"content": []}, "plain_text_response", ""),
        ({}, "plain_text_response", ""),
        ({"structuredContent": {"a": 1}}, "plain_text_response", '{"a": 1}'),
        ({"content": [A], "isError": True}, "error", "a"),
        ({"content": [], "isError": True}, "error", "MCP tool returned an error"),
    ],
)
def test_results_in_llama_servers_words(answer: dict[str, object], kind: str, told: str) -> None:
    assert json.loads(outcome(RpcAnswer(id=1, result=raw(answer))).body) == {kind: told}
    refused = outcome(RpcAnswer(id=1, error=McpError(code=1, message="why")))
    assert json.loads(refused.body) == {"error": "why"}


@given(JSON)
def test_any_result_is_told_somehow(value: object) -> None:
    found = outcome(RpcAnswer(id=1, result=raw(value)))
    assert len(json.loads(found.body)) == 1


@example({})
@given(JSON)
def test_any_list_of_tools_is_read_or_refused(value: object) -> None:
    read_tools("s", raw(value))
    page = read_tools("s", raw({"tools": [value, {"name": "good"}]}))
    spec, name = page.tools[-1]
    assert (spec.name, name) == ("s_good", "good")


@pytest.mark.parametrize("schema", [None, 1, [], {}, {"type": "object"}, {"type": "string"}, {"properties": {"a": {}}}])
def test_every_tool_has_an_object_for_its_parameters(schema: object) -> None:
    tool = {"name": "t", "inputSchema": schema}
    page = read_tools("s", raw({"tools": [tool, {"name": "none"}]}))
    for spec, _ in page.tools:
        found = json.loads(bytes(spec.parameters))
        assert found["type"] == "object"
        assert isinstance(found["properties"], dict)


@pytest.mark.parametrize("text", [b"[1]", b'"x"', b"{", b'{"a":"\xff"}', b"{} {}", b"[" * 100_000])
def test_arguments_that_are_no_object(text: bytes) -> None:
    with pytest.raises(ValueError, match="JSON object"):
        call_params("t", text)


@given(st.dictionaries(st.text(max_size=4), JSON, max_size=3), st.sampled_from([None, 2, "\n"]))
def test_arguments_fit_into_one_line(arguments: dict[str, object], indent: int | str | None) -> None:
    text = json.dumps(arguments, indent=indent).encode()
    line = request(1, "tools/call", call_params("t", text))
    assert b"\n" not in line
    assert msgspec.json.decode(line)["params"]["arguments"] == msgspec.json.decode(text)


def test_what_can_be_understood_is_offered_and_the_rest_left_out() -> None:
    answer = RpcAnswer(id=1, result=raw({"prompts": [{"name": "a"}, {"title": "no name"}, 5, {"name": "b"}]}))
    assert read_offers(answer, "prompts", McpPrompt) == (McpPrompt("a"), McpPrompt("b"))
    assert read_offers(answer, "resources", Resource) == ()
    many = RpcAnswer(id=1, result=raw({"resources": [{"uri": "x:y"}] * (MAX_OFFERS + 1)}))
    assert read_offers(many, "resources", Resource) == (Resource("x:y"),) * MAX_OFFERS


@pytest.mark.parametrize(
    "answer",
    [
        None,
        RpcAnswer(id=1),
        RpcAnswer(id=1, error=McpError(code=1, message="no")),
        *(RpcAnswer(id=1, result=raw(wrong)) for wrong in ([], {"prompts": 5}, {"prompts": {}})),
    ],
)
def test_a_server_that_knows_none_has_none(answer: RpcAnswer | None) -> None:
    assert read_offers(answer, "prompts", McpPrompt) == ()


def test_the_text_of_a_prompt_is_that_of_its_messages() -> None:
    contents = [
        {"type": "text", "text": "one"},
        {"type": "image", "data": "AAAA"},
        {"type": "resource", "text": "not this", "resource": {"uri": "x:y", "text": "two"}},
        {"type": "resource", "resource": {"uri": "x:y", "blob": "AAAA"}},
        {"type": "resource", "resource": 5},
    ]
    messages = [{"role": "user", "content": each} for each in contents]
    assert prompt_text(raw({"messages": messages})) == "one\n\ntwo"
    for wrong, told in (({"messages": messages[1:2]}, "no text"), ({}, "no text"), ({"messages": 5}, "not a prompt")):
        with pytest.raises(ValueError, match=told):
            prompt_text(raw(wrong))


def test_the_text_of_a_resource_is_that_of_its_parts() -> None:
    texts = [{"uri": "x:1", "text": "one"}, {"uri": "x:2", "blob": "AAAA"}, {"uri": "x:3", "text": ""}]
    assert resource_text(raw({"contents": texts})) == "one\n"
    files = [{"uri": "x:1", "blob": "AAAA", "mimeType": "image/png"}, {"uri": "x:2", "blob": "AAAA"}]
    for wrong, told in (
        ({"contents": files}, r"not text \(image/png, unknown\)"),
        ({"contents": []}, "not a resource"),
        ({"contents": 5}, "not a resource"),
    ):
        with pytest.raises(ValueError, match=told):
            resource_text(raw(wrong))


def test_a_text_has_an_end() -> None:
    long = "x" * (MAX_TEXT + 1)
    assert len(resource_text(raw({"contents": [{"text": long}]}))) == MAX_TEXT
    assert len(prompt_text(raw({"messages": [{"role": "user", "content": {"text": long}}]}))) == MAX_TEXT


@given(json_values(["role", "content", "type", "text", "uri", "blob", "resource"]))
def test_any_result_is_text_or_refused(value: object) -> None:
    for read in (prompt_text, resource_text):
        for told in (value, {"messages": value, "contents": value}):
            try:
                assert isinstance(read(raw(told)), str)
            except ValueError:
                pass


META = {mcp_serving.META_VERSION: mcp_serving.MODERN_VERSIONS[0], mcp_serving.META_CAPABILITIES: {}}
CALL = {"MCP_Protocol_Version": mcp_serving.MODERN_VERSIONS[0], "Mcp_Method": "tools/call", "Mcp_Name": "t"}


def read(message: object, **headers: str):
    fields = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return mcp_serving.read_request(json.dumps(message).encode(), fields)


def asked(method: str, **params: object) -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


def test_a_call_in_both_ways_of_speaking() -> None:
    old = read(asked("tools/call", name="t", arguments={"a": 1}))
    assert old == mcp_serving.ToolsCall(id=1, name="t", arguments=b'{"a": 1}', modern=False)
    new = read(asked("tools/call", name="t", _meta={**META, "progressToken": "p"}), **CALL)
    assert new == mcp_serving.ToolsCall(id=1, name="t", arguments=b"{}", modern=True, token="p")
    assert isinstance(read(asked("tools/list")), mcp_serving.ToolsListing)


@pytest.mark.parametrize(
    ("headers", "meta", "code"),
    [
        ({**CALL, "Mcp_Name": "other"}, META, -32020),
        ({**CALL, "Mcp_Method": "tools/list"}, META, -32020),
        ({**CALL, "MCP_Protocol_Version": "2025-11-25"}, META, -32020),
        ({}, META, -32020),
        ({**CALL, "mcp_name": "t"}, META, -32020),
        (CALL, {}, -32602),
        (CALL, {**META, mcp_serving.META_VERSION: 1}, -32602),
        ({**CALL, "MCP_Protocol_Version": "2031-01-01"}, {**META, mcp_serving.META_VERSION: "2031-01-01"}, -32022),
        ({"MCP_Protocol_Version": "1999-01-01"}, {}, -32022),
    ],
)
def test_headers_that_say_something_else(headers: dict[str, str], meta: object, code: int) -> None:
    found = read(asked("tools/call", name="t", _meta=meta), **headers)
    assert (found.status, found.error.code) == (400, code)
    assert code != -32022 or mcp_serving.MODERN_VERSIONS[0].encode() in bytes(found.error.data or b"")


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"\xff", 400, -32700),
        (b"[" * 100_000, 400, -32600),
        (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', 400, -32600),
        (b'{"id":1,"method":"ping"}', 400, -32600),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', 400, -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":[]}', 400, -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{}}', 200, -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t","arguments":[]}}', 200, -32602),
    ],
)
def test_requests_that_cannot_be_answered(body: bytes, status: int, code: int) -> None:
    found = mcp_serving.read_request(body, ())
    assert (found.status, found.error.code) == (status, code)


@pytest.mark.parametrize("version", [*mcp_serving.HANDSHAKE_VERSIONS, *mcp_serving.MODERN_VERSIONS])
@pytest.mark.parametrize("method", ["ping", "tools/list", "tools/call"])
def test_every_revision_has_every_method_but_the_one_that_begins_it(version: str, method: str) -> None:
    modern = version in mcp_serving.MODERN_VERSIONS
    headers = {"MCP_Protocol_Version": version, "Mcp_Method": method} | ({"Mcp_Name": "t"} if "call" in method else {})
    meta = {"_meta": {**META, mcp_serving.META_VERSION: version}} if modern else {}
    found = read(asked(method, name="t", **meta), **headers)
    if isinstance(found, mcp_serving.Immediate):
        assert (method, found.error) == ("ping", None)
        assert (found.result == {}) is not modern
    else:
        assert found.modern is modern


def test_what_has_no_answer() -> None:
    for message in (
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 1, "result": {}},
        {"jsonrpc": "2.0", "id": 1, "error": {"code": 1, "message": ""}},
    ):
        assert read(message) is None


def test_every_handshake_gets_a_revision_that_is_spoken() -> None:
    for wanted in (*mcp_serving.HANDSHAKE_VERSIONS, "1999-01-01", "2026-07-28", ""):
        found = read(asked("initialize", protocolVersion=wanted))
        given = found.result["protocolVersion"]
        assert given == (wanted if wanted in mcp_serving.HANDSHAKE_VERSIONS else mcp_serving.HANDSHAKE_VERSIONS[-1])


@given(st.binary(max_size=120), st.lists(st.tuples(st.binary(max_size=8), st.binary(max_size=8)), max_size=4))
def test_garbage_is_refused_or_accepted(body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    found = mcp_serving.read_request(body, headers)
    assert found is None or isinstance(found, mcp_serving.Immediate)
    if isinstance(found, mcp_serving.Immediate):
        assert found.error is not None
        assert 400 <= found.status < 500


VALUES = json_values(
    ["name", "arguments", "_meta", "progressToken", mcp_serving.META_VERSION, mcp_serving.META_CAPABILITIES],
    text=st.text(max_size=5) | st.sampled_from(["tools/call", "2026-07-28"]),
)


@given(
    st.sampled_from(["initialize", "ping", "tools/list", "tools/call", "server/discover", "x"]),
    VALUES,
    st.sampled_from([None, "2025-06-18", "2026-07-28", "x"]),
)
def test_any_params_have_one_answer(method: str, params: object, version: str | None) -> None:
    headers = {"MCP_Protocol_Version": version} if version is not None else {}
    found = read({"jsonrpc": "2.0", "id": "i", "method": method, "params": params}, **headers)
    match found:
        case mcp_serving.Immediate():
            assert found.id == "i"
            assert (found.result is None) != (found.error is None)
        case mcp_serving.ToolsCall():
            assert method == "tools/call"
            assert isinstance(json.loads(found.arguments), dict)
            assert not found.modern, "without its headers no stateless request is let through"
        case mcp_serving.ToolsListing():
            assert method == "tools/list"
            assert not found.modern
        case _:
            raise AssertionError(found)


@given(st.text(min_size=1, max_size=40))
def test_a_name_in_a_header_is_the_name_in_the_body(name: str) -> None:
    header = mcp_serving.encoded_header(name)
    assert header.isascii()
    assert b"\n" not in header
    headers = [
        (b"MCP-Protocol-Version", mcp_serving.MODERN_VERSIONS[0].encode()),
        (b"mcp-method", b"tools/call"),
        (b"MCP-NAME", header),
    ]
    found = mcp_serving.read_request(json.dumps(asked("tools/call", name=name, _meta=META)).encode(), headers)
    assert found.name == name
