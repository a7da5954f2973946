"""``agent ls``, ``follow``, ``answer``, ``cancel`` and ``reset``, and ``agents reload``, as processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import trio
from http_harness import Appliance, OpenServer
from plugin_folders import write_plugin
from runs_harness import WEATHER, asked, begin, box, result, run, show, until_said, until_state
from waiting import until

from appliance.core.config.additions import RunsConfig

CALLS = [{"name": "weather", "arguments": '{"place":"here"}', "id": f"w{at}"} for at in range(2)]


async def verb(server: Appliance, *words: str, group: str = "agent") -> subprocess.CompletedProcess[bytes]:
    address = ("--url", f"http://127.0.0.1:{server.port}")
    argv = [sys.executable, "-m", "appliance", group, words[0], *address, *words[1:]]
    with trio.fail_after(60):
        return await trio.run_process(argv, capture_stdout=True, capture_stderr=True, check=False)


async def test_a_question_of_a_run_is_listed_followed_and_answered(open_server: OpenServer):
    async with open_server() as server, trio.open_nursery() as nursery:
        script = [{"text": "Wait. ", "calls": CALLS[:1]}, {"text": "It rains."}]
        run_id = await begin(server, asked("How is the weather?", script=script, tools=[WEATHER]))
        await until_state(server, run_id, "tool_running")
        listed = await verb(server, "ls", "--state", "tool_running")
        assert listed.returncode == 0, listed.stderr
        heads, row = listed.stdout.decode().splitlines()
        assert heads.split() == ["RUN", "STATE", "SINCE", "MODEL", "TURNS", "TOKENS", "TASK"]
        assert row.split()[:2] == [run_id, "tool_running"]
        assert row.endswith("How is the weather?")
        assert f"agent answer {run_id} --call w0 TEXT" in listed.stderr.decode()
        followed: list[subprocess.CompletedProcess[bytes]] = []

        async def follow() -> None:
            followed.append(await verb(server, "follow", run_id))

        nursery.start_soon(follow)
        answered = await verb(server, "answer", run_id, "rain")
        assert answered.returncode == 0, answered.stderr
        assert (await result(server, run_id))["output"] == "Wait. It rains."
    [end] = followed
    assert (end.returncode, end.stdout.strip()) == (0, b"Wait. It rains."), end.stderr
    assert b'tool weather {"place":"here"}' in end.stderr
    assert b"s: rain" in end.stderr


async def test_several_questions_need_their_names_and_a_failure_fails_the_run(open_server: OpenServer):
    async with open_server() as server:
        run_id = await begin(server, asked(script=[{"calls": CALLS}], tools=[WEATHER], parallel_tool_calls=True))
        await until(lambda: show(server, run_id), lambda found: len(found["pending_tool_calls"]) == 2)  # pyright: ignore[reportArgumentType]
        which = await verb(server, "answer", run_id, "rain")
        assert (which.returncode, b"--call: w0 (weather), w1 (weather)" in which.stderr) == (2, True), which.stderr
        failed = await verb(server, "answer", run_id, "no network", "--call", "w1", "--failed")
        assert failed.returncode == 0, failed.stderr
        found = await result(server, run_id)
        assert (found["fail_reason"], "no network" in str(found["detail"])) == ("tool_execution_error", True)
        late = await verb(server, "answer", run_id, "rain")
        assert (late.returncode, b"does not wait" in late.stderr) == (2, True), late.stderr
        assert (await verb(server, "follow", run_id)).returncode == 1


async def test_a_run_is_cancelled(open_server: OpenServer):
    async with open_server() as server:
        run_id = await begin(server, asked(script=[{"text": "so far", "stall": True}]))
        await until_said(server, run_id)
        done = await verb(server, "cancel", run_id)
        assert (done.returncode, done.stderr.strip()) == (0, b"canceled")
        assert (await result(server, run_id))["state"] == "canceled"
        assert (await verb(server, "follow", run_id, "--json")).returncode == 130
        listed = await verb(server, "ls", "--json", "--limit", "1")
        assert [each["id"] for each in json.loads(listed.stdout)["data"]] == [run_id]


async def test_a_model_that_takes_no_runs_is_named_and_takes_them_again(open_server: OpenServer):
    async with open_server(tools=box(), runs=RunsConfig(max_restarts=0)) as server:
        assert (await run(server, asked(script=[{"text": "so far", "die": 3}])))["fail_reason"] == "server_died"
        listed = await verb(server, "ls")
        assert b"alpha takes no runs: " in listed.stderr
        assert b"agent reset alpha" in listed.stderr
        assert (await verb(server, "reset", "alpha")).returncode == 0
        assert b"takes no runs" not in (await verb(server, "ls")).stderr


async def test_the_server_looks_for_plugins_again_and_hides_their_secrets(open_server: OpenServer, tmp_path: Path):
    async with open_server(plugins=[tmp_path]) as server:
        write_plugin(tmp_path, "good", "def on_response(r, c): pass", {"settings": {"api_key": "hunter2", "size": 3}})
        write_plugin(tmp_path, "bad", "import nothing_of_the_kind", {})
        done = await verb(server, "reload", group="agents")
        assert done.returncode == 0, done.stderr
        shown = done.stdout.decode()
        assert "hunter2" not in shown
        assert "[REDACTED]" in shown
        assert "settings.size" in shown
        assert b"/bad: agent.py:1: ModuleNotFoundError" in done.stderr
