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
        assert (done.returncode, done.stdout) == (0, b"Looking.\nFound it.\n"), done.stderr
        told = done.stderr.decode()
        assert 'tool echo {"text":"a"}' in told
        assert 's: echo got {"text":"a"}' in told
        assert "signal alarm {}" in told


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
        assert (done.returncode, done.stdout) == (1, b"so far\n")
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


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("{", "cannot be read as a task"),
        ("[1]", "is no task"),
        ('{"user_prompt": "hi"}', "names no model"),
        (json.dumps({"model": "alpha", "tools": [WEATHER]}), "executes none"),
    ],
)
async def test_files_that_are_no_task(open_server: OpenServer, tmp_path: Path, text: str, words: str):
    task = tmp_path / "task.json"
    task.write_text(text)
    async with open_server() as server:
        done = await agent_run(server, str(task))
        assert (done.returncode, words in done.stderr.decode()) == (2, True), done.stderr
