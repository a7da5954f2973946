"""``agent ls``, ``follow``, ``answer``, ``cancel`` and ``reset``, and ``agents reload``."""

from __future__ import annotations

import json
from pathlib import Path

from http_harness import Appliance, OpenServer
from plugin_folders import write_plugin
from runs_harness import STALLS, WEATHER, Verb, asked, begin, begun, box, result, run, show, until_state
from waiting import until

from appliance.core.config.additions import RunsConfig

CALLS = [{"name": "weather", "arguments": '{"place":"here"}', "id": f"w{at}"} for at in range(2)]


async def test_a_question_of_a_run_is_listed_answered_and_followed(server: Appliance, verb: Verb):
    script = [{"text": "Wait. ", "calls": CALLS[:1]}, {"text": "It rains."}]
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
    run_id = await begin(server, asked(script=[{"calls": CALLS}], tools=[WEATHER], parallel_tool_calls=True))
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
