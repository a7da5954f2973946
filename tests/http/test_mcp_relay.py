"""``llama-appliance mcp``: a client on standard input and output, a running server behind it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
import trio
from http_harness import OpenServer
from waiting import until

ON = {"mcp_server": True, "api_keys": ("k",)}
META = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}


class Client:
    """A desktop client: it writes lines and reads lines."""

    def __init__(self, process: trio.Process) -> None:
        self.process = process
        self._rest = b""

    async def say(self, message: object) -> None:
        data = message if isinstance(message, bytes) else json.dumps(message).encode()
        await self.process.stdin.send_all(data + b"\n")

    async def hear(self) -> dict:
        while b"\n" not in self._rest:
            data = await self.process.stdout.receive_some()
            assert data, "it ended"
            self._rest += bytes(data)
        line, _, self._rest = self._rest.partition(b"\n")
        return json.loads(line)

    async def ask(self, method: str, number: int = 1, **params: object) -> dict:
        await self.say({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        answer = await self.hear()
        assert answer["id"] == number
        return answer


@asynccontextmanager
async def relay(port: int, key: str = "k") -> AsyncGenerator[Client]:
    env = {**os.environ, "LLAMA_APPLIANCE_API_KEY": key}
    argv = [sys.executable, "-m", "appliance", "mcp", "--url", f"http://127.0.0.1:{port}"]
    process = await trio.lowlevel.open_process(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env
    )
    try:
        with trio.fail_after(60):
            yield Client(process)
    finally:
        process.kill()
        with trio.move_on_after(10, shield=True):
            await process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                await stream.aclose()


async def test_clients_of_either_revision(open_server: OpenServer) -> None:
    async with open_server(**ON) as server, relay(server.port) as client:
        begun = await client.ask("initialize", 0, protocolVersion="2024-11-05", capabilities={}, clientInfo={})
        assert begun["result"]["protocolVersion"] == "2024-11-05"
        await client.say({"jsonrpc": "2.0", "method": "notifications/initialized"})
        listed = await client.ask("tools/list", 1)
        assert "chat" in [tool["name"] for tool in listed["result"]["tools"]]
        asked = await client.ask("tools/call", 2, name="chat", arguments={"model": "alpha", "prompt": "hi"})
        assert asked["result"]["structuredContent"]["text"]
        assert (await client.ask("resources/list", 3))["error"]["code"] == -32601
        found = await client.ask("server/discover", 4, _meta=META)
        assert "2026-07-28" in found["result"]["supportedVersions"]
        called = await client.ask("tools/call", 5, _meta=META, name="list_models", arguments={})
        assert called["result"]["resultType"] == "complete"
        unknown = await client.ask("tools/call", 6, _meta=META, name="nö\n", arguments={})
        assert unknown["error"]["code"] == -32602, "a name that is no header is written in base64"


async def test_progress_comes_line_by_line_and_what_is_cancelled_stops_the_model(open_server: OpenServer) -> None:
    """Answers come in any order."""
    async with open_server(**ON) as server, relay(server.port) as client:
        slow = {"model": "alpha", "prompt": "hi", "params": {"fake": {"tokens": 12, "token_delay": 0.2}}}
        params = {"name": "chat", "arguments": slow, "_meta": {"progressToken": 9}}
        await client.say({"jsonrpc": "2.0", "id": "slow", "method": "tools/call", "params": params})
        assert (await client.hear())["method"] == "notifications/progress"
        await client.say({"jsonrpc": "2.0", "id": "fast", "method": "ping"})
        heard: list[object] = []
        while "slow" not in heard:
            heard.append((await client.hear()).get("id"))
        assert heard.index("fast") < heard.index("slow")
        endless = {"model": "alpha", "prompt": "hi", "params": {"fake": {"tokens": 5000, "token_delay": 0.1}}}
        params = {"name": "chat", "arguments": endless}
        await client.say({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params})
        await until(lambda: server.slots_busy("alpha"))
        await client.say({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 2}})
        await server.wait_idle("alpha")
        assert "result" in await client.ask("ping", 3)


async def test_what_is_wrong_is_told_in_the_answer(open_server: OpenServer) -> None:
    async with open_server(api_keys=("k",)) as server:
        async with relay(server.port) as client:
            assert "--mcp-server" in (await client.ask("initialize"))["error"]["message"]
        async with relay(server.port, key="wrong") as client:
            assert "LLAMA_APPLIANCE_API_KEY" in (await client.ask("initialize"))["error"]["message"]
    async with relay(server.port) as client:
        assert "serve --mcp-server" in (await client.ask("initialize"))["error"]["message"]


@pytest.mark.skipif(os.name == "nt", reason="Ctrl-C cannot be sent to one process there")
async def test_ctrl_c_ends_it_and_lines_of_no_use_do_not(open_server: OpenServer) -> None:
    async with open_server(**ON) as server, relay(server.port) as client:
        for line in (b"not json", b"", b'"text"', b"{}", b"[]", b"\xff", b"[" * 100_000, b"x" * (9 << 20)):
            await client.say(line)
        await client.say({"jsonrpc": "2.0", "id": 5, "method": "ping"})
        heard: dict = {}
        while heard.get("id") != 5:
            heard = await client.hear()
        assert heard["result"] == {}
        client.process.send_signal(signal.SIGINT)
        assert await client.process.wait() == 130


async def test_it_ends_when_nobody_reads_its_answers(open_server: OpenServer) -> None:
    async with open_server(**ON) as server, relay(server.port) as client:
        await client.ask("tools/list", _meta=META)
        await client.process.stdout.aclose()
        await client.say({"jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {"_meta": META}})
        assert await client.process.wait() == 1


async def test_the_end_of_the_input_ends_it_after_the_last_answer(open_server: OpenServer) -> None:
    async with open_server(**ON) as server, relay(server.port) as client:
        await client.say({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "list_models"}})
        await client.process.stdin.aclose()
        assert (await client.hear())["id"] == 1
        assert await client.process.wait() == 0


def test_the_configuration_that_a_desktop_client_needs() -> None:
    argv = [sys.executable, "-m", "appliance", "mcp", "--print-config", "--url", "http://box:9/", "--api-key", "secret"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    entry = json.loads(done.stdout)["mcpServers"]["llama-appliance"]
    assert entry["args"][-3:] == ["mcp", "--url", "http://box:9"]
    assert entry["env"] == {"LLAMA_APPLIANCE_API_KEY": "secret"}
    version = subprocess.run([entry["command"], *entry["args"][:-3], "--version"], capture_output=True, timeout=60)
    assert b"llama-appliance" in version.stdout
