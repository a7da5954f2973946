"""What the configuration of MCP servers may say, and what is said about mistakes in it."""

from __future__ import annotations

import json

import pytest
from drawn_json import json_values
from hypothesis import given
from hypothesis import strategies as st

from appliance.core.config.mcp_servers import HttpServer, McpServers, StdioServer, parse_mcp_servers, read_mcp_servers
from appliance.errors import UsageError


def parse(**entries: object) -> McpServers:
    return parse_mcp_servers(json.dumps({"mcpServers": entries}), "mcp.json")


def test_a_process() -> None:
    found = parse(files={"command": "npx", "args": ["-y", 7], "env": {"A": "b", "N": 1, "T": True}, "cwd": "/tmp"})
    assert found.servers == (
        StdioServer(name="files", command="npx", args=("-y", "7"), env={"A": "b", "N": "1", "T": "true"}, cwd="/tmp"),
    )
    assert found.servers[0].timeout == 30
    assert not found.warnings


def test_an_address() -> None:
    given = {
        "type": "http",
        "url": "https://x.example/mcp",
        "headers": {"Authorization": "Bearer k"},
        "timeout_ms": 500,
    }
    assert parse(web=given).servers == (
        HttpServer(name="web", url="https://x.example/mcp", headers=(("Authorization", "Bearer k"),), timeout=0.5),
    )
    assert parse(web={"url": "http://[::1]:8/"}).servers[0] == HttpServer(name="web", url="http://[::1]:8/")


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ({}, "no command"),
        ({"command": ""}, "no command"),
        ({"type": "http"}, "no url"),
        ({"type": "sse", "url": "http://x/"}, "type 'sse'"),
    ],
)
def test_what_cannot_be_started_is_skipped_with_a_warning(entry: object, why: str) -> None:
    found = parse(bad=entry, good={"command": "x"})
    assert [server.name for server in found.servers] == ["good"]
    assert len(found.warnings) == 1
    assert why in found.warnings[0]
    assert "mcpServers.bad" in found.warnings[0]


def test_switched_off_is_not_there() -> None:
    found = parse(off={"command": "x", "disabled": True}, on={"command": "x", "disabled": False})
    assert [server.name for server in found.servers] == ["on"]
    assert not found.warnings


def test_of_two_with_one_name_the_first_counts() -> None:
    text = '{"mcpServers": {"a": {"command": "one"}, "b": {"command": "b"}, "a": {"command": "two"}}}'
    found = parse_mcp_servers(text, "mcp.json")
    assert [(s.name, s.command) for s in found.servers if isinstance(s, StdioServer)] == [("a", "one"), ("b", "b")]
    assert any("'a' appears twice" in warning for warning in found.warnings)
    joined = found.joined(parse(a={"command": "three"}, c={"command": "c"}))
    assert [s.name for s in joined.servers] == ["a", "b", "c"]
    assert sum("'a' appears twice" in warning for warning in joined.warnings) == 2


def test_unknown_keys_are_told() -> None:
    assert "'comand'" in parse(a={"command": "x", "comand": "y"}).warnings[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("not valid json", "mcp.json is not valid JSON"),
        ("[" * 200_000, "nested too deeply"),
        ("[]", 'has no "mcpServers"'),
        ('{"servers": {}}', 'has no "mcpServers"'),
        ('{"mcpServers": []}', "not a mapping"),
        ('{"mcpServers": {"a": "npx"}}', "mcpServers.a is not a mapping"),
        ('{"mcpServers": {"a": {"command": 1}}}', "a.command is not a text"),
        ('{"mcpServers": {"a": {"command": "x", "args": "y"}}}', "a.args is not a list"),
        ('{"mcpServers": {"a": {"command": "x", "args": [{}]}}}', "a.args[0] is not a text"),
        ('{"mcpServers": {"a": {"command": "x", "env": {"A": []}}}}', "a.env.A is not a text"),
        ('{"mcpServers": {"a": {"command": "x", "env": {"A=B": "1"}}}}', "'A=B' cannot be the name"),
        ('{"mcpServers": {"a": {"command": "x", "timeout_ms": 0}}}', "a.timeout_ms is not"),
        ('{"mcpServers": {"a": {"command": "x", "timeout_ms": "9"}}}', "a.timeout_ms is not"),
        ('{"mcpServers": {"a": {"url": "ftp://x"}}}', "a.url is not an http"),
        ('{"mcpServers": {"a": {"url": "http://[x"}}}', "a.url is not an http"),
        ('{"mcpServers": {"a": {"url": "http://x", "headers": {"A b": "c"}}}}', "cannot be an HTTP header"),
        ('{"mcpServers": {"a": {"url": "http://x", "headers": {"Host": "y"}}}}', "'Host' is set by the program"),
        ('{"mcpServers": {"a": {"url": "http://x", "headers": {"A": "c\\r\\nB: d"}}}}', "cannot be an HTTP header"),
    ],
)
def test_mistakes_name_their_place(text: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_mcp_servers(text, "mcp.json")
    assert words in str(caught.value)
    assert "mcp.json" in str(caught.value)


def test_the_section_as_yaml_has_it() -> None:
    assert read_mcp_servers(None, "config.yaml") == McpServers()
    assert read_mcp_servers({"a": {"command": "x"}}, "config.yaml").servers[0].name == "a"
    with pytest.raises(UsageError, match="not a mapping"):
        read_mcp_servers({1: {"command": "x"}}, "config.yaml")


@given(json_values(["command", "args", "env", "url", "type", "headers", "cwd", ""]))
def test_whatever_it_says_it_is_read_or_refused(entry: object) -> None:
    try:
        found = parse_mcp_servers(json.dumps({"mcpServers": {"a": entry}}), "mcp.json")
    except UsageError:
        return
    assert len(found.servers) + len(found.warnings) >= 1


@given(st.text(max_size=60))
def test_whatever_the_text_is_it_is_refused_in_words(text: str) -> None:
    with pytest.raises(UsageError, match=r"mcp\.json"):
        parse_mcp_servers(text, "mcp.json")
