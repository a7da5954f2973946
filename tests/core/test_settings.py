"""Which server a command asks, when one needs a key, and what systemd asks of one: every combination of facts."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import structs
from whole_config import WHOLE

from appliance.core import settings
from appliance.core.config.load import SourceFile, load
from appliance.core.config.mcp_servers import McpServers, StdioServer
from appliance.core.installed import ENVIRONMENT, assignments
from appliance.core.offline import leaves, refuse_outside
from appliance.core.sd_notify import SystemdWatch, message, watch_of
from appliance.core.server_choice import SERVICE_SOCKET, ServerChoice, ServerFacts, choose_server
from appliance.errors import UsageError

FACTS = st.builds(
    ServerFacts,
    option=st.sampled_from([None, "http://a:1"]),
    variable=st.sampled_from([None, "http://b:2"]),
    side=st.sampled_from([None, "own", "system"]),
    own_socket=st.sampled_from(["/home/anna/server.sock", SERVICE_SOCKET]),
    own=st.sampled_from(["missing", "closed", "answers"]),
    service=st.sampled_from(["missing", "closed", "answers"]),
    is_installed=st.booleans(),
    is_root=st.booleans(),
)
ROOT = ServerFacts(own_socket="/root/server.sock", service="answers", is_installed=True, is_root=True)


def chosen(facts: ServerFacts) -> ServerChoice | None:
    try:
        return choose_server(facts)
    except UsageError:
        return None


@given(FACTS)
@example(ROOT)
@example(structs.replace(ROOT, is_root=False))
def test_the_promises(facts: ServerFacts) -> None:
    choice = chosen(facts)
    given_url = facts.option or facts.variable
    if facts.side == "system":
        may = facts.is_installed and (facts.is_root or facts.service == "answers") and not given_url
        assert (choice is not None) == may
    else:
        assert choice is not None
    if choice is None:
        return
    assert (choice.kind == "named") == (given_url is not None)
    assert not choice.enters or (facts.is_root and choice.url == f"unix:{SERVICE_SOCKET}")
    if given_url is not None:
        assert (choice.url, choice.enters) == (given_url, False)
    elif facts.side == "own":
        assert choice.url in (f"unix:{facts.own_socket}", settings.DEFAULT_URL)
        assert not choice.enters
    elif facts.side is None and facts.own == "answers":
        assert choice.url == f"unix:{facts.own_socket}"
    elif facts.side is None:
        assert (choice.url == settings.DEFAULT_URL) == (facts.service != "answers")
    if choice.kind == "closed":
        assert (facts.side, facts.service, choice.url) == (None, "closed", settings.DEFAULT_URL)
    if choice.kind == "service":  # the command stays a guest: nobody but the service's user and root is at home there
        assert not facts.is_root
        assert facts.own_socket != SERVICE_SOCKET


@given(FACTS, st.sampled_from(["missing", "closed"]))
def test_a_server_that_does_not_answer_is_as_good_as_none(facts: ServerFacts, state: str) -> None:
    silent = chosen(structs.replace(facts, own=state, service=state))
    none = chosen(structs.replace(facts, own="missing", service="missing"))
    assert silent is none or (silent and none and (silent.url, silent.enters) == (none.url, none.enters))


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        (ServerFacts(side="system", option="http://a:1"), "--url names http://a:1"),
        (ServerFacts(side="system", variable="http://a:1"), "LLAMA_APPLIANCE_URL names http://a:1"),
        (ServerFacts(side="system"), "service install"),
        (ServerFacts(side="system", is_installed=True), "use sudo"),
    ],
)
def test_what_cannot_be_says_what_can(facts: ServerFacts, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        choose_server(facts)


def test_a_file_of_assignments_is_read_as_systemd_reads_it() -> None:
    text = "# a comment\nA=1\n;B=2\n C = 'two words' \nD=\"x\\\"y\"\nnothing\nE='open\nF=\n"
    assert assignments(text) == {"A": "1", "C": "two words", "D": 'x"y', "F": ""}
    assert assignments("\n".join(f"{name}={value}" for name, value in ENVIRONMENT.items())) == ENVIRONMENT


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "localhost", "LOCALHOST"])
def test_loopback(host: str) -> None:
    assert settings.is_loopback(host)
    settings.refuse_open_door(settings.HttpSettings(listen=((host, 1),)))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "box.local", "localhost.evil.example"])
def test_listening_for_others_needs_a_key(host: str) -> None:
    assert not settings.is_loopback(host)
    with pytest.raises(UsageError, match="--api-key KEY"):
        settings.refuse_open_door(settings.HttpSettings(listen=(("127.0.0.1", 1), (host, 1))))
    with pytest.raises(UsageError, match="--api-key KEY"):
        settings.refuse_open_door(settings.HttpSettings(also=(settings.AlsoListen((host, 1), "--also-listen"),)))
    settings.refuse_open_door(settings.HttpSettings(listen=((host, 1),), api_keys=("k",)))


def test_tools_of_either_kind_are_tools() -> None:
    servers = McpServers(servers=(StdioServer(name="s", command="run"),))
    assert not settings.ToolSettings().enabled
    assert settings.ToolSettings(builtin=("get_info",)).enabled
    assert settings.ToolSettings(mcp=servers).enabled


def test_a_file_is_no_open_door() -> None:
    settings.refuse_open_door(settings.HttpSettings(listen=(settings.UnixSocket("/run/x.sock"),)))


def test_only_an_address_elsewhere_is_left_for():
    assert [leaves(host) for host in ("", "0.0.0.0", "::", "localhost", "10.0.0.1", "a.b")] == [False] * 4 + [True] * 2


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({}, SystemdWatch()),
        ({"NOTIFY_SOCKET": "@"}, SystemdWatch()),
        ({"NOTIFY_SOCKET": "/run/n"}, SystemdWatch("/run/n")),
        ({"NOTIFY_SOCKET": "@n", "WATCHDOG_USEC": "3000000"}, SystemdWatch("@n", 1.5)),
        ({"NOTIFY_SOCKET": "/n", "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "7"}, SystemdWatch("/n", 1.5)),
        ({"NOTIFY_SOCKET": "/n", "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "8"}, SystemdWatch("/n")),
        ({"NOTIFY_SOCKET": "/n", "WATCHDOG_USEC": "0"}, SystemdWatch("/n")),
        ({"NOTIFY_SOCKET": "/n", "WATCHDOG_USEC": "nonsense"}, SystemdWatch("/n")),
    ],
)
def test_what_systemd_asks_is_read(environ: dict[str, str], found: SystemdWatch) -> None:
    assert watch_of(environ, 7) == found


@given(st.text())
def test_no_text_can_smuggle_in_an_assignment(text: str) -> None:
    assert len(message(STATUS=text, READY=1).decode("utf-8", "surrogatepass").split("\n")) == 2


@pytest.mark.parametrize(
    ("config", "setting"),
    [
        ("peers: {far: {proxy: 'http://192.0.2.1:8080', models: [x]}}", "peer 'far' is on 192.0.2.1"),
        ("models: {x: {cmd: sleep 99, proxy: 'http://far.example:1'}}", "model 'x' (proxy) is on far.example"),
        (
            "models: {x: {cmd: 'llama-server -m x --port ${PORT}', rpc: ['192.0.2.1:50052']}}",
            "of model 'x' (rpc) is on",
        ),
        ("tracing: {endpoint: 'http://far.example:4318'}", "traces (tracing.endpoint) is on far.example"),
    ],
)
def test_offline_refuses_a_configuration_that_leads_elsewhere(config: str, setting: str) -> None:
    read = load([SourceFile("c.yaml", config)], {}, config_type=WHOLE).config
    with pytest.raises(UsageError, match=f"{re.escape(setting)}.*start without --offline"):
        refuse_outside(read, settings.ToolSettings())
