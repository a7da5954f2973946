"""The MCP server is off, and switched on only where not everybody could use it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from command_line import Command

from appliance.core.settings import HttpSettings
from appliance.settings import AppSettings


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith("LLAMA_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def parsed(command: Command, *argv: str) -> HttpSettings:
    outcome = command(*argv)
    assert isinstance(outcome.program, AppSettings), outcome.err
    return outcome.program.http


def test_it_is_off_by_default(command: Command) -> None:
    http = parsed(command, "serve")
    assert not http.mcp_server
    assert not http.mcp_server_open


def test_with_a_key(command: Command) -> None:
    http = parsed(command, "serve", "--mcp-server", "--api-key", "k", "--mcp-server-tools", "mcp:*")
    assert http.mcp_server
    assert http.mcp_server_tools == ("mcp:*",)
    assert not http.mcp_server_open
    anywhere = parsed(command, "serve", "--mcp-server", "--api-key", "k", "--listen", "0.0.0.0:0")
    assert anywhere.mcp_server


def test_without_a_key_on_this_machine_alone_if_that_is_wanted(command: Command) -> None:
    http = parsed(command, "serve", "--mcp-server", "--allow-unauthenticated")
    assert http.mcp_server_open
    assert parsed(command, "serve", "--mcp-server", "--allow-unauthenticated", "--listen", "unix:s").mcp_server


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--mcp-server",), "--mcp-server needs a key"),
        (("--mcp-server", "--listen", "0.0.0.0:0", "--allow-unauthenticated"), "works only on this machine"),
        (("--mcp-server-tools", "x", "--api-key", "k"), "needs --mcp-server"),
    ],
)
def test_what_is_refused(command: Command, argv: tuple[str, ...], words: str) -> None:
    outcome = command("serve", *argv)
    assert outcome.status == 2
    assert words in outcome.err
    assert outcome.program is None


def test_by_configuration(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("mcpServer:\n  enabled: true\n  tools: [read_file]\n")
    assert "--mcp-server needs a key" in command("serve", "--config", str(file)).err
    file.write_text("apiKeys: [k]\nmcpServer:\n  enabled: true\n  tools: [read_file]\n")
    http = parsed(command, "serve", "--config", str(file))
    assert http.mcp_server
    assert http.mcp_server_tools == ("read_file",)
