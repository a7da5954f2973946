"""Web pages, tools and the MCP server: what the options of ``serve`` and of llama-server make of them."""

from __future__ import annotations

import json
import shlex
from operator import attrgetter
from pathlib import Path

import pytest
from command_line import Command, settings_of

from appliance.catalog.catalog import Catalog
from appliance.core.llama.flags import FLAGS, Kind
from appliance.core.settings import ToolSettings
from appliance.core.tools.choice import NAMES

pytestmark = pytest.mark.usefixtures("plain_environment")

SERVERS = '{"mcpServers": {"one": {"command": "true"}, "two": {"command": "true"}}}'
GIVEN = f"--mcp-servers-json '{SERVERS}'"
BEYOND = ("--host 0.0.0.0", "--host ::", "--host 127.0.0.1,my.name")
PROXIED = ("--ui-mcp-proxy", "--ui-config", "{}")
DOORS = ("--tools all", "--agent", GIVEN, "--ui-mcp-proxy")


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, plain_environment: None) -> None:
    (tmp_path / "ui.json").write_text('{"theme": "light"}')
    (tmp_path / "page").mkdir()
    (tmp_path / "mcp.json").write_text(SERVERS)
    (tmp_path / "tools.yaml").write_text(
        "models: {}\ntools:\n  enable: [read_file]\n  root: /srv\nmcp_servers:\n  one:\n    command: true-one\n"
    )
    for name, key in (("mcp.yaml", "apiKeys: [k]\n"), ("open.yaml", "")):
        (tmp_path / name).write_text(f"{key}mcpServer:\n  enabled: true\n  tools: [read_file]\n")


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("serve --path page", "http.static", "page"),
        ("serve", "http.static", None),
        ("serve --cors-proxy --cors-proxy-allow 10.0.0.0/8", "http.cors_proxy_allow", ("10.0.0.0/8",)),
        ("llama-server --reuse-port", "http.reuse_port", True),
        ("llama-server --ui-config '{\"a\": [1, {}]}'", "http.ui_settings", b'{"a":[1, {}]}'),
        ("serve", "http.ui_settings", b"{}"),
        ("llama-server --webui-config {} --ui-config-file ui.json", "http.ui_settings", b'{"theme":"light"}'),
        ("llama-server -m x --ui-config-file ui.json --webui-config {}", "http.ui_settings", b"{}"),
        ("llama-server -m x --ui-mcp-proxy --ui-config {}", "fleet.engine_args", PROXIED),
        ("llama-server --sse-ping-interval -1", "http.ping_after", 0),
        ("llama-server --hf-token hf_x", "hub_token", "hf_x"),
        ("serve", "tools", ToolSettings()),
        ("llama-server", "tools", ToolSettings()),
        ("serve --tools get_info,read_file --tools-root /r", "tools.builtin", ("read_file", "get_info")),
        ("llama-server --tools get_info --tools-root /r", "tools", ToolSettings(builtin=("get_info",), root="/r")),
        ("serve --tools all --tools-runtime ssh:h", "tools.runtime", "ssh:h"),
        ("llama-server --tools all --tools-runtime ssh:h", "tools.runtime", "ssh:h"),
        ("serve --agent", "tools.builtin", NAMES),
        ("serve --agent", "http.cors_proxy", True),
        ("llama-server --agent", "tools.builtin", NAMES),
        ("llama-server --agent", "http.cors_proxy", True),
        ("serve --config tools.yaml", "tools.root", "/srv"),
        ("serve --config tools.yaml --tools get_info", "tools.builtin", ("get_info",)),
        ("serve", "http.admin", False),
        ("serve --admin", "http.admin", True),
        ("serve --admin --api-key k --listen 0.0.0.0:0", "http.admin", True),
        ("serve", "http.mcp_server", False),
        ("serve --mcp-server --api-key k --mcp-server-tools mcp:*", "http.mcp_server_tools", ("mcp:*",)),
        ("serve --mcp-server --api-key k --listen 0.0.0.0:0", "http.mcp_server", True),
        ("serve --mcp-server --api-key k", "http.mcp_server_open", False),
        ("serve --mcp-server --allow-unauthenticated", "http.mcp_server_open", True),
        ("serve --mcp-server --allow-unauthenticated --listen unix:s", "http.mcp_server", True),
        ("serve --config mcp.yaml", "http.mcp_server_tools", ("read_file",)),
    ],
)
def test_what_an_option_means(command: Command, tmp_path: Path, line: str, name: str, value: object) -> None:
    found = attrgetter(name)(settings_of(command, *shlex.split(line)))
    assert found == (str(tmp_path / "page") if value == "page" else value)


