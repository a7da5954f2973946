"""How an engine's process begins and ends: loading, keys, the router's protocol, signals, failures."""

from __future__ import annotations

import signal
import socket
import time
from pathlib import Path

import pytest
from contract_harness import ALIAS, CHILD, HOST, LOADING, Engine, Start, falls_silent, started
from waiting import wait

END_TIMEOUT = 20.0
SILENCE = 1.0
"""Far above the time between two tokens."""


def test_loading_is_answered_503(engine: Engine, start: Start) -> None:
    running = start(env={"FAKE_LOAD_DELAY": "0.3"})
    assert running.refusals or not engine.is_fake
    for refusal in running.refusals:  # a real engine may be ready before the first question reaches it
        assert (refusal.status, refusal.json()) == (503, LOADING)


def test_keys(start: Start) -> None:
    running = start(env={"LLAMA_API_KEY": "secret"})
    wrong = {"Authorization": "Bearer wrong"}
    for headers in ({}, wrong, wrong | {"X-Api-Key": "secret"}):
        answer = running.ask("GET", "/v1/models", headers=headers)
        error = {"message": "Invalid API Key", "type": "authentication_error", "code": 401}
        assert (answer.status, answer.json()) == (401, {"error": error})
    for headers in ({"Authorization": "Bearer secret"}, {"X-Api-Key": "secret"}):
        assert running.ask("GET", "/v1/models", headers=headers).status == 200
    assert running.ask("GET", "/nowhere").status == 401


def test_a_child_reports_its_loading_and_its_readiness(engine: Engine, start: Start) -> None:
    running = start(env=CHILD)
    running.wait_state_ready()
    *loading, ready = running.states()
    assert loading
    assert {line["state"] for line in loading} == {"loading"}
    values: list[object] = []
    for line in loading:
        payload = engine.check_keys(line["payload"], "stages current value")
        assert payload["current"] in payload["stages"]
        values.append(payload["value"])
    assert values[-1] == 1.0
    payload = engine.check_keys(ready["payload"], "id aliases tags object architecture created owned_by meta")
    (entry,) = running.ask("GET", "/v1/models").json()["data"]
    assert payload["id"] == ALIAS
    assert payload["meta"] == entry["meta"]


def test_the_exit_line_ends_a_child_with_0(start: Start) -> None:
    running = start(env=CHILD)
    running.wait_state_ready()
    running.say_exit()
    assert running.process.wait(END_TIMEOUT) == 0


def test_the_end_of_stdin_ends_a_child_with_1(start: Start) -> None:
    """This is how children die with their router, however it dies."""
    running = start(env=CHILD)
    running.close_stdin()
    assert running.process.wait(END_TIMEOUT) == 1


def test_without_a_router_the_end_of_stdin_means_nothing(start: Start) -> None:
    running = start()
    running.close_stdin()
    assert running.ask("POST", "/tokenize", {"content": "x"}).status == 200
    assert running.process.poll() is None
    assert not running.states()


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether the process has a handler; the embedded engine has it an instant after its first answer."""
    status = Path(f"/proc/{pid}/status")
    if not status.exists():
        return True  # nothing can be said where there is no /proc
    mask = next(line for line in status.read_text("utf-8").splitlines() if line.startswith("SigCgt:"))
    return bool(int(mask.split()[1], 16) >> (number - 1) & 1)


@pytest.mark.usefixtures("posix")
def test_sigterm_ends_it_with_0(start: Start) -> None:
    """Several times, and in the very instant it begins to listen: a handler that is there and not heard loses it."""
    for _ in range(4):
        running = start(ready=False)
        deadline = time.monotonic() + 10
        while not catches(running.process.pid, signal.SIGTERM):
            assert time.monotonic() < deadline, "it never listened to SIGTERM"
        running.process.terminate()
        assert running.process.wait(END_TIMEOUT) == 0


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_under_way_is_not_finished_when_told_to_exit(engine: Engine, start: Start, stream: bool) -> None:
    """llama-server computes nothing more, yet neither ends its answers nor itself until the clients leave.

    The embedded engine cuts its clients off and ends at once.
    """
    running = start("--ctx-size", "16384", env=CHILD)
    running.wait_state_ready()
    with running.open("/completion", {"prompt": "Hello", "stream": stream, **engine.long}) as sock:
        wait(lambda: running.busy_slots() == 1, within=10)
        running.say_exit()
        if engine.name == "embedded":
            assert running.process.wait(END_TIMEOUT) == 0
        elif falls_silent(sock, SILENCE):  # else the word came between two tokens, and the answer was ended
            assert running.process.poll() is None
        else:
            assert running.process.wait(END_TIMEOUT) == 0, "it ended the answer, and stays"
    assert running.process.wait(END_TIMEOUT) == 0


@pytest.mark.parametrize("content", [None, b"", b"this is no model at all" * 100])
def test_a_model_that_cannot_be_loaded_ends_it(start: Start, tmp_path: Path, content: bytes | None) -> None:
    model = tmp_path / "broken.gguf"
    if content is not None:
        model.write_bytes(content)
    running = start(model=model, ready=False)
    assert running.process.wait(END_TIMEOUT) == 1
    assert "broken.gguf" in running.stderr()


def test_a_taken_port_ends_it(engine: Engine, tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind((HOST, 0))
        other.listen()
        port = int(other.getsockname()[1])
        with started(engine.argv(port), port, tmp_path) as running:
            assert running.process.wait(END_TIMEOUT) == 1
            assert str(port) in running.stderr()


def test_introspection_can_be_switched_off(start: Start) -> None:
    running = start("--no-slots")
    for path in ("/slots", "/metrics"):
        answer = running.ask("GET", path)
        assert answer.status == 501
        assert answer.json()["error"]["type"] == "not_supported_error"


def test_embeddings(engine: Engine, start: Start) -> None:
    running = start("--embeddings", "--pooling", "mean")
    answer = running.ask("POST", "/v1/embeddings", {"input": ["one", "two"]})
    assert answer.status == 200
    whole = engine.check_keys(answer.json(), "model object usage data")
    engine.check_keys(whole["usage"], "prompt_tokens total_tokens")
    entries = [engine.check_keys(entry, "embedding index object") for entry in whole["data"]]
    assert [entry["index"] for entry in entries] == [0, 1]
    assert all(isinstance(number, float) for entry in entries for number in entry["embedding"])
