"""What web pages get and reach, by the options of ``serve`` and of llama-server."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import Command

from appliance.core.settings import HttpSettings
from appliance.settings import AppSettings

pytestmark = pytest.mark.usefixtures("plain_environment")


@pytest.fixture(autouse=True)
def _files(tmp_path: Path) -> None:
    (tmp_path / "ui.json").write_text('{"theme": "light"}')
    (tmp_path / "page").mkdir()


def parsed(command: Command, *argv: str) -> HttpSettings:
    outcome = command(*argv)
    assert isinstance(outcome.program, AppSettings), outcome.err
    return outcome.program.http


def test_serve(command: Command, tmp_path: Path) -> None:
    http = parsed(
        command,
        *("serve", "--path", "page", "--cors-proxy", "--cors-proxy-allow", "10.0.0.0/8", "--reuse-port"),
        *("--cors-proxy-allow", "loopback", "--ui-config", '{"a": [1, {}]}'),
    )
    assert http.static == str(tmp_path / "page")
    assert (http.cors_proxy, http.cors_proxy_allow) == (True, ("10.0.0.0/8", "loopback"))
    assert (http.reuse_port, http.ui_settings) == (True, b'{"a":[1, {}]}')
    plain = parsed(command, "serve")
    assert (plain.static, plain.cors_proxy, plain.reuse_port, plain.ui_settings) == (None, False, False, b"{}")


@pytest.mark.parametrize("verb", [("serve",), ("llama-server",), ("llama-server", "-m", "x.gguf")])
def test_settings_of_pages_from_a_file(command: Command, verb: tuple[str, ...]) -> None:
    assert parsed(command, *verb, "--ui-config-file", "ui.json").ui_settings == b'{"theme":"light"}'


def test_llama_server_takes_what_was_said_last(command: Command) -> None:
    said = ("--ui-config-file", "ui.json", "--webui-config", '{"theme": "dark"}')
    assert parsed(command, "llama-server", *said).ui_settings == b'{"theme":"dark"}'
    assert parsed(command, "llama-server", *said[2:], *said[:2]).ui_settings == b'{"theme":"light"}'


def test_the_one_model_tells_of_the_proxy_in_front(command: Command) -> None:
    outcome = command("llama-server", "-m", "x.gguf", "--ui-mcp-proxy", "--ui-config", "{}", "--reuse-port")
    assert isinstance(outcome.program, AppSettings)
    assert outcome.program.http.cors_proxy
    assert outcome.program.http.reuse_port
    assert outcome.program.fleet.engine_args == ("--ui-mcp-proxy", "--ui-config", "{}")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("serve", "--path", "nowhere"), "nowhere"),
        (("serve", "--cors-proxy-allow", "10.0.0.0/8"), "--cors-proxy-allow needs --cors-proxy"),
        (("serve", "--cors-proxy", "--cors-proxy-allow", "a/b/c"), "--cors-proxy-allow: the proxy cannot be allowed"),
        (("serve", "--ui-config", "[]"), "--ui-config is not a JSON object"),
        (("serve", "--ui-config", "{"), "--ui-config is not a JSON object"),
        (("serve", "--ui-config-file", "none.json"), "--ui-config-file none.json cannot be read"),
        (("serve", "--ui-config", "{}", "--ui-config-file", "ui.json"), "give one of them"),
        (("llama-server", "--ui-config", "x"), "--ui-config is not a JSON object"),
        (("serve", "--watch-config"), "--watch-config needs something to watch"),
    ],
)
def test_mistakes(command: Command, argv: tuple[str, ...], message: str) -> None:
    outcome = command(*argv)
    assert (outcome.status, outcome.program) == (1 if argv[0] == "llama-server" else 2, None)
    assert message in outcome.err


BEYOND = (("--host", "0.0.0.0"), ("--host", "::"), ("--host", "127.0.0.1,my.name"))
DOORS = (("--tools", "all"), ("--agent",), ("--mcp-servers-json", '{"mcpServers": {}}'), ("--ui-mcp-proxy",))


@pytest.mark.parametrize("beyond", BEYOND)
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("mode", [(), ("-m", "x.gguf")])
def test_the_stand_in_gives_no_other_machine_tools_without_a_key(
    command: Command, beyond: tuple[str, ...], door: tuple[str, ...], mode: tuple[str, ...]
) -> None:
    words = ("llama-server", *mode, *beyond, *door)
    outcome = command(*words)
    assert (outcome.status, outcome.program) == (2, None)
    assert "--api-key KEY (or LLAMA_API_KEY)" in outcome.err
    assert "--allow-unauthenticated" in outcome.err
    for meant in (("--api-key", "k"), ("--allow-unauthenticated",)):
        assert parsed(command, *words, *meant).listen
    assert parsed(command, "llama-server", *mode, *door).listen == (("127.0.0.1", 8080),)


def test_the_environment_opens_no_door_either(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_HOST", "0.0.0.0")
    monkeypatch.setenv("LLAMA_ARG_TOOLS", "all")
    assert command("llama-server").status == 2


@pytest.mark.parametrize("beyond", BEYOND)
def test_the_stand_in_warns_of_models_for_everybody(command: Command, beyond: tuple[str, ...]) -> None:
    outcome = command("llama-server", *beyond)
    assert isinstance(outcome.program, AppSettings)
    assert "warning: listening on " in outcome.err
    assert outcome.err.count("\n") == 1
    for quiet in ((*beyond, "--api-key", "k"), (*beyond, "--allow-unauthenticated"), ("--host", "a.sock"), ()):
        assert command("llama-server", *quiet).err == ""
