"""Faults of the fake whose lack no other test would notice: those that rely on one pass as well where it is not."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from contract_harness import CHILD, Engine, Json, Running, Start
from waiting import wait

PROMPT: Json = {"prompt": "x"}


@pytest.fixture
def engine(fake_llama_server: tuple[str, ...], fake_model: Path) -> Engine:
    """The fake, with a model that it need not read."""
    return Engine("fake", fake_llama_server, fake_model, {})


def raw(running: Running, fake: Json) -> bytes:
    """All bytes of one answer up to the end of the connection."""
    received = b""
    body = {**PROMPT, "stream": True, "fake": fake}
    with running.open("/completion", body) as sock, suppress(ConnectionResetError):
        while part := sock.recv(1 << 16):
            received += part
    return received


@pytest.mark.parametrize("mid_record", [False, True])
def test_die_after_tokens(start: Start, mid_record: bool) -> None:
    running = start()
    received = raw(running, {"die_after_tokens": 2, "die_mid_record": mid_record, "exit_code": 9})
    assert received.count(b'"stop":false') == (3 if mid_record else 2)
    assert received.endswith(b"}\n\n\r\n") != mid_record
    assert running.process.wait(10) == 9


def test_malformed_sse(start: Start) -> None:
    received = raw(start(), {"malformed_sse": True, "tokens": 2})
    with pytest.raises(UnicodeDecodeError):
        received.decode()
    assert received.count(b"dta: ") == 2


@pytest.mark.usefixtures("posix")
def test_ignore_sigterm(start: Start) -> None:
    running = start("--ignore-sigterm")
    running.process.terminate()
    wait(lambda: "ignoring signal" in running.stderr())
    assert running.ask("GET", "/health").status == 200


def test_ignore_exit_line(start: Start) -> None:
    running = start("--ignore-exit-line", env=CHILD)
    running.say_exit()
    running.close_stdin()
    assert running.process.wait(10) == 1, "it ended for the end of stdin, not for the line"


def test_log_flood_and_huge_lines(start: Start) -> None:
    running = start("--huge-log-lines", "--log-flood", env=CHILD)
    wait(lambda: len(running.stderr()) > 4 << 20, within=20)
    assert max(len(line) for line in running.stdout().splitlines()) == 2 << 20
    assert running.states()[-1]["state"] == "ready"
