"""Every way in which a run fails: its stable reason, what was said until then, and what is left running after it."""

from __future__ import annotations

import sys

import pytest
from command_lines import command_line
from http_harness import CHAT, Appliance, OpenServer, chat
from runs_harness import STALLS, WEATHER, Tools, asked, begin, begun, box, result, run, worker
from swap_harness import Configure
from waiting import until

from appliance.core.config.additions import RunsConfig
from appliance.core.settings import FleetSettings

SAID = "so far"
SHORT = {"connect": 10, "headers": 30, "stall": 2}
CALL = {"name": "echo", "arguments": '{"text":"a"}'}
ASKS = {"name": "weather", "arguments": '{"place":"here"}'}
LOOP = [{"text": SAID + "\nand again" * 4 + "\n", "stall": True}]


def failed(found: dict[str, object], reason: str) -> str:
    assert (found["state"], found["fail_reason"], found["finish_reason"]) == ("failed", reason, "failed"), found
    return str(found["detail"])


def said(**more: object) -> dict[str, object]:
    """A run whose engine says something, and then does this."""
    return asked(script=[{"text": SAID, **more}])


WAYS: dict[str, tuple[str, str, dict[str, object]]] = {
    "no head": ("headers_timeout", "within 1 s", asked(fake={"slow_prompt": 600}, timeouts={"headers": 1})),
    "death": ("server_died", "exit status 3", said(die=3)),
    "death before the head": ("server_died", "", asked(fake={"die_before_head": True})),
    "a cut": ("server_died", "", said(close=True)),
    "no end": ("server_died", "before the answer ended", said(done=False)),
    "not HTTP": ("server_died", "not HTTP", asked(fake={"not_http": True})),
    "refused": ("unknown_error", "refuse", asked(fake={"status": 400})),
    "an error record": ("unknown_error", "told to fail", asked(fake={"error_record": 0})),
    "nonsense": ("unknown_error", "cannot be read", said(raw="data: {not json\n\n" * 50)),
    "an error": ("unknown_error", "boom", said(raw='data: {"error":{"message":"boom"}}\n\n')),
    "an error of its own": ("unknown_error", "boom", said(raw='error: {"code":500,"message":"boom"}\n\n')),
    "one line": ("repeated_line_loop", "and again", asked(script=LOOP, repeated_line_limit=4)),
    "a tool that hangs": ("tool_execution_error", "hang': it took longer than 1 s", said(calls=[{"name": "hang"}])),
    "a tool with a bug": ("tool_execution_error", "break': internal error", said(calls=[{"name": "break"}])),
    "a tool that is not there": ("tool_execution_error", "could not be started", said(calls=[{"name": "refuse"}])),
    "an unknown tool": ("tool_parse_error", "no tool 'nothing'", said(calls=[{"name": "nothing"}])),
    "no object": ("tool_parse_error", "", said(calls=[{"name": "echo", "arguments": "[1]"}])),
    "another type": ("tool_parse_error", "", said(calls=[{"name": "echo", "arguments": '{"text":1}'}])),
    "a caller that is silent": ("tool_execution_error", "no result within 1 s", said(calls=[ASKS])),
}


@pytest.mark.parametrize("engine_dies", [False, True])
async def test_a_run_that_fails_says_why_and_keeps_what_was_said(open_server: OpenServer, engine_dies: bool):
    tools = Tools()
    settings = RunsConfig(tool_timeout=1, caller_timeout=1, max_restarts=9)
    async with open_server(tools=box(tools), runs=settings) as server:
        for way, (reason, detail, body) in WAYS.items():
            if (reason in ("headers_timeout", "server_died") and way not in ("a cut", "no end")) is not engine_dies:
                continue
            found = await run(server, body | {"tools": ["*", WEATHER]})
            assert detail in failed(found, reason), way
            assert str(found["output"]).startswith(SAID if "script" in str(body) else ""), way
            assert tools.under_way == 0
            await server.wait_idle("alpha")
            assert engine_dies or server.state("alpha") == "loaded", "it is not restarted for one bad answer"
            assert (await run(server, asked()))["state"] == "completed"


async def test_silence_in_the_middle_restarts_the_engine_and_keeps_what_was_said(server: Appliance):
    found = await run(server, asked(script=STALLS, timeouts=SHORT))
    assert "nothing for 2 s" in failed(found, "stall_timeout")
    assert found["output"] == SAID
    assert "nothing for 2 s" in await why_it_ended(server)
    assert (await run(server, asked(script=[{"text": "again"}])))["output"] == "again"


async def test_a_record_that_comes_byte_by_byte_is_no_silence(server: Appliance):
    raw = 'data: {"choices":[{"delta":{"content":"slowly"}}]}\n\n'
    script = [{"raw": raw, "dribble": 0.03}]
    found = await run(server, asked(script=script, timeouts={"stall": 1}))
    assert (found["state"], found["output"]) == ("completed", "slowly")
    assert found["timings"]["seconds"] > 1


async def test_loading_and_queueing_count_on_no_clock(open_server: OpenServer):
    settings = FleetSettings(engine_args=("--load-delay", "3"), stop_timeout=2)
    async with open_server(fleet=settings) as server:
        found = await run(server, asked(timeouts={"connect": 2.5, "headers": 2.5, "stall": 2.5}))
        assert found["state"] == "completed"


async def test_a_start_that_fails_counts_once_for_all_who_waited_for_it(open_server: OpenServer):
    settings = FleetSettings(engine_args=("--fail-to-load", "--load-delay", "2"))
    async with open_server(fleet=settings, runs=RunsConfig(slots=3, max_restarts=1)) as server:
        for each in [await begin(server, asked()) for _ in range(3)]:
            failed(await result(server, each), "server_died")
        found = await worker(server)
        assert (found["state"], found["restarts"]) == ("stopped", 1)


