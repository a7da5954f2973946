"""The program as systemd starts it: it says that it is ready, that it lives, and that it ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from program import COMMAND, fresh_environment, run_command

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="systemd is Linux's")

PATIENCE = 30.0


def words(sock: socket.socket) -> dict[str, str]:
    return dict(line.split("=", 1) for line in sock.recv(4096).decode().split("\n"))


def silence(sock: socket.socket) -> bool:
    """Read what was sent before; true when nothing more comes within the socket's time."""
    try:
        return any(not words(sock) for _ in range(10))
    except TimeoutError:
        return True


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_hears_ready_life_and_end(tmp_path: Path, abstract: bool) -> None:
    address = f"\0llama-appliance-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    environment = fresh_environment(tmp_path) | {
        "NOTIFY_SOCKET": address.replace("\0", "@"),
        "WATCHDOG_USEC": "400000",
    }
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(address)
        sock.settimeout(PATIENCE)
        argv = [str(COMMAND), "serve", "--listen", "127.0.0.1:0", "--no-stores"]
        with subprocess.Popen(argv, cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL) as process:
            try:
                heard: list[dict[str, str]] = []
                while not any("READY" in each for each in heard):
                    heard.append(words(sock))
                assert heard[-1]["STATUS"].startswith("listening on http://127.0.0.1:")
                assert words(sock) == {"WATCHDOG": "1"}
                process.send_signal(signal.SIGSTOP)  # what hangs shows no life
                sock.settimeout(1.0)
                assert silence(sock)
                process.send_signal(signal.SIGCONT)
                sock.settimeout(PATIENCE)
                assert words(sock) == {"WATCHDOG": "1"}
                process.send_signal(signal.SIGHUP)  # a reload with nothing to read again
                assert words(sock) == {"WATCHDOG": "1"}
                assert words(sock) == {"WATCHDOG": "1"}
                process.send_signal(signal.SIGTERM)
                until = time.monotonic() + PATIENCE
                while "STOPPING" not in words(sock):
                    assert time.monotonic() < until
                assert process.wait(PATIENCE) == 0
            finally:
                process.kill()


@pytest.mark.skipif(Path("/run/systemd/system").is_dir(), reason="systemd runs here, and a test changes nothing of it")
@pytest.mark.parametrize("verb", ["install", "uninstall", "start", "stop", "restart", "status"])
def test_without_systemd_every_verb_says_so_and_writes_nothing(tmp_path: Path, verb: str) -> None:
    done = run_command("service", verb, *(() if verb == "status" else ("--user",)), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "systemd does not run here" in done.stderr
    assert not any(tmp_path.rglob("*.service"))


def test_a_program_that_the_service_would_not_see_is_refused(tmp_path: Path) -> None:
    done = run_command("service", "unit", "--program", "/home/ada/llama-appliance", cwd=tmp_path)
    assert done.returncode == 2
    assert "copy the program's folder to /opt/llama-appliance" in done.stderr
    done = run_command("service", "unit", "--user", "--program", "/home/ada/llama-appliance", "--", "--x", cwd=tmp_path)
    assert "ExecStart=/home/ada/llama-appliance serve --x\n" in done.stdout
    done = run_command(
        "service", "unit", "--program", "/opt/llama-appliance", "--", "--x", "--", "-c", "9", cwd=tmp_path
    )
    assert 'ExecStart=/opt/llama-appliance serve --config-root /etc/llama-appliance --x "--" -c 9 $' in done.stdout
