"""MCP servers at an address: JSON and streams, sessions, and servers that do not keep to the rules."""

from __future__ import annotations

import json
from pathlib import Path

import psutil
import pytest
from mcp_harness import http_fake, opened, use
from waiting import until

from appliance.errors import UsageError
from appliance.features.tools import mcp_client


async def test_json_answers(tmp_path: Path) -> None:
    async with http_fake(tmp_path / "log") as fake, opened(web={"type": "http", "url": fake.url}) as tools:
        assert [spec.name for spec in tools.specs()] == ["web_echo", "web_sleep", "web_boom"]
        assert json.loads((await use(tools, "web_echo", message="ä")).body) == {"plain_text_response": "echo: ä"}
        assert (await use(tools, "web_boom")).error == "boom went the tool"
    first, *others = fake.requests
    assert first["message"]["params"]["protocolVersion"] == "2025-11-25"
    for each in fake.requests:
        assert each["headers"]["accept"] == "application/json, text/event-stream"
        assert each["headers"]["content-type"] == "application/json"
    assert [e["headers"].get("mcp-protocol-version") for e in others[:2]] == ["2025-06-18"] * 2  # type: ignore[union-attr]


@pytest.mark.slow
@pytest.mark.parametrize("flags", [("--sse",), ("--sse", "--ask"), ("--sse", "--session", "--flood", "20")])
async def test_streams_of_events(tmp_path: Path, flags: tuple[str, ...]) -> None:
    process = psutil.Process()
    async with http_fake(tmp_path / "log", *flags) as fake, opened(web={"url": fake.url}) as tools:
        before = process.memory_info().rss
        for at in range(3):
            assert (await use(tools, "web_echo", message=at)).text == f"echo: {at}"
        assert process.memory_info().rss - before < 48 << 20
    answers = [e["message"] for e in fake.requests if "method" not in (e["message"] or {})]  # type: ignore[operator]
    if "--ask" in flags:
        assert answers[0] == {"jsonrpc": "2.0", "id": "p", "result": {}}
        assert answers[1]["error"]["code"] == -32601  # type: ignore[index]


async def test_a_session_is_kept_and_ended(tmp_path: Path) -> None:
    async with http_fake(tmp_path / "log", "--session") as fake:
        async with opened(web={"url": fake.url}) as tools:
            await use(tools, "web_echo", message="x")
            await use(tools, "web_echo", message="x")
        methods = fake.methods
        begun = ["initialize", "notifications/initialized"]
        assert methods == [*begun, "tools/list", "DELETE", *begun, "tools/call", "tools/call", "DELETE"]


async def test_a_forgotten_session_is_begun_again(tmp_path: Path) -> None:
    async with http_fake(tmp_path / "log", "--session", "--forget-once") as fake:
        async with opened(web={"url": fake.url}) as tools:
            assert (await use(tools, "web_echo", message="x")).text == "echo: x"
        assert fake.methods.count("initialize") == 3


async def test_headers_are_sent_and_their_lack_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with http_fake(tmp_path / "log", "--need", "Authorization:Bearer k") as fake:
        given = {"url": fake.url, "headers": {"Authorization": "Bearer k"}}
        async with opened(web=given, other={"url": fake.url}, wrong={"url": fake.url + "x"}) as tools:
            assert {spec.server for spec in tools.specs()} == {"web"}
    assert "HTTP status 401: who are you?" in caplog.text
    assert "Bearer k" not in caplog.text


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--status", "500"), "HTTP status 500: out of order"),
        (("--text", "nonsense"), "does not belong to the question"),
        (("--text", '{"jsonrpc":"2.0","id":77,"result":{}}'), "does not belong to the question"),
        (("--sse", "--cut"), "ended without the answer"),
        (("--break-off",), "closed the connection without an answer"),
        (("--long", "9"), "longer than"),
        (("--sse", "--long", "9"), "longer than 8 MiB"),
    ],
)
async def test_servers_that_break_the_rules(tmp_path: Path, flags: tuple[str, ...], words: str) -> None:
    async with http_fake(tmp_path / "log", *flags) as fake, opened(web={"url": fake.url}) as tools:
        found = await use(tools, "web_echo", message="x")
        assert words in found.error
        again = await use(tools, "web_echo", message="x")
        assert again.error == found.error, "it is tried again, from the beginning"


async def test_time_is_up_and_the_server_is_told(tmp_path: Path) -> None:
    async with http_fake(tmp_path / "log") as fake, opened(web={"url": fake.url, "timeout_ms": 500}) as tools:
        assert (await use(tools, "web_sleep", seconds=20)).error == "request timed out"
        assert fake.methods[-1] == "notifications/cancelled"


async def test_a_server_that_goes_away_and_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_client, "COOLDOWN", 1.0)
    async with http_fake(tmp_path / "log") as fake:
        port = fake.port
        found = opened(web={"url": fake.url})
        tools = await found.__aenter__()
        await use(tools, "web_echo", message="x")
    try:
        assert (await use(tools, "web_echo", message="x")).error == "MCP server unavailable: web"
        async with http_fake(tmp_path / "log", port=port):
            await until(lambda: use(tools, "web_echo", message="x"), lambda used: used.error is None)
    finally:
        await found.__aexit__(None, None, None)


async def test_an_address_with_a_slash_and_a_query_is_asked_as_it_is(tmp_path: Path) -> None:
    for path, end in (("/a/", None), ("/a?key=1", None), ("/", -1)):
        async with http_fake(tmp_path / "log", path=path) as fake, opened(web={"url": fake.url[:end]}) as tools:
            assert len(tools.specs()) == 3


async def test_an_address_of_no_use_is_said_before_anything_starts() -> None:
    with pytest.raises(UsageError, match="user name or password"):
        async with opened(web={"url": "http://user:password@127.0.0.1:1/mcp"}):
            pass


async def test_a_revision_that_is_none_is_not_repeated(tmp_path: Path) -> None:
    strange = "1\r\nX-Evil: 1"
    async with http_fake(tmp_path / "log", "--version", strange) as fake, opened(web={"url": fake.url}) as tools:
        assert (await use(tools, "web_echo", message="x")).text == "echo: x"
    told = [e["headers"].get("mcp-protocol-version") for e in fake.requests]  # type: ignore[union-attr]
    assert set(told) == {None, "2025-11-25"}
