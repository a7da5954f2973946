"""``agent run`` as a process of its own, against a real server with a scripted engine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import trio
from http_harness import Appliance, OpenServer
from runs_harness import ALARM, asked, box, show

END = os.linesep.encode()
CALLS = [{"name": "echo", "arguments": '{"text":"a"}'}, {"name": "alarm", "arguments": "{}"}]


PIPE = subprocess.PIPE


def command(port: int, *argv: object) -> list[str]:
    return [*(sys.executable, "-m", "appliance", "agent", "run"), "--url", f"http://127.0.0.1:{port}", *map(str, argv)]


async def agent_run(server: Appliance, *argv: object, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    with trio.fail_after(60):
        run = partial(trio.run_process, capture_stdout=True, capture_stderr=True, check=False)
        return await run(command(server.port, *argv), stdin=stdin)


Write = Callable[..., Path]


@pytest.fixture
def written(tmp_path: Path) -> Write:
    def write(task: object, name: str = "task.json") -> Path:
        path = tmp_path / name
        path.write_text(task if isinstance(task, str) else json.dumps(task))
        return path

    return write


async def test_a_task_file_its_output_and_what_tools_do(open_server: OpenServer, written: Write):
    script = [{"text": "Looking.\n", "calls": CALLS}, {"text": "Found it."}]
    task = written(asked(script=script, tools=["echo"], exit_tools=[ALARM]))
    async with open_server(tools=box()) as server:
        done = await agent_run(server, task)
        assert (done.returncode, done.stdout) == (0, b"Looking.%bFound it.%b" % (END, END)), done.stderr
        told = done.stderr.decode()
        assert 'tool echo {"text":"a"}' in told
        assert 's: echo got {"text":"a"}' in told
        assert "signal alarm {}" in told


@pytest.mark.skipif(os.name == "nt", reason="terminals of POSIX")
async def test_a_terminal_is_told_nothing_that_it_would_obey(open_server: OpenServer, written: Write):
    said = "\x1b]0;owned\x07a\tb\r\x9b2Jc\n"
    task = written(asked(script=[{"text": said}]))
    async with open_server() as server:
        assert (await agent_run(server, task)).stdout == said.encode(), "a pipe gets it as it is"
        ours, theirs = os.openpty()
        with trio.fail_after(60):
            await trio.run_process(command(server.port, task), stdout=theirs, capture_stderr=True)
        shown = os.read(ours, 1000).decode()
        os.close(ours)
        os.close(theirs)
    assert shown == "\ufffd]0;owned\ufffda\tb\ufffd2Jc\r\n"


async def test_a_prompt_on_standard_input_and_a_yaml_task(open_server: OpenServer, written: Write):
    async with open_server(tools=box()) as server:
        done = await agent_run(server, "-", "--model", "alpha", stdin=b"Tell me a story")
        assert (done.returncode, done.stdout[:15]) == (0, b"Once upon a tim"), done.stderr
        assert b"cut off at the token limit" in done.stderr, "the fake ends so without a script"
        yaml = 'model: alpha\nuser_prompt: hi\nparams:\n  fake:\n    script: \'[{"text": "yes"}]\'\n'
        task = written(yaml, "task.yaml")
        done = await agent_run(server, task, "--tool", "echo", "--system", "Be brief.", "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["output"] == "yes"


async def test_the_exit_status_tells_the_outcome(open_server: OpenServer, written: Write):
    task = written(asked(script=[{"text": "so far", "die": 3}]))
    async with open_server() as server:
        done = await agent_run(server, task)
        assert (done.returncode, done.stdout) == (1, b"so far" + END)
        assert b"failed: server_died" in done.stderr
        done = await agent_run(server, "-", "--model", "gamma", stdin=b"hi")
        assert (done.returncode, b"gamma" in done.stderr) == (2, True)
        done = await agent_run(server, "-", "--model", "alpha", "--tool", "nothing", stdin=b"hi")
        assert (done.returncode, b"nothing" in done.stderr) == (2, True)


@pytest.mark.skipif(os.name == "nt", reason="Ctrl-C cannot be sent to one process there")
async def test_ctrl_c_cancels_the_run(open_server: OpenServer, written: Write):
    task = written(asked(script=[{"text": "so far", "stall": True}]))
    async with open_server() as server, trio.open_nursery() as nursery:
        env = {**os.environ, "LLAMA_APPLIANCE_URL": f"http://127.0.0.1:{server.port}"}
        argv = [*command(1)[:5], str(task)]
        with trio.fail_after(60):
            process = await nursery.start(partial(trio.run_process, argv, env=env, check=False, stdout=PIPE, stderr=-3))
            assert await process.stdout.receive_some(6) == b"so far"
            process.send_signal(signal.SIGINT)
            assert await process.wait() == 130
            [run] = (await server.ask("GET", "/api/runs")).json["data"]
            assert (await show(server, run["id"]))["state"] == "canceled"


@pytest.mark.skipif(os.name == "nt", reason="Ctrl-C cannot be sent to one process there")
async def test_a_second_ctrl_c_waits_for_nobody(open_server: OpenServer, written: Write):
    """Whatever holds the server up: here it reads the request to cancel, and never answers it."""
    task = written(asked())
    begun = json.dumps({"id": "run_1", "state": "running"}).encode()
    cancelled = trio.Event()

    async def silent(stream: trio.SocketStream) -> None:
        head = await stream.receive_some(1 << 16)
        if head.startswith(b"POST"):
            await stream.send_all(b"HTTP/1.1 202 Accepted\r\nContent-Length: %d\r\n\r\n%b" % (len(begun), begun))
        elif head.startswith(b"DELETE"):
            cancelled.set()
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, silent, 0, host="127.0.0.1"))
        argv = command(listeners[0].socket.getsockname()[1], task)
        with trio.fail_after(60):
            process = await nursery.start(partial(trio.run_process, argv, check=False, stderr=PIPE))
            assert b"run run_1" in await process.stderr.receive_some(100)
            process.send_signal(signal.SIGINT)
            await cancelled.wait()
            process.send_signal(signal.SIGINT)
            assert await process.wait() == 130
            assert b"it may continue" in await process.stderr.receive_some(1000)
        nursery.cancel_scope.cancel()


@pytest.mark.skipif(os.name == "nt", reason="a pipe's reader is noticed otherwise there")
async def test_a_run_that_nobody_reads_is_cancelled(open_server: OpenServer, written: Write):
    task = written(asked(fake={"tokens": 100000, "token_delay": 0.01}))
    async with open_server() as server, trio.open_nursery() as nursery:
        argv = command(server.port, task)
        with trio.fail_after(60):
            process = await nursery.start(partial(trio.run_process, argv, check=False, stdout=PIPE, stderr=-3))
            assert await process.stdout.receive_some(4)
            await process.stdout.aclose()
            assert await process.wait() == 1
            [run] = (await server.ask("GET", "/api/runs")).json["data"]
            assert run["state"] == "canceled"


async def test_a_server_that_goes_away_is_named(open_server: OpenServer, written: Write):
    task = written(asked())
    begun = json.dumps({"id": "run_1", "state": "running"}).encode()

    async def once(stream: trio.SocketStream) -> None:
        await stream.receive_some(1 << 16)
        await stream.send_all(b"HTTP/1.1 202 Accepted\r\nContent-Length: %d\r\n\r\n%b" % (len(begun), begun))
        await stream.aclose()
        nursery.cancel_scope.cancel()

    done = None
    async with trio.open_nursery() as outer:
        async with trio.open_nursery() as nursery:
            listeners = await nursery.start(partial(trio.serve_tcp, once, 0, host="127.0.0.1"))
            argv = command(listeners[0].socket.getsockname()[1], task)
            process = await outer.start(partial(trio.run_process, argv, check=False, stderr=PIPE))
        with trio.fail_after(60):
            assert await process.wait() == 1
            done = await process.stderr.receive_some(4096)
    assert f"no server answers at {argv[-2]}".encode() in done


TASK = {
    "empty": ("", "is empty"),
    "no task": ("{", "cannot be read as a task"),
    "a list": ("[1]", "is not a task"),
    "no model": ('{"user_prompt": "hi"}', "does not name a model"),
}
INPUT = {
    "no text": (b"hi \xff", "standard input is not UTF-8 text"),
    "empty input": (b"", "standard input is empty"),
    "too much": (b"x" * ((16 << 20) + 1), "standard input holds more than the 16 MiB"),
    "half a letter": (b'{"model": "alpha", "user_prompt": "\\ud83d"}', "both halves"),
    "itself": (b"{model: alpha, user_prompt: hi, params: &a {x: *a}}", "cannot contain itself"),
}


@pytest.mark.parametrize("mistake", [*TASK, *INPUT])
async def test_what_is_no_task_says_why(open_server: OpenServer, written: Write, mistake: str):
    given, words = (TASK | INPUT)[mistake]
    async with open_server() as server:
        if isinstance(given, str):
            done = await agent_run(server, written(given))
        else:
            model = ("--model", "alpha") if given[:1] in b"hx" else ()
            done = await agent_run(server, "-", *model, stdin=given)
        assert (done.returncode, words in done.stderr.decode()) == (2, True), done.stderr
