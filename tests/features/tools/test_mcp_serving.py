"""What a request to the MCP server is: every body and every header has an answer, and none is taken for another."""

from __future__ import annotations

import json

import pytest
from drawn_json import json_values
from hypothesis import given
from hypothesis import strategies as st

from appliance.features.tools.core.mcp_serving import (
    HANDSHAKE_VERSIONS,
    META_CAPABILITIES,
    META_VERSION,
    MODERN_VERSIONS,
    Immediate,
    ToolsCall,
    ToolsListing,
    encoded_header,
    read_request,
)

META = {META_VERSION: MODERN_VERSIONS[0], META_CAPABILITIES: {}}


def read(message: object, **headers: str):
    fields = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return read_request(json.dumps(message).encode(), fields)


def asked(method: str, **params: object) -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


def test_a_call_in_both_ways_of_speaking() -> None:
    old = read(asked("tools/call", name="t", arguments={"a": 1}))
    assert old == ToolsCall(id=1, name="t", arguments=b'{"a": 1}', modern=False)
    headers = {"MCP_Protocol_Version": MODERN_VERSIONS[0], "Mcp_Method": "tools/call", "Mcp_Name": "t"}
    new = read(asked("tools/call", name="t", _meta={**META, "progressToken": "p"}), **headers)
    assert new == ToolsCall(id=1, name="t", arguments=b"{}", modern=True, token="p")
    assert isinstance(read(asked("tools/list")), ToolsListing)


CALL = {"MCP_Protocol_Version": MODERN_VERSIONS[0], "Mcp_Method": "tools/call", "Mcp_Name": "t"}


@pytest.mark.parametrize(
    ("headers", "meta", "code"),
    [
        ({**CALL, "Mcp_Name": "other"}, META, -32020),
        ({**CALL, "Mcp_Method": "tools/list"}, META, -32020),
        ({**CALL, "MCP_Protocol_Version": "2025-11-25"}, META, -32020),
        ({}, META, -32020),
        ({**CALL, "mcp_name": "t"}, META, -32020),
        (CALL, {}, -32602),
        (CALL, {**META, META_VERSION: 1}, -32602),
        ({**CALL, "MCP_Protocol_Version": "2031-01-01"}, {**META, META_VERSION: "2031-01-01"}, -32022),
        ({"MCP_Protocol_Version": "1999-01-01"}, {}, -32022),
    ],
)
def test_headers_that_say_something_else(headers: dict[str, str], meta: object, code: int) -> None:
    found = read(asked("tools/call", name="t", _meta=meta), **headers)
    assert (found.status, found.error.code) == (400, code)
    assert code != -32022 or MODERN_VERSIONS[0].encode() in bytes(found.error.data or b"")


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
    found = read_request(body, ())
    assert (found.status, found.error.code) == (status, code)


@pytest.mark.parametrize("version", [*HANDSHAKE_VERSIONS, *MODERN_VERSIONS])
@pytest.mark.parametrize("method", ["ping", "tools/list", "tools/call"])
def test_every_revision_has_every_method_but_the_one_that_begins_it(version: str, method: str) -> None:
    modern = version in MODERN_VERSIONS
    headers = {"MCP_Protocol_Version": version, "Mcp_Method": method} | ({"Mcp_Name": "t"} if "call" in method else {})
    meta = {"_meta": {**META, META_VERSION: version}} if modern else {}
    found = read(asked(method, name="t", **meta), **headers)
    if isinstance(found, Immediate):
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
    for wanted in (*HANDSHAKE_VERSIONS, "1999-01-01", "2026-07-28", ""):
        found = read(asked("initialize", protocolVersion=wanted))
        given = found.result["protocolVersion"]
        assert given == (wanted if wanted in HANDSHAKE_VERSIONS else HANDSHAKE_VERSIONS[-1])


@given(st.binary(max_size=120), st.lists(st.tuples(st.binary(max_size=8), st.binary(max_size=8)), max_size=4))
def test_garbage_is_refused_or_accepted(body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    found = read_request(body, headers)
    assert found is None or isinstance(found, Immediate)
    if isinstance(found, Immediate):
        assert found.error is not None
        assert 400 <= found.status < 500


VALUES = json_values(
    ["name", "arguments", "_meta", "progressToken", META_VERSION, META_CAPABILITIES],
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
        case Immediate():
            assert found.id == "i"
            assert (found.result is None) != (found.error is None)
        case ToolsCall():
            assert method == "tools/call"
            assert isinstance(json.loads(found.arguments), dict)
            assert not found.modern, "without its headers no stateless request is let through"
        case ToolsListing():
            assert method == "tools/list"
            assert not found.modern
        case _:
            raise AssertionError(found)


@given(st.text(min_size=1, max_size=40))
def test_a_name_in_a_header_is_the_name_in_the_body(name: str) -> None:
    header = encoded_header(name)
    assert header.isascii()
    assert b"\n" not in header
    headers = [
        (b"MCP-Protocol-Version", MODERN_VERSIONS[0].encode()),
        (b"mcp-method", b"tools/call"),
        (b"MCP-NAME", header),
    ]
    found = read_request(json.dumps(asked("tools/call", name=name, _meta=META)).encode(), headers)
    assert found.name == name