@pytest.mark.parametrize("line", ["serve --config tools.yaml", "serve", "llama-server"])
def test_servers_of_mcp_come_from_a_file_a_text_and_the_configuration(command: Command, line: str) -> None:
    app = settings_of(command, *shlex.split(f"{line} --mcp-servers-config mcp.json {GIVEN}"))
    assert [(server.name, server.command) for server in app.tools.mcp.servers] == [("one", "true"), ("two", "true")]


@pytest.mark.parametrize("door", DOORS)
def test_pages_of_other_places_are_shut_out(command: Command, door: str) -> None:
    def cors(more: str) -> tuple[str, bool]:
        http = settings_of(command, "llama-server", *shlex.split(f"{door} {more}")).http
        return http.cors.origins, http.open_inference

    assert cors("") == ("localhost", False)
    assert cors("--cors-origins *")[0] == "*"
    assert cors("--cors-origins https://app.example") == ("https://app.example", False)
    assert settings_of(command, "llama-server", "--no-agent").http.open_inference


@pytest.mark.parametrize("mode", ["--models-preset presets.ini", "-m m.gguf"])
def test_no_model_process_gets_any_of_it(command: Command, tmp_path: Path, mode: str) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    (tmp_path / "presets.ini").write_text(f"[m]\nmodel = {tmp_path / 'm.gguf'}\ntools = all\ntools-root = /\n")
    line = f"llama-server --tools all --agent --tools-runtime ssh:h {GIVEN} {mode}"
    app = settings_of(command, *shlex.split(line))
    (model,) = Catalog(app.sources, app.config).scan().models
    assert {*app.fleet.engine_args, *model.args} <= {"--ui-mcp-proxy"}  # /props says that there is a proxy


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tools:\n  enable: [read_files]\n", 'tools: unknown tool "read_files"'),
        ("tools:\n  enable: [all]\n  runtime: lxc:x\n", "unknown tool runtime"),
        ("mcp_servers:\n  one: 5\n", "mcp_servers"),
        (json.dumps({"mcpServer": {"enabled": True}}), "--mcp-server needs a key"),
    ],
)
def test_mistakes_of_the_configuration_are_told(command: Command, tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    assert words in command.bad("serve", "--config", "config.yaml")


@pytest.mark.parametrize("beyond", BEYOND)
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("mode", ["", "-m x.gguf"])
def test_the_stand_in_gives_no_other_machine_tools_without_a_key(
    command: Command, beyond: str, door: str, mode: str
) -> None:
    words = shlex.split(f"llama-server {mode} {beyond} {door}")
    told = command.bad(*words)
    assert "--api-key KEY (or LLAMA_API_KEY)" in told
    assert "--allow-unauthenticated" in told
    for meant in (("--api-key", "k"), ("--allow-unauthenticated",)):
        assert settings_of(command, *words, *meant).http.listen


def test_the_environment_opens_no_door_either(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_HOST", "0.0.0.0")
    monkeypatch.setenv("LLAMA_ARG_TOOLS", "all")
    assert command("llama-server").status == 2


@pytest.mark.parametrize("beyond", BEYOND)
def test_the_stand_in_warns_of_models_for_everybody(command: Command, beyond: str) -> None:
    err = command("llama-server", *beyond.split()).err
    assert "warning: listening on " in err
    assert err.count("\n") == 1
    for quiet in (f"{beyond} --api-key k", f"{beyond} --allow-unauthenticated", "--host a.sock", ""):
        assert command("llama-server", *quiet.split()).err == ""


def test_a_root_of_configurations_needs_none(command: Command, tmp_path: Path) -> None:
    assert settings_of(command, "serve", "--config-root", str(tmp_path / "etc")).config is None


@pytest.mark.parametrize("text", ["9" * 5000, "\u00b2", "\u0663", "-", "1e999"])
def test_what_is_no_number_is_a_mistake_of_the_command_line(command: Command, text: str) -> None:
    for flag in FLAGS:
        if flag.arity == 1 and flag.kind in (Kind.INTEGER, Kind.NUMBER):
            found = command("llama-server", flag.spellings[0], text)
            assert found.status in (0, 1), (flag.name, found.err)  # llama-server ends with 1
            assert len(found.err.splitlines()) <= 1 or found.status == 0, (flag.name, found.err)
