"""The verbs of `agent` against a real server with a scripted engine; as a process where that counts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
import trio
from http_harness import Appliance, OpenServer
from plugin_folders import write_plugin
from runs_harness import ALARM, STALLS, WEATHER, Verb, asked, begin, begun, box, result, run, show, until_state
from waiting import until

from appliance.core.config.additions import RunsConfig
from appliance.features.runs import verb as agent

CALLS = [{"name": "echo", "arguments": '{"text":"a"}'}, {"name": "alarm", "arguments": "{}"}]
PIPE = subprocess.PIPE
BEGUN = json.dumps({"id": "run_1", "state": "running"}).encode()
ACCEPTED = b"HTTP/1.1 202 Accepted\r\nContent-Length: %d\r\n\r\n%b" % (len(BEGUN), BEGUN)


def command(port: int, task: Path) -> list[str]:
    return [*(sys.executable, "-m", "appliance", "agent", "run"), "--url", f"http://127.0.0.1:{port}", str(task)]


Write = Callable[..., Path]
on_posix = pytest.mark.skipif(os.name == "nt", reason="terminals, pipes and signals of POSIX")


@pytest.fixture
def written(tmp_path: Path) -> Write:
    def write(task: object, name: str = "task.json") -> Path:
        path = tmp_path / name
        path.write_text(task if isinstance(task, str) else json.dumps(task))
        return path

    return write


@pytest.fixture
def stdin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], str]:
    """Say what standard input holds, and get its name."""

    def say(content: bytes) -> str:
        (tmp_path / "stdin").write_bytes(content)
        monkeypatch.setattr(agent, "STDIN", str(tmp_path / "stdin"))
        return "-"

    return say


async def test_a_task_file_its_output_and_what_tools_do(open_server: OpenServer, written: Write, verb: Verb):
    script = [{"text": "Looking.\n", "calls": CALLS}, {"text": "Found it."}]
    task = written(asked(script=script, tools=["echo"], exit_tools=[ALARM]))
    async with open_server(tools=box()) as server:
        done = await verb(server, "run", task)
    assert (done.status, done.out) == (0, "Looking.\nFound it.\n"), done.err
    for words in ('tool echo {"text":"a"}', 's: echo got {"text":"a"}', "signal alarm {}"):
        assert words in done.err


@on_posix
async def test_a_terminal_is_told_nothing_that_it_would_obey(server: Appliance, written: Write, verb: Verb):
    said = "\x1b]0;owned\x07a\tb\r\x9b2Jc\n"
    task = written(asked(script=[{"text": said}]))
    assert (await verb(server, "run", task)).out == said, "a pipe gets it as it is"
    ours, theirs = os.openpty()
    with trio.fail_after(60):
        await trio.run_process(command(server.port, task), stdout=theirs, capture_stderr=True)
    shown = os.read(ours, 1000).decode()
    os.close(ours)
    os.close(theirs)
    assert shown == "\ufffd]0;owned\ufffda\tb\ufffd2Jc\r\n"


async def test_a_prompt_on_standard_input_and_a_yaml_task(
    open_server: OpenServer, written: Write, verb: Verb, stdin: Callable[[bytes], str]
):
    async with open_server(tools=box()) as server:
        done = await verb(server, "run", stdin(b"Tell me a story"), "--model", "alpha")
        assert (done.status, done.out[:15]) == (0, "Once upon a tim"), done.err
        assert "cut off at the token limit" in done.err, "the fake ends so without a script"
        yaml = 'model: alpha\nuser_prompt: hi\nparams:\n  fake:\n    script: \'[{"text": "yes"}]\'\n'
        task = written(yaml, "task.yaml")
        done = await verb(server, "run", task, "--tool", "echo", "--system", "Be brief.", "--json")
        assert done.status == 0, done.err
        assert json.loads(done.out)["output"] == "yes"


async def test_the_exit_status_tells_the_outcome(server: Appliance, written: Write, verb: Verb):
    done = await verb(server, "run", written(asked(script=[{"text": "so far", "die": 3}])))
    assert (done.status, done.out, "failed: server_died" in done.err) == (1, "so far\n", True)
    for wrong in (asked(model="gamma"), asked(tools=["nothing"])):
        done = await verb(server, "run", written(wrong))
        assert (done.status, "gamma" in done.err or "nothing" in done.err) == (2, True)


@on_posix
async def test_ctrl_c_cancels_the_run(server: Appliance, written: Write):
    task = written(asked(script=STALLS))
    env = {**os.environ, "LLAMA_APPLIANCE_URL": f"http://127.0.0.1:{server.port}"}
    argv = [*command(1, task)[:5], str(task)]
    async with trio.open_nursery() as nursery:
        with trio.fail_after(60):
            process = await nursery.start(partial(trio.run_process, argv, env=env, check=False, stdout=PIPE, stderr=-3))
            assert await process.stdout.receive_some(6) == b"so far"
            process.send_signal(signal.SIGINT)
            assert await process.wait() == 130
            [run] = (await server.ask("GET", "/api/runs")).json["data"]
            assert (await show(server, run["id"]))["state"] == "canceled"


@on_posix
async def test_a_second_ctrl_c_waits_for_nobody(written: Write):
    """Whatever holds the server up: here it reads the request to cancel, and never answers it."""
    cancelled = trio.Event()

    async def silent(stream: trio.SocketStream) -> None:
        head = await stream.receive_some(1 << 16)
        if head.startswith(b"POST"):
            await stream.send_all(ACCEPTED)
        elif head.startswith(b"DELETE"):
            cancelled.set()
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, silent, 0, host="127.0.0.1"))
        argv = command(listeners[0].socket.getsockname()[1], written(asked()))
        with trio.fail_after(60):
            process = await nursery.start(partial(trio.run_process, argv, check=False, stderr=PIPE))
            assert b"run run_1" in await process.stderr.receive_some(100)
            process.send_signal(signal.SIGINT)
            await cancelled.wait()
            process.send_signal(signal.SIGINT)
            assert await process.wait() == 130
            assert b"it may continue" in await process.stderr.receive_some(1000)
        nursery.cancel_scope.cancel()


@on_posix
async def test_a_run_that_nobody_reads_is_cancelled(server: Appliance, written: Write):
    argv = command(server.port, written(asked(fake={"tokens": 100000, "token_delay": 0.01})))
    async with trio.open_nursery() as nursery:
        with trio.fail_after(60):
            process = await nursery.start(partial(trio.run_process, argv, check=False, stdout=PIPE, stderr=-3))
            assert await process.stdout.receive_some(4)
            await process.stdout.aclose()
            assert await process.wait() == 1
            [run] = (await server.ask("GET", "/api/runs")).json["data"]
            assert run["state"] == "canceled"


class Somewhere(NamedTuple):
    port: int


async def test_a_server_that_goes_away_is_named(written: Write, verb: Verb, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(agent, "PAUSE", 0.01)

    async def once(stream: trio.SocketStream) -> None:
        await stream.receive_some(1 << 16)
        await stream.send_all(ACCEPTED)
        await stream.aclose()
        listening.cancel()

    async with trio.open_nursery() as nursery:
        listening = trio.CancelScope()

        async def listen(*, task_status: trio.TaskStatus[list[trio.SocketListener]]) -> None:
            with listening:
                await trio.serve_tcp(once, 0, host="127.0.0.1", task_status=task_status)

        [listener] = await nursery.start(listen)
        port = listener.socket.getsockname()[1]
        done = await verb(Somewhere(port), "run", written(asked()))
    assert done.status == 1
    assert f"no server answers at http://127.0.0.1:{port}" in done.err


TASK = {"": "is empty", "{": "cannot be read as a task", "[1]": "is not a task"}
TASK |= {'{"user_prompt": "hi"}': "does not name a model"}
INPUT = {
    b"hi \xff": "standard input is not UTF-8 text",
    b"": "standard input is empty",
    b"x" * ((16 << 20) + 1): "standard input holds more than the 16 MiB",
    b'{"model": "alpha", "user_prompt": "\\ud83d"}': "both halves",
    b"{model: alpha, user_prompt: hi, params: &a {x: *a}}": "cannot contain itself",
}


async def test_what_is_no_task_says_why(written: Write, verb: Verb, stdin: Callable[[bytes], str]):
    """Before any server is asked."""
    for given, words in (TASK | INPUT).items():
        done = await verb(Somewhere(9), "run", written(given) if isinstance(given, str) else stdin(given))
        assert (done.status, words in done.err) == (2, True), done.err


QUESTIONS = [{"name": "weather", "arguments": '{"place":"here"}', "id": f"w{at}"} for at in range(2)]


async def test_a_question_of_a_run_is_listed_answered_and_followed(server: Appliance, verb: Verb):
    script = [{"text": "Wait. ", "calls": QUESTIONS[:1]}, {"text": "It rains."}]
    run_id = await begin(server, asked("How is the weather?", script=script, tools=[WEATHER]))
    await until_state(server, run_id, "tool_running")
    listed = await verb(server, "ls", "--state", "tool_running")
    assert listed.status == 0, listed.err
    heads, row = listed.out.splitlines()
    assert heads.split() == ["RUN", "STATE", "SINCE", "MODEL", "TURNS", "TOKENS", "TASK"]
    assert row.split()[:2] == [run_id, "tool_running"]
    assert row.endswith("How is the weather?")
    assert f"agent answer {run_id} --call w0 TEXT" in listed.err
    assert (await verb(server, "answer", run_id, "rain")).status == 0
    end = await verb(server, "follow", run_id)
    assert (end.status, end.out.strip()) == (0, "Wait. It rains."), end.err
    assert 'tool weather {"place":"here"}' in end.err
    assert "s: rain" in end.err


async def test_several_questions_need_their_names_and_a_failure_fails_the_run(server: Appliance, verb: Verb):
    run_id = await begin(server, asked(script=[{"calls": QUESTIONS}], tools=[WEATHER], parallel_tool_calls=True))
    await until(lambda: show(server, run_id), lambda found: len(found["pending_tool_calls"]) == 2)  # pyright: ignore[reportArgumentType]
    which = await verb(server, "answer", run_id, "rain")
    assert (which.status, "--call: w0 (weather), w1 (weather)" in which.err) == (2, True), which.err
    assert (await verb(server, "answer", run_id, "no network", "--call", "w1", "--failed")).status == 0
    found = await result(server, run_id)
    assert (found["fail_reason"], "no network" in str(found["detail"])) == ("tool_execution_error", True)
    late = await verb(server, "answer", run_id, "rain")
    assert (late.status, "does not wait" in late.err) == (2, True), late.err
    assert (await verb(server, "follow", run_id)).status == 1


async def test_a_run_is_cancelled(server: Appliance, verb: Verb):
    run_id = await begun(server, asked(script=STALLS))
    done = await verb(server, "cancel", run_id)
    assert (done.status, done.err.strip()) == (0, "canceled")
    assert (await result(server, run_id))["state"] == "canceled"
    assert (await verb(server, "follow", run_id, "--json")).status == 130
    listed = await verb(server, "ls", "--json", "--limit", "1")
    assert [each["id"] for each in json.loads(listed.out)["data"]] == [run_id]


async def test_a_model_that_takes_no_runs_is_named_and_takes_them_again(open_server: OpenServer, verb: Verb):
    async with open_server(tools=box(), runs=RunsConfig(max_restarts=0)) as server:
        assert (await run(server, asked(script=[{"text": "so far", "die": 3}])))["fail_reason"] == "server_died"
        listed = await verb(server, "ls")
        assert "alpha takes no runs: " in listed.err
        assert "agent reset alpha" in listed.err
        assert (await verb(server, "reset", "alpha")).status == 0
        assert "takes no runs" not in (await verb(server, "ls")).err


async def test_the_server_looks_for_plugins_again_and_hides_their_secrets(
    open_server: OpenServer, tmp_path: Path, verb: Verb
):
    async with open_server(plugins=[tmp_path]) as server:
        write_plugin(tmp_path, "good", "def on_response(r, c): pass", {"settings": {"api_key": "hunter2", "size": 3}})
        write_plugin(tmp_path, "bad", "import nothing_of_the_kind", {})
        done = await verb(server, "reload", group="agents")
        assert done.status == 0, done.err
        assert "hunter2" not in done.out
        assert "[REDACTED]" in done.out
        assert "settings.size" in done.out
        assert "/bad: agent.py:1: ModuleNotFoundError" in done.err
