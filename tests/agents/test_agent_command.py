"""``agent run`` as a process of its own, against a real server with a scripted engine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import trio
from http_harness import Appliance, OpenServer
from runs_harness import ALARM, WEATHER, asked, box, show

END = os.linesep.encode()
CALLS = [{"name": "echo", "arguments": '{"text":"a"}'}, {"name": "alarm", "arguments": "{}"}]


async def agent_run(
    server: Appliance, *argv: str, stdin: str = "", within: float = 60
) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "appliance", "agent", "run", "--url", f"http://127.0.0.1:{server.port}", *argv]
    with trio.fail_after(within):
        return await trio.run_process(
            command, stdin=stdin.encode(), capture_stdout=True, capture_stderr=True, check=False
        )


async def test_a_task_file_its_output_and_what_tools_do(open_server: OpenServer, tmp_path: Path):
    script = [{"text": "Looking.\n", "calls": CALLS}, {"text": "Found it."}]
    task = tmp_path / "task.json"
    task.write_text(json.dumps(asked(script=script, tools=["echo"], exit_tools=[ALARM])))
    async with open_server(tools=box()) as server:
        done = await agent_run(server, str(task))
        assert (done.returncode, done.stdout) == (0, b"Looking.%bFound it.%b" % (END, END)), done.stderr
        told = done.stderr.decode()
        assert 'tool echo {"text":"a"}' in told
        assert 's: echo got {"text":"a"}' in told
        assert "signal alarm {}" in told


@pytest.mark.skipif(os.name == "nt", reason="terminals of POSIX")
async def test_a_terminal_is_told_nothing_that_it_would_obey(open_server: OpenServer, tmp_path: Path):
    said = "\x1b]0;owned\x07a\tb\r\x9b2Jc\n"
    task = tmp_path / "task.json"
    task.write_text(json.dumps(asked(script=[{"text": said}])))
    async with open_server() as server:
        assert (await agent_run(server, str(task))).stdout == said.encode(), "a pipe gets it as it is"
        ours, theirs = os.openpty()
        argv = [sys.executable, "-m", "appliance", "agent", "run", "--url", f"http://127.0.0.1:{server.port}"]
        with trio.fail_after(60):
            await trio.run_process([*argv, str(task)], stdout=theirs, capture_stderr=True)
        shown = os.read(ours, 1000).decode()
        os.close(ours)
        os.close(theirs)
    assert shown == "\ufffd]0;owned\ufffda\tb\ufffd2Jc\r\n"


async def test_a_prompt_on_standard_input_and_a_yaml_task(open_server: OpenServer, tmp_path: Path):
    async with open_server(tools=box()) as server:
        done = await agent_run(server, "-", "--model", "alpha", stdin="Tell me a story")
        assert (done.returncode, done.stdout[:15]) == (0, b"Once upon a tim"), done.stderr
        assert b"cut off at the token limit" in done.stderr, "the fake ends so without a script"
        task = tmp_path / "task.yaml"
        task.write_text('model: alpha\nuser_prompt: hi\nparams:\n  fake:\n    script: \'[{"text": "yes"}]\'\n')
        done = await agent_run(server, str(task), "--tool", "echo", "--system", "Be brief.", "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["output"] == "yes"


async def test_the_exit_status_tells_the_outcome(open_server: OpenServer, tmp_path: Path):
    task = tmp_path / "task.json"
    task.write_text(json.dumps(asked(script=[{"text": "so far", "die": 3}])))
    async with open_server() as server:
        done = await agent_run(server, str(task))
        assert (done.returncode, done.stdout) == (1, b"so far" + END)
        assert b"failed: server_died" in done.stderr
        done = await agent_run(server, "-", "--model", "gamma", stdin="hi")
        assert (done.returncode, b"gamma" in done.stderr) == (2, True)
        done = await agent_run(server, "-", "--model", "alpha", "--tool", "nothing", stdin="hi")
        assert (done.returncode, b"nothing" in done.stderr) == (2, True)


@pytest.mark.skipif(os.name == "nt", reason="Ctrl-C cannot be sent to one process there")
async def test_ctrl_c_cancels_the_run(open_server: OpenServer, tmp_path: Path):
    task = tmp_path / "task.json"
    task.write_text(json.dumps(asked(script=[{"text": "so far", "stall": True}])))
    async with open_server() as server, trio.open_nursery() as nursery:
        argv = [sys.executable, "-m", "appliance", "agent", "run", str(task)]
        start = partial(
            trio.run_process, argv, env={**os.environ, "LLAMA_APPLIANCE_URL": f"http://127.0.0.1:{server.port}"}
        )
        with trio.fail_after(60):
            process = await nursery.start(
                partial(start, check=False, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            )
            assert await process.stdout.receive_some(6) == b"so far"
            process.send_signal(signal.SIGINT)
            assert await process.wait() == 130
            [run] = (await server.ask("GET", "/api/runs")).json["data"]
            assert (await show(server, run["id"]))["state"] == "canceled"


@pytest.mark.skipif(os.name == "nt", reason="Ctrl-C cannot be sent to one process there")
async def test_a_second_ctrl_c_waits_for_nobody(open_server: OpenServer, tmp_path: Path):
    """Whatever holds the server up: here it reads the request to cancel, and never answers it."""
    task = tmp_path / "task.json"
    task.write_text(json.dumps(asked()))
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
        url = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        argv = [sys.executable, "-m", "appliance", "agent", "run", "--url", url, str(task)]
        with trio.fail_after(60):
            process = await nursery.start(partial(trio.run_process, argv, check=False, stderr=subprocess.PIPE))
            assert b"run run_1" in await process.stderr.receive_some(100)
            process.send_signal(signal.SIGINT)
            await cancelled.wait()
            process.send_signal(signal.SIGINT)
            assert await process.wait() == 130
            assert b"it may continue" in await process.stderr.receive_some(1000)
        nursery.cancel_scope.cancel()


@pytest.mark.skipif(os.name == "nt", reason="a pipe's reader is noticed otherwise there")
async def test_a_run_that_nobody_reads_is_cancelled(open_server: OpenServer, tmp_path: Path):
    task = tmp_path / "task.json"
    task.write_text(json.dumps(asked(fake={"tokens": 100000, "token_delay": 0.01})))
    async with open_server() as server, trio.open_nursery() as nursery:
        argv = [
            sys.executable,
            "-m",
            "appliance",
            "agent",
            "run",
            "--url",
            f"http://127.0.0.1:{server.port}",
            str(task),
        ]
        start = partial(trio.run_process, argv, check=False, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        with trio.fail_after(60):
            process = await nursery.start(start)
            assert await process.stdout.receive_some(4)
            await process.stdout.aclose()
            assert await process.wait() == 1
            [run] = (await server.ask("GET", "/api/runs")).json["data"]
            assert run["state"] == "canceled"


async def test_a_server_that_goes_away_is_named(open_server: OpenServer, tmp_path: Path):
    task = tmp_path / "task.json"
    task.write_text(json.dumps(asked()))
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
            url = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
            argv = [sys.executable, "-m", "appliance", "agent", "run", "--url", url, str(task)]
            process = await outer.start(partial(trio.run_process, argv, check=False, stderr=subprocess.PIPE))
        with trio.fail_after(60):
            assert await process.wait() == 1
            done = await process.stderr.receive_some(4096)
    assert f"no server answers at {url}".encode() in done


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (b"hi \xff", "standard input is not UTF-8 text"),
        (b"", "standard input is empty"),
        (b'{"user_prompt": "hi"}', "standard input does not name a model"),
        (b"x" * ((16 << 20) + 1), "standard input holds more than the 16 MiB"),
        (b'{"model": "alpha", "user_prompt": "\\ud83d"}', "other half"),
        (b"{model: alpha, user_prompt: hi, params: &a {x: *a}}", "cannot contain itself"),
    ],
)
async def test_standard_input_that_is_no_task(open_server: OpenServer, given: bytes, words: str):
    argv = [
        sys.executable,
        "-m",
        "appliance",
        "agent",
        "run",
        "-",
        *(("--model", "alpha") if given[:1] in b"hx" else ()),
    ]
    with trio.fail_after(60):
        done = await trio.run_process(argv, stdin=given, capture_stderr=True, check=False)
    assert (done.returncode, words in done.stderr.decode()) == (2, True), done.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("{", "cannot be read as a task"),
        ("[1]", "is not a task"),
        ('{"user_prompt": "hi"}', "does not name a model"),
        (json.dumps({"model": "alpha", "tools": [WEATHER]}), "cannot execute"),
    ],
)
async def test_files_that_are_no_task(open_server: OpenServer, tmp_path: Path, text: str, words: str):
    task = tmp_path / "task.json"
    task.write_text(text)
    async with open_server() as server:
        done = await agent_run(server, str(task))
        assert (done.returncode, words in done.stderr.decode()) == (2, True), done.stderr
