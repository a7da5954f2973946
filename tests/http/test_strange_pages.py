"""What a web page of another site may try without being asked by anybody: on every route that does something."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path

from http_harness import CHAT, Appliance, OpenServer, chat

from appliance.core.tools.specs import chosen_tools
from appliance.tools.box import open_own_tools

TEXT = ("Content-Type", "text/plain;charset=UTF-8")
FORM = ("Content-Type", "application/x-www-form-urlencoded")


@asynccontextmanager
async def serving(open_server: OpenServer, folder: Path, **more: object) -> AsyncGenerator[Appliance]:
    settings = chosen_tools(["all"], runtime="", root="")
    async with (
        open_own_tools(settings) as tools,
        open_server(
            tools=tools, mcp_server=True, mcp_server_open=True, mcp_server_tools=("*",), cors_proxy=True, **more
        ) as server,
    ):
        yield server


def attempts(target: Path) -> list[tuple[str, str, object]]:
    """Each would leave the file ``target``, or something else behind."""
    write = {"tool": "write_file", "params": {"path": str(target), "content": "x"}}
    call = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "write_file", "arguments": write["params"]},
    }
    return [
        ("GET", "/tools", None),
        ("POST", "/tools", write),
        ("POST", "/mcp", call),
        ("GET", "/api/runs", None),
        ("POST", "/api/runs", {"model": "alpha", "user_prompt": "hi", "tools": ["write_file"]}),
        ("DELETE", "/api/runs/run_0", None),
        ("GET", "/api/runs/run_0/events", None),
        ("POST", "/api/runs/run_0/tool_results", {"results": []}),
        ("GET", "/api/workers", None),
        ("POST", "/api/workers/alpha/reset", {}),
        ("GET", "/api/agents", None),
        ("POST", "/api/agents/reload", {}),
        ("GET", "/cors-proxy?url=http://localhost:1/", None),
        ("POST", CHAT, {**chat(), "appliance": {"tools": ["write_file"]}}),
        ("POST", CHAT, {"model": "alpha", "messages": [{"role": "user", "content": "/rag hi"}]}),
        ("POST", "/models", {"model": "org/repo"}),
        ("POST", "/models/load", {"model": "alpha"}),
        ("GET", "/unload", None),
        ("GET", "/upstream/alpha/props", None),
    ]


STRANGERS = [
    [("Origin", "http://evil.example")],
    [("Origin", "null")],
    [("Origin", "http://127.0.0.1.evil.example")],
    [("Host", "evil.example")],
    [("Host", "evil.example"), ("Origin", "http://evil.example")],
    [("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Mode", "no-cors")],
]


async def test_nothing_is_done_for_pages_of_other_sites(open_server: OpenServer, tmp_path: Path) -> None:
    target = tmp_path / "written"
    async with serving(open_server, tmp_path) as server:
        for stranger, form in product(STRANGERS, (TEXT, FORM)):
            for method, path, body in attempts(target):
                answer = await server.ask(method, path, body, [*stranger, *([form] if body is not None else [])])
                assert answer.status == 403, (method, path, answer.body)
                assert answer.header("Access-Control-Allow-Origin") is None
        assert (await server.ask("GET", "/api/runs")).json == {"data": []}
        assert server.state("alpha") == "unknown"
        assert not target.exists()
        for form in (TEXT, FORM):
            allowed = await server.ask("POST", "/tools", attempts(target)[1][2], [form])
            assert allowed.status == 200, allowed.body
    assert target.exists()  # what was tried would have worked


async def test_a_key_is_wanted_for_all_of_it_however_its_path_is_spelled(open_server: OpenServer, tmp_path: Path):
    target = tmp_path / "written"
    async with serving(open_server, tmp_path, api_keys=("secret",)) as server:
        for method, path, body in attempts(target):
            for headers in ([], [("Authorization", "Bearer wrong")], [("X-Api-Key", "")]):
                answer = await server.ask(method, path, body, headers)
                assert answer.status == 401, (method, path, answer.body)
                assert json.loads(answer.body)["error"]["reason"] == "invalid_api_key"
        body = attempts(target)[1][2]
        for path in ("//tools", "/ui/../tools", "/ui/%2e%2e/tools", "/%74ools", "/tools/", "/tools?x", "/ui//tools"):
            answer = await server.ask("POST", path, body)
            assert answer.status in (401, 404), (path, answer.body)
    assert not target.exists()
