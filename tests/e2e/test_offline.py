"""``serve --offline``: nothing leaves the machine, seen by the system's own account of every call."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from program import Server, StartServer, fresh_environment, http, one_engine, run_command
from slow import one_of

CALLS = ("-D", "-f", "-qq", "-e", "trace=connect,sendto,sendmsg,sendmmsg", "-e", "signal=none")
ELSEWHERE = "192.0.2.1"
"""An address for documentation, which nobody has (RFC 5737)."""
ADDRESS = re.compile(r'sin_addr=inet_addr\("([^"]+)"\)|inet_pton\(AF_INET6, "([^"]+)"')


def reached(log: Path) -> set[str]:
    """Every address that the processes have sent or connected to, but for those of this machine."""
    found = {four or six for four, six in ADDRESS.findall(log.read_text("utf-8"))}
    return {each for each in found if not each.startswith("127.") and each not in ("::1", "0.0.0.0", "::")}


@pytest.mark.needs("strace")
def test_the_account_shows_what_leaves(tmp_path: Path) -> None:
    """Otherwise the next test could not fail."""
    code = f"import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(('{ELSEWHERE}', 9))"
    command = ["strace", *CALLS, "-o", str(tmp_path / "log"), sys.executable, "-c", code]
    subprocess.run(command, check=False, capture_output=True)
    assert reached(tmp_path / "log") == {ELSEWHERE}


@pytest.mark.slow
@pytest.mark.needs("strace")
@one_engine
def test_no_call_leaves_the_machine(engine: str, tmp_path: Path) -> None:
    """From the start to the end: loading, chatting, asking for downloads and for other servers."""
    log = tmp_path / "log"
    words = ["serve", "--offline", "--engine", engine, "--threads", "1", "--cors-proxy", "--listen", "127.0.0.1:0"]
    environment = {"HF_ENDPOINT": f"http://{ELSEWHERE}"}
    with Server(words, tmp_path, environment, under=("strace", *CALLS, "-o", str(log))).wait_listening() as server:
        body = {"model": "starter", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
        assert http(server, "POST", "/v1/chat/completions", body).status == 200
        refused = http(server, "POST", "/models", {"model": "acme/small-GGUF"})
        assert refused.status == 403, refused.body
        assert "--offline" in refused.json()["error"]["message"]
        for host in ("example.com", ELSEWHERE):
            proxied = http(server, "GET", f"/cors-proxy?url=http://{host}/")
            assert proxied.status >= 400, proxied.body
        server.process.terminate()
        server.wait(20)
    assert "127.0.0.1" in log.read_text(), "the engine was asked, so the account is one"
    assert reached(log) == set()


@pytest.mark.parametrize(
    "case",
    one_of(
        [
            ("mcp_servers: {s: {url: 'https://far.example/mcp'}}", (), "MCP server 's' is on far.example"),
            ("", ("--", "--rpc", "192.0.2.1:50052"), "a worker (--rpc) is on 192.0.2.1"),
            ("", ("--tools", "all", "--tools-runtime", "ssh:me@far.example"), "--tools-runtime) is on far.example"),
        ]
    ),
)
def test_a_setting_that_leads_elsewhere_is_refused_at_the_start(
    tmp_path: Path, case: tuple[str, tuple[str, ...], str]
) -> None:
    """`tests/core/test_settings.py` has the settings."""
    config, words, said = case
    (tmp_path / "c.yaml").write_text(config or "models: {}")
    done = run_command("serve", "--offline", "--config", "c.yaml", "--listen", "127.0.0.1:0", *words, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert "start without --offline" in done.stderr


@one_engine
def test_a_later_configuration_cannot_lead_elsewhere(engine: str, start_server: StartServer, tmp_path: Path) -> None:
    """Peers on this machine are fine."""
    config = tmp_path / "c.yaml"
    config.write_text("peers: {near: {proxy: 'http://localhost:9', models: [x]}}\n")
    server = start_server("serve", "--offline", "--engine", engine, "--config", str(config), "--listen", "127.0.0.1:0")
    config.write_text("peers: {far: {proxy: 'http://192.0.2.1:8080', models: [x]}}\n")
    answer = http(server, "POST", "/api/config/reload")
    assert answer.status == 400, answer.body
    assert "--offline: peer 'far'" in answer.json()["error"]["message"]


def test_the_guard_is_for_every_library(tmp_path: Path) -> None:
    """It is Python's own account of connections and look-ups that is listened to, so no library gets around it."""
    code = f"""
import socket, urllib.request
from appliance.platform.ports import stay_on_this_machine
stay_on_this_machine()
def refused(act, *args):
    try:
        act(*args)
    except OSError as error:
        assert "--offline keeps the program from" in str(error), error
    else:
        raise SystemExit(f"{{act}} went through")
refused(urllib.request.urlopen, "http://example.com")
refused(socket.create_connection, ("{ELSEWHERE}", 80), 1)
refused(socket.create_connection, ("2001:db8::1", 80), 1)
refused(socket.gethostbyname, "example.com")
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
    refused(sock.sendto, b"x", ("{ELSEWHERE}", 53))
with socket.create_server(("127.0.0.1", 0)) as server:
    for host in ("127.0.0.1", "localhost"):
        socket.create_connection((host, server.getsockname()[1])).close()
with socket.socket(socket.AF_UNIX) as sock:
    sock.bind("here")
    sock.listen()
    with socket.socket(socket.AF_UNIX) as other:
        other.connect("here")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=fresh_environment(tmp_path), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