async def test_nothing_listens_where_the_server_should_be(open_server: OpenServer, configured: Configure):
    """A command that runs and listens nowhere, ready as soon as it runs."""
    command = command_line([sys.executable, "-c", "import time; time.sleep(600)"]) + " ${PORT}"
    config = configured({"deaf": {"cmd": command, "checkEndpoint": "none"}})
    async with open_server(config=config) as server:
        found = await run(server, asked(model="deaf"))
        assert "does not accept connections" in failed(found, "connect_failed")


async def why_it_ended(server: Appliance) -> str:
    """What is said of the engine when its process is gone."""
    known = server.fleet.known
    await until(lambda: (status := known("alpha")) and status.pid is None, changed=server.fleet.wait_changed)
    status = known("alpha")
    return status.error or ""


@pytest.mark.parametrize("fault", [{"raw": "data: {not json\n\n" * 50}, {"close": True}])
async def test_a_living_engine_that_fails_again_and_again_is_restarted(
    open_server: OpenServer, fault: dict[str, object]
):
    async with open_server(runs=RunsConfig(max_faults=2)) as server:
        bad, good, refused = asked(script=[{"text": SAID, **fault}]), asked(), asked(fake={"status": 400})
        for each in (bad, good, bad, refused):
            await run(server, each)
        assert server.state("alpha") == "loaded", "a good answer starts the count anew, and a refusal does not count"
        await run(server, bad)
        assert "2 answers in a row were of no use" in await why_it_ended(server)
        assert (await worker(server))["restarts"] == 1
        assert (await run(server, good))["state"] == "completed"


async def test_the_budget_of_tool_iterations(open_server: OpenServer):
    async with open_server(tools=box()) as server:
        found = await run(server, said(calls=[CALL]) | {"tools": ["echo"], "max_tool_iterations": 2})
        assert failed(found, "tool_execution_error") == "tool budget exhausted"
        assert found["output"] == SAID * 3
        assert [trace.get("result") for trace in found["tool_trace"]][:2] == ['echo got {"text":"a"}'] * 2


async def test_a_restart_for_one_run_is_told_to_the_others_on_the_same_engine(open_server: OpenServer):
    async with open_server(runs=RunsConfig(slots=3)) as server:
        others = [await begun(server, asked(script=STALLS, timeouts={"stall": 60})) for _ in "ab"]
        found = await run(server, asked(script=STALLS, timeouts={"stall": 2}))
        failed(found, "stall_timeout")
        for each in others:
            found = await result(server, each)
            assert "nothing for 2 s" in failed(found, "worker_restarted")
            assert found["output"] == SAID


async def test_a_cancelled_request_and_an_unload_under_a_run(open_server: OpenServer):
    async with open_server(fleet=FleetSettings(stop_timeout=0.5)) as server:
        cancelled = await begun(server, asked(script=STALLS))
        assert (await server.ask("POST", "/api/inflight/1/cancel")).status < 300
        assert (await result(server, cancelled))["state"] == "canceled"
        running = await begun(server, asked(script=STALLS))
        await server.ask("POST", "/models/unload", {"model": "alpha", "wait": True})
        found = await result(server, running)
        failed(found, "worker_restarted")
        assert found["output"] == SAID


async def test_cancelling_twice_keeps_what_was_said_and_frees_the_slot(open_server: OpenServer):
    async with open_server(runs=RunsConfig(slots=1)) as server:
        running = await begun(server, asked(script=STALLS))
        for _ in "ab":
            answer = await server.ask("DELETE", f"/api/runs/{running}")
            assert (answer.status, answer.json["state"], answer.json["fail_reason"]) == (200, "canceled", "canceled")
        found = await result(server, running)
        assert (found["finish_reason"], found["output"]) == ("canceled", SAID)
        await server.wait_idle("alpha")
        assert (await run(server, asked()))["state"] == "completed"
        assert server.state("alpha") == "loaded", "nothing was restarted"


async def test_too_many_restarts_lock_the_model_out_until_it_is_reset(open_server: OpenServer):
    async with open_server(runs=RunsConfig(max_restarts=1)) as server:
        dies = asked(fake={"die_before_head": True})
        for _ in "ab":
            failed(await run(server, dies), "server_died")
        refused = await server.refuses(503, "worker_failed", "POST", "/api/runs", dies)
        assert "failed 2 times" in refused.error["message"]
        assert "listening on" in refused.error["message"], "the tail of the engine's log is part of it"
        found = await worker(server)
        assert (found["model"], found["state"], found["restarts"]) == ("alpha", "failed", 2)
        assert (await server.ask("POST", CHAT, chat())).status == 200, "only runs are kept out"
        reset = await server.ask("POST", "/api/workers/alpha/reset")
        assert (reset.status, reset.json["state"], reset.json["restarts"]) == (200, "ready", 0)
        assert (await run(server, asked()))["state"] == "completed"
        assert (await server.ask("POST", "/api/workers/gamma/reset")).status == 404


async def test_a_configuration_that_changes_lets_runs_in_again(open_server: OpenServer, configured: Configure):
    async with open_server(config=configured({"one": {}}, runs={"maxRestarts": 0})) as server:
        failed(await run(server, asked(model="one", fake={"die_before_head": True})), "server_died")
        assert (await server.ask("POST", "/api/runs", asked(model="one"))).status == 503
        configured({"one": {}}, runs={"maxRestarts": 2})
        assert (await server.ask("POST", "/api/config/reload")).status == 200
        assert (await run(server, asked(model="one")))["state"] == "completed"
