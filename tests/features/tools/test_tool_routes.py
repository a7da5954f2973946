"""``/tools`` over real sockets: shapes, statuses, streams, and clients that leave."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from http_harness import Answer, Appliance, OpenServer
from leftovers import wait_no_process
from waiting import until

from appliance.core.tools.choice import NAMES, chosen_tools
from appliance.features.tools.box import open_own_tools

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX shells")

SLEEPER = "1000.0625"


@asynccontextmanager
async def serving(
    open_server: OpenServer, words: Sequence[str] = ("all",), **more: object
) -> AsyncGenerator[Appliance]:
    settings = chosen_tools(words, runtime="", root="")
    async with open_own_tools(settings) as tools, open_server(tools=tools, **more) as server:
        yield server


@pytest.fixture
async def server(open_server: OpenServer) -> AsyncGenerator[Appliance]:
    async with serving(open_server) as running:
        yield running


async def use(server: Appliance, tool: str, *headers: tuple[str, str | bytes], **params: object) -> Answer:
    return await server.ask("POST", "/tools", {"tool": tool, "params": params}, headers, patience=60)


async def test_the_list(server: Appliance) -> None:
    answer = await server.ask("GET", "/tools")
    assert (answer.status, answer.header("content-type")) == (200, "application/json; charset=utf-8")
    assert [entry["tool"] for entry in answer.json] == list(NAMES)
    first = answer.json[0]
    assert list(first) == ["display_name", "tool", "type", "permissions", "uses_cwd", "definition"]
    assert (first["display_name"], first["type"], first["permissions"]) == ("Read file", "builtin", {"write": False})
    assert first["uses_cwd"] is True
    function = first["definition"]["function"]
    assert first["definition"]["type"] == "function"
    assert list(function) == ["name", "description", "parameters"]
    assert function["parameters"]["required"] == ["path"]
    writes = {entry["tool"] for entry in answer.json if entry["permissions"]["write"]}
    assert writes == {"exec_shell_command", "write_file", "edit_file"}


async def test_it_is_off_unless_switched_on(open_server: OpenServer) -> None:
    for single in (None, "alpha"):
        async with open_server(single=single) as server:
            for method in ("GET", "POST"):
                answer = await server.ask(method, "/tools", {} if method == "POST" else None)
                assert (answer.status, answer.error["type"]) == (403, "feature_disabled")
                assert list(answer.error) == ["message", "type"]
                assert answer.error["message"].startswith("this feature is disabled")


async def test_a_tool_is_used(server: Appliance, tmp_path: Path) -> None:
    tmp_path /= "übung 文"  # a working directory may have any letters
    tmp_path.mkdir()
    large = await use(server, "write_file", path=str(tmp_path / "a"), content="x" * (5 << 20))
    assert large.json["bytes"] == (tmp_path / "a").stat().st_size == 5 << 20
    written = await use(server, "write_file", path=str(tmp_path / "a"), content="text")
    assert written.json == {"result": "file written successfully", "path": str(tmp_path / "a"), "bytes": 4}
    here = ("x-tool-cwd", str(tmp_path).encode())
    read = await use(server, "read_file", here, path="a", cwd=str(tmp_path / "no"), runtime="x:y")
    assert (read.status, read.json) == (200, {"plain_text_response": "text\n"})
    raw = await use(server, "read_file", ("X-Resp-Type", "base64"), path=str(tmp_path / "a"), resp_type="x")
    assert raw.json == {"base64": "dGV4dA==", "size_bytes": 4}
    missing = await use(server, "read_file", path=str(tmp_path / "no"))
    assert (missing.status, missing.json) == (200, {"error": f"cannot stat file: {tmp_path / 'no'}"})


UNUSABLE = [
    (b"", 400, "invalid_request_error", "JSON"),
    (b"[]", 400, "invalid_request_error", "object"),
    (b'{"params":{}}', 400, "invalid_request_error", "tool"),
    (b'{"tool":"read_file"}', 400, "invalid_request_error", "path"),
    (b'{"tool":"read_file","params":[]}', 400, "invalid_request_error", "params"),
    (b'{"tool":"nope","params":{}}', 404, "not_found_error", "nope"),
    (b'{"tool":"read_file","params":{"path":"a"},"stream":true}', 404, "not_found_error", "stream"),
    (b'{"tool":"read_file","params":{"path":"\\ud800"}}', 400, "invalid_request_error", ""),
    (b'{"tool":"read_file","params":' + b'{"a":' * 200_000 + b"1" + b"}" * 200_000 + b"}", 400, "", "deep"),
    (b'{"tool":"x","params":' + b"[" * 500_000, 400, "", ""),
]


async def test_what_cannot_be_used_has_a_status(server: Appliance) -> None:
    for body, status, kind, words in UNUSABLE:
        answer = await server.ask("POST", "/tools", body)
        assert answer.status == status, body[:60]
        told = answer.error if status == 404 else answer.json  # as llama-server: its 404 has a form of its own
        assert (list(told), told["code"]) == (["code", "message", "type"], status)
        assert told["type"].startswith(kind)
        assert words in told["message"]
        assert answer.header("connection") == "close"


async def test_a_bad_runtime_is_500(server: Appliance) -> None:
    for runtime, words in (
        ("ssh:-oProxyCommand=touch /tmp/pwned", "invalid ssh target"),
        ("docker:busybox", "tool runtime must name a running container"),
    ):
        for stream in (False, True):
            body = {"tool": "exec_shell_command", "params": {"command": "echo hi"}, "stream": stream}
            answer = await server.ask("POST", "/tools", body, [("x-tool-runtime", runtime)])
            assert (answer.status, answer.json["code"], answer.json["type"]) == (500, 500, "server_error")
            assert words in answer.json["message"]


async def test_a_command_streams(server: Appliance, tmp_path: Path) -> None:
    body = {"tool": "exec_shell_command", "params": {"command": "echo hello; exit 3"}, "stream": True}
    answer = await server.ask("POST", "/tools", body, patience=60)
    lost = await server.ask("POST", "/tools", body, [("x-tool-cwd", str(tmp_path / "no"))], patience=60)
    assert (answer.status, answer.header("content-type")) == (200, "text/event-stream")
    events = [json.loads(event.removeprefix("data: ")) for event in answer.events]
    assert events[-1] == {"done": True}
    assert events[-2] == {"chunk": "\n[exit code: 3]"}
    assert "".join(event["chunk"] for event in events[:-1]) == "hello\n\n[exit code: 3]"
    (end,) = (json.loads(event.removeprefix("data: ")) for event in lost.events)
    assert end["done"] is True
    assert "working directory" in end["error"]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_takes_the_command_with_it(server: Appliance, tmp_path: Path, stream: bool) -> None:
    command = f"echo begun; touch {tmp_path}/begun; sleep {SLEEPER} & sleep {SLEEPER}"
    body = {"tool": "exec_shell_command", "params": {"command": command, "timeout": 60}, "stream": stream}
    async with server.connect() as client:
        await client.send("POST", "/tools", body)
        if stream:
            assert b"begun" in await client.data()
        await until((tmp_path / "begun").exists)
    await wait_no_process(SLEEPER)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_command_under_way_ends_at_once_with_the_server(
    open_server: OpenServer, tmp_path: Path, stream: bool
) -> None:
    command = f"echo begun; touch {tmp_path}/begun; sleep {SLEEPER}"
    body = {"tool": "exec_shell_command", "params": {"command": command, "timeout": 60}, "stream": stream}
    async with serving(open_server, grace=60.0) as server, server.connect() as client:
        await client.send("POST", "/tools", body)
        await until((tmp_path / "begun").exists)
        await server.end()
        answer = await client.answer()
        await wait_no_process(SLEEPER)
    if stream:
        assert answer.status == 200
        last = json.loads(answer.events[-1].removeprefix("data: "))
        assert last["done"] is True
        assert "shutting down" in last["error"]
    else:
        assert answer.status == 503
        assert "shutting down" in answer.json["message"]


async def test_not_everything_at_once(server: Appliance, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("appliance.features.tools.tool_routes.MAX_AT_ONCE", 1)
    command = f"touch {tmp_path}/begun; sleep {SLEEPER}"
    body = {"tool": "exec_shell_command", "params": {"command": command, "timeout": 60}}
    async with server.connect() as client:
        await client.send("POST", "/tools", body)
        await until((tmp_path / "begun").exists)
        assert (await use(server, "get_info")).status == 503
    await wait_no_process(SLEEPER)
    assert (await use(server, "get_info")).status == 200
