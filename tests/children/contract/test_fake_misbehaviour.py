"""Every fault the fake can be told to have, seen from outside: a test that relies on one must be able to trust it."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest
from contract_harness import CHILD, Engine, Json, Running, Start
from waiting import wait

PROMPT: Json = {"prompt": "x"}


@pytest.fixture
def engine(fake_llama_server: tuple[str, ...], fake_model: Path) -> Engine:
    """The fake, with a model that it need not read."""
    return Engine("fake", fake_llama_server, fake_model, {})


def raw(running: Running, fake: Json, *, stream: bool = True) -> bytes:
    """All bytes of one answer up to the end of the connection."""
    received = b""
    with running.open("/completion", {**PROMPT, "stream": stream, "fake": fake}) as sock:
        try:
            while part := sock.recv(1 << 16):
                received += part
        except ConnectionResetError:
            pass
    return received


def test_port_taken_once(start: Start, tmp_path: Path) -> None:
    marker = str(tmp_path / "taken")
    first = start("--port-taken-once", marker, ready=False)
    assert first.process.wait(10) == 1
    assert "couldn't bind" in first.stderr()
    start("--port-taken-once", marker)


@pytest.mark.parametrize("mid_record", [False, True])
def test_die_after_tokens(start: Start, mid_record: bool) -> None:
    running = start()
    received = raw(running, {"die_after_tokens": 2, "die_mid_record": mid_record, "exit_code": 9})
    assert received.count(b'"stop":false') == (3 if mid_record else 2)
    assert received.endswith(b"}\n\n\r\n") != mid_record
    assert running.process.wait(10) == 9


@pytest.mark.skipif(os.name == "nt", reason="Windows has no death by signal")
def test_die_by_signal(start: Start) -> None:
    running = start("--die-before-head", "--exit-code", "-9")
    assert raw(running, {}) == b""
    assert running.process.wait(10) == -signal.SIGKILL


def test_whole_answers_can_be_cut_short(start: Start) -> None:
    running = start()
    body = {**PROMPT, "fake": {"close_after_tokens": 1}}
    with pytest.raises(http.client.IncompleteRead):
        running.ask("POST", "/completion", body)
    assert running.ask("GET", "/health").status == 200


def test_close_after_tokens_and_without_answer(start: Start) -> None:
    running = start()
    cut = raw(running, {"close_after_tokens": 2})
    assert cut.count(b'"stop":false') == 2
    assert not cut.endswith(b"0\r\n\r\n")
    assert raw(running, {"close_without_answer": True}) == b""
    assert not raw(running, {"not_http": True}).startswith(b"HTTP/")
    assert running.ask("GET", "/health").status == 200


def test_error_record_ends_the_stream(start: Start) -> None:
    running = start()
    answer = running.stream("/v1/chat/completions", {"messages": "x", "fake": {"error_record": 2}})
    assert answer.chunks[-1].startswith(b'data: {"error":{"code":500,')
    assert b"[DONE]" not in answer.body
    assert running.stream("/v1/messages", {"messages": "x", "fake": {"error_record": 2}}).records()[-1][0] == "error"
    assert running.ask("POST", "/completion", {**PROMPT, "fake": {"error_record": 0}}).status == 500


def test_malformed_sse(start: Start) -> None:
    received = raw(start(), {"malformed_sse": True, "tokens": 2})
    with pytest.raises(UnicodeDecodeError):
        received.decode()
    assert received.count(b"dta: ") == 2


@pytest.mark.parametrize("fake", [{"stall_after_tokens": 2}, {"slow_prompt": 60}, {"token_delay": 60}])
def test_a_client_that_leaves_is_noticed_at_once(start: Start, fake: Json) -> None:
    running = start()
    with running.open("/completion", {**PROMPT, "stream": True, "fake": fake}) as sock:
        wait(lambda: running.busy_slots() == 1)
        if "stall_after_tokens" in fake:
            wait(lambda: b'"tokens_predicted":2' in sock.recv(1 << 16, socket.MSG_PEEK))
    wait(lambda: running.busy_slots() == 0)


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


def test_hold_pipe_in_grandchild(fake_llama_server: tuple[str, ...]) -> None:
    """The pipe stays open behind a process that is gone."""
    flags = ("--fail-to-load", "--hold-pipe-in-grandchild", "0.7")
    with subprocess.Popen([*fake_llama_server, *flags, "--port", "0"], stderr=subprocess.PIPE) as process:
        assert process.stderr
        process.wait(10)
        gone = time.monotonic()
        process.stderr.read()
        assert time.monotonic() - gone > 0.3


def test_log_flood_and_huge_lines(start: Start) -> None:
    running = start("--huge-log-lines", "--log-flood", env=CHILD)
    wait(lambda: len(running.stderr()) > 4 << 20, within=20)
    assert max(len(line) for line in running.stdout().splitlines()) == 2 << 20
    assert running.states()[-1]["state"] == "ready"
