"""The API of agent runs over a real server and a scripted engine, and runs that outlive a program or are silent."""

from __future__ import annotations

import json
from pathlib import Path

import psutil
import pytest
import trio
from http_harness import CHAT, Appliance, OpenServer, chat
from runs_harness import (
    ALARM,
    STALLS,
    WEATHER,
    Tools,
    asked,
    begin,
    begun,
    box,
    owner_of,
    result,
    run,
    show,
    told,
    until_state,
    worker,
)
from swap_harness import Configure
from waiting import until

from appliance.core.config.additions import RunsConfig
from appliance.core.settings import FleetSettings
from appliance.features.runs.record import Feed

TIMES = ("created_at", "started_at", "finished_at")


async def test_a_run_from_its_beginning_to_its_result(server: Appliance):
    script = [{"reasoning": "let me think", "text": "The answer is 42."}]
    answer = await server.ask("POST", "/api/runs", asked("What?", script=script))
    assert (answer.status, answer.json["state"]) == (202, "running")
    run_id = answer.json["id"]
    assert answer.header("location") == f"/api/runs/{run_id}"
    found = await result(server, run_id)
    assert (found["state"], found["finish_reason"]) == ("completed", "stop")
    assert found["fail_reason"] is found["detail"] is None
    assert (found["output"], found["reasoning"]) == ("The answer is 42.", "let me think")
    assert found["usage"]["completion_tokens"] > 0
    assert found["usage"]["prompt_tokens"] > 0
    status = await show(server, run_id)
    assert status.keys() == {
        *("id", "model", "prompt", "usage", "state", "fail_reason", "detail", "finish_reason", *TIMES),
        *("bytes_received", "chars_received", "last_byte_at", "tool_iterations_used", "tool_iterations_left"),
        *("signals", "pending_tool_calls"),
    }
    assert status["chars_received"] == len("The answer is 42.let me think")
    assert status["bytes_received"] > status["chars_received"]
    assert status["created_at"] <= status["started_at"] <= status["last_byte_at"] <= status["finished_at"]
    assert (status["prompt"], status["usage"]) == ("What?", found["usage"])
    listed = (await server.ask("GET", "/api/runs")).json["data"]
    assert listed == [status]
    [row] = (await server.ask("GET", "/api/metrics/activity")).json["data"]
    assert (row["model"], row["resp_status_code"]) == ("alpha", 200)


async def test_a_list_has_pages_and_filters(open_server: OpenServer):
    async with open_server(tools=box()) as server:

        async def listed(query: str) -> list[object]:
            return [each["prompt"] for each in (await server.good("GET", f"/api/runs?{query}")).json["data"]]

        for at in range(3):
            await run(server, asked(f"Question {at}", script=[{"text": "ok"}]))
        failed = await run(server, asked("Question 3", script=[{"calls": [{"name": "refuse"}]}], tools=["refuse"]))
        assert await listed("limit=2") == ["Question 3", "Question 2"]
        assert await listed(f"limit=2&before={failed['id']}") == ["Question 2", "Question 1"]
        assert await listed("state=failed&state=canceled") == ["Question 3"]
        assert await listed("model=beta") == []
        wrong = await server.ask("GET", "/api/runs?state=done")
        assert (wrong.status, wrong.error["param"]) == (400, "state")


async def test_the_conversation_may_be_given_whole(server: Appliance):
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    given = {"model": "alpha", "messages": messages, "params": {"fake": {"script": '[{"text":"ok"}]'}}}
    assert (await run(server, given))["output"] == "ok"


async def test_a_run_brings_its_own_system_text_or_none(open_server: OpenServer):
    """A call in plain text is one only where the text has told the model about it."""
    script = [{"text": '```tool_call\n{"tool": "echo", "arguments": {}}\n```'}, {"text": "done"}]
    async with open_server(tools=box()) as server:
        for bios, used in (("${call_format}", 1), ("No tools are explained.", 0), (False, 0), (True, 1)):
            body = asked("Question", bios=bios, tools=["echo"], params={"fake": {"script": json.dumps(script)}})
            found = await run(server, body)
            assert (found["state"], len(found["tool_trace"])) == ("completed", used)
            assert ("tool_call" in found["output"]) is not bool(used)


async def test_tools_of_the_server_and_exit_tools(open_server: OpenServer):
    tools = Tools()
    given = {"echo": '{"text":"a"}', "alarm": '{"when":"now"}', "missing": "{}"}
    calls = [{"name": name, "arguments": text, "id": name} for name, text in given.items()]
    script = [{"text": "Looking. ", "calls": calls}, {"text": "Done."}]
    async with open_server(tools=box(tools)) as server:
        found = await run(server, asked(script=script, tools=["echo", "missing"], exit_tools=[ALARM]))
        assert (found["state"], found["output"]) == ("completed", "Looking. Done.")
        assert tools.calls == [("echo", {"text": "a"}), ("missing", {})]
        [signal] = found["signals"]
        assert (signal["name"], signal["arguments"], signal["raw"]) == ("alarm", {"when": "now"}, '{"when":"now"}')
        used = [(trace["name"], trace["result"]) for trace in found["tool_trace"]]
        assert used == [("echo", 'echo got {"text":"a"}'), ("missing", "nothing found")]
        status = await show(server, found["id"])
        assert (status["tool_iterations_used"], status["tool_iterations_left"]) == (1, 7)


@pytest.mark.parametrize(("parallel", "calls", "most"), [(False, 3, 1), (True, 3, 3), (True, 40, 16)])
async def test_calls_of_one_turn_run_in_order_or_at_once(
    open_server: OpenServer, parallel: bool, calls: int, most: int
):
    tools = Tools()
    script = [{"calls": [{"name": "slow"}] * calls}, {"text": "Done."}]
    async with open_server(tools=box(tools)) as server:
        found = await run(server, asked(script=script, tools=["slow"], parallel_tool_calls=parallel))
        assert (found["output"], len(tools.calls), tools.most) == ("Done.", calls, most)


async def test_the_caller_executes_its_own_tools(server: Appliance):
    call = {"name": "weather", "arguments": '{"place":"here"}', "id": "w"}
    script = [{"text": "Wait. ", "calls": [call]}, {"text": "It rains."}]
    run_id = await begin(server, asked(script=script, tools=[WEATHER]))
    status = await until_state(server, run_id, "tool_running")
    assert status["pending_tool_calls"] == [{"id": "w", "name": "weather", "arguments": {"place": "here"}}]
    early = await server.refuses(409, "not_ready", "GET", f"/api/runs/{run_id}/result")
    assert (early.json["partial"]["output"], early.json["partial"]["state"]) == ("Wait. ", "tool_running")
    path = f"/api/runs/{run_id}/tool_results"
    wrong = {"results": [{"tool_call_id": "v", "content": "?"}]}
    await server.refuses(400, None, "POST", path, wrong, words=f"call 'v' is not pending; run {run_id} waits for w")
    await server.refuses(400, None, "POST", path, {"result": []}, words="did you mean 'results'")
    for neither in ({}, {"contents": "?"}, {"content": "?", "error": "!"}):
        bad = {"results": [{"tool_call_id": "w", **neither}]}
        await server.refuses(400, None, "POST", path, bad, words="error")
    other = await begin(server, asked(script=script, tools=[WEATHER]))
    await until_state(server, other, "tool_running")
    broken = {"results": [{"tool_call_id": "w", "error": "no network"}]}
    await server.ask("POST", f"/api/runs/{other}/tool_results", broken)
    failed = await result(server, other)
    assert (failed["fail_reason"], "no network" in failed["detail"]) == ("tool_execution_error", True)
    taken = await server.ask("POST", path, {"results": [{"tool_call_id": "w", "content": {"rain": True}}]})
    assert taken.status == 200
    found = await result(server, run_id)
    assert found["output"] == "Wait. It rains."
    assert found["tool_trace"][0]["result"] == '{"rain": true}'
    await server.refuses(409, "conflict", "POST", path, {"results": [{"tool_call_id": "w", "content": "again"}]})


async def test_events_can_be_read_from_any_offset_while_they_come_and_later(open_server: OpenServer):
    script = [{"reasoning": "hm", "text": "Once upon ", "calls": [{"name": "echo", "id": "e"}]}, {"text": "a time."}]
    async with open_server(tools=box()) as server:
        run_id = await begin(server, asked(script=script, tools=["echo"]))
        live = await server.ask("GET", f"/api/runs/{run_id}/events")
        assert live.header("content-type") == "text/event-stream"
        later = await server.ask("GET", f"/api/runs/{run_id}/events?from=0")
        assert later.body == live.body
        events = told(live.body)
        names = [name for name, _ in events]
        assert (names[0], names[-1]) == ("state", "end")
        for wanted, words in (("output", "Once upon a time."), ("reasoning", "hm")):
            assert "".join(str(event["text"]) for name, event in events if name == wanted) == words
        assert [event["state"] for name, event in events if name == "state"] == ["running", "tool_running", "running"]
        [call] = [event for name, event in events if name == "tool_call"]
        assert call == {"id": "e", "name": "echo", "arguments": {}, "runner": "server"}
        [got] = [event for name, event in events if name == "tool_result"]
        assert (got["id"], got["result"]) == ("e", "echo got {}")
        assert events[-1][1]["state"] == "completed"
        for offset in (1, 7, len(live.body) // 2, len(live.body)):
            part = await server.ask("GET", f"/api/runs/{run_id}/events?from={offset}")
            assert part.body == live.body[offset:]
        numbered = await server.ask("GET", f"/api/runs/{run_id}/events?sse_ids=1")
        assert b"id: " in numbered.body
        assert (await server.ask("GET", f"/api/runs/{run_id}/events?from=x")).status == 400


async def test_events_that_are_not_held_any_more(open_server: OpenServer):
    async with open_server(runs=RunsConfig(event_bytes=1024)) as server:
        run_id = await begin(server, asked(script=[{"text": "word " * 400}]))
        found = await until_state(server, run_id, "completed")
        assert found["chars_received"] == 2000
        await server.refuses(400, None, "GET", f"/api/runs/{run_id}/events", words="are not held any more")
        assert len((await server.ask("GET", f"/api/runs/{run_id}/result")).json["output"]) == 2000


@pytest.mark.parametrize("read", [0, 1])
async def test_a_reader_that_is_overtaken_is_told_so_in_a_record(read: int):
    feed = Feed("run_1", 0.0, 1024)
    reader = feed.reader(0)
    for number in range(read):
        feed.say("output", {"text": str(number)})
        assert await reader.receive()
    feed.say("output", {"text": "word " * 400})
    feed.end()
    assert await reader.receive() == b""
    assert b"runs.eventBytes" in (reader.closing() or b"")


MISTAKES: list[tuple[dict[str, object], str]] = [
    ({"max_tool_iteration": 3}, "did you mean 'max_tool_iterations'"),
    ({"surprise": 3}, "'surprise'"),
    ({"tools": ["eco"]}, "did you mean 'echo'"),
    ({"tools": ["mcp:nowhere"]}, "mcp:nowhere"),
    ({"tools": ["echo", {"function": {"name": "echo"}}]}, "two tools called 'echo'"),
    ({"tools": [{"function": {}}]}, "`name`"),
    ({"tools": [{"function": {"name": "f", "parameters": {"type": 3}}}]}, "not a schema"),
    ({"tools": [3]}, "tools"),
    ({"exit_tools": [{"name": ""}]}, "of length >= 1 - at `$.name`"),
    ({"params": {"messages": []}}, "params.messages"),
    ({"params": {"stream": False}}, "params.stream"),
    ({"timeouts": {"stal": 1}}, "stal"),
    ({"timeouts": {"stall": 0}}, "stall"),
    ({"max_tool_iterations": -1}, "max_tool_iterations"),
    ({"messages": [{"role": "user", "content": "x"}]}, "not both"),
    ({"user_prompt": ""}, "nothing to answer"),
    ({"user_prompt": None, "messages": []}, "empty"),
    ({"user_prompt": None, "messages": [{"content": "x"}]}, "message 0"),
    ({"model": ""}, "'model' is empty"),
    ({"bios": "It is ${tim}."}, "${tim}, which is not known; did you mean 'time'"),
    ({"bios": 3}, "bios"),
]


async def test_mistakes_are_told_by_name_and_begin_nothing(open_server: OpenServer):
    async with open_server(tools=box()) as server:
        for change, words in MISTAKES:
            body = {key: value for key, value in {**asked(), **change}.items() if value is not None}
            answer = await server.ask("POST", "/api/runs", body)
            assert (answer.status, answer.error["type"]) == (400, "invalid_request_error"), answer.body
            assert words in answer.error["message"]
            assert answer.error["param"] in (*change, "messages"), "a page shows it at its field"
        assert (await server.ask("GET", "/api/runs")).json == {"data": []}


async def test_unknown_models_and_runs(server: Appliance):
    await server.refuses(404, "model_not_found", "POST", "/api/runs", asked(model="alpa"))
    paths = (("GET", ""), ("GET", "/result"), ("GET", "/events"), ("POST", "/tool_results"), ("DELETE", ""))
    for method, path in paths:
        await server.refuses(
            404, "not_found", method, f"/api/runs/run_0{path}", {"results": []} if method == "POST" else None
        )
    assert (await server.ask("POST", "/api/runs", b"{")).status == 400


async def test_a_long_conversation_is_taken_and_a_longer_one_is_not(server: Appliance):
    assert (await run(server, asked("x" * (3 << 20), script=[{"text": "long"}])))["output"] == "long"
    answer = await server.refuses(413, "body_too_large", "POST", "/api/runs", asked("x" * (17 << 20)))
    assert str(16 << 20) in answer.error["message"]
    assert "--max-body" not in answer.error["message"], "which changes nothing here"


async def test_slots_are_counted_by_model_whatever_name_it_is_asked_by(open_server: OpenServer):
    async with open_server(runs=RunsConfig(slots=1)) as server:
        first = await begin(server, asked(script=STALLS))
        refused = await server.refuses(503, "no_slot_available", "POST", "/api/runs", asked(model="al"))
        assert int(refused.header("retry-after") or 0) >= 1
        other = await begin(server, asked(model="beta", script=STALLS))
        for each in (first, other):
            await server.ask("DELETE", f"/api/runs/{each}")
        await until(lambda: server.ask("POST", "/api/runs", asked(model="al")), lambda answer: answer.status == 202)


async def test_a_bounded_queue_in_order_and_cancelling_within_it(open_server: OpenServer):
    async with open_server(runs=RunsConfig(slots=1, queue=2)) as server:
        first = await begin(server, asked(script=STALLS))
        second, third = await begin(server, asked()), await begin(server, asked())
        assert (await server.ask("POST", "/api/runs", asked())).error["reason"] == "no_slot_available"
        assert (await show(server, second))["started_at"] is None
        found = await worker(server)
        assert (found["running"], found["waiting"], found["slots"]) == (1, 2, 1)
        assert (await server.ask("DELETE", f"/api/runs/{second}")).json["state"] == "canceled"
        assert (await result(server, second))["output"] == ""
        await server.ask("DELETE", f"/api/runs/{first}")
        assert (await result(server, third))["state"] == "completed"


async def test_results_are_kept_for_a_bounded_time_and_in_a_bounded_number(open_server: OpenServer):
    async with open_server(runs=RunsConfig(keep_max=2)) as server:
        ids = [str((await run(server, asked()))["id"]) for _ in range(3)]
        listed = (await server.ask("GET", "/api/runs")).json["data"]
        assert [each["id"] for each in listed] == [ids[2], ids[1]]
        assert (await server.ask("GET", f"/api/runs/{ids[0]}")).status == 404
    async with open_server(runs=RunsConfig(keep=0)) as server:
        run_id = await begin(server, asked())
        await until(lambda: server.ask("GET", f"/api/runs/{run_id}"), lambda answer: answer.status == 404)


@pytest.mark.slow
async def test_results_are_kept_in_a_bounded_size(open_server: OpenServer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("appliance.features.runs.owner.MAX_KEPT", 100_000)
    async with open_server(runs=RunsConfig(event_bytes=1024)) as server:

        async def finished(size: int) -> str:
            run_id = await begin(server, asked(script=[{"text": "x" * size}]))
            await until_state(server, run_id, "completed")
            return run_id

        ids = [await finished(10_000) for _ in range(12)]
        kept = [each["id"] for each in (await server.ask("GET", "/api/runs")).json["data"]]
        assert 5 < len(kept) < 11
        assert kept == ids[::-1][: len(kept)]
        large = await finished(200_000)
        assert [each["id"] for each in (await server.ask("GET", "/api/runs")).json["data"]] == [large]


async def test_definitions_of_tools_are_bounded(server: Appliance):
    parameters = {"type": "object", "description": "x" * (1 << 20)}
    body = asked(tools=[{"type": "function", "function": {"name": "f", "parameters": parameters}}])
    await server.refuses(400, None, "POST", "/api/runs", body, words="are larger than 1048576 bytes")


@pytest.mark.slow
async def test_a_hundred_runs_starve_nobody_and_leave_nothing(open_server: OpenServer):
    """Two at a time on an engine with four slots: an interactive request among them waits for none of them."""
    process = psutil.Process()
    async with open_server(runs=RunsConfig(slots=2, queue=98), fleet=FleetSettings(stop_timeout=2)) as server:
        assert (await run(server, asked()))["state"] == "completed"
        files = process.num_fds() if hasattr(process, "num_fds") else 0
        tasks = trio.lowlevel.current_statistics().tasks_living
        stalled = [await begun(server, asked(script=STALLS)) for _ in range(2)]
        quick = [await begin(server, asked(script=[{"text": f"run {n}"}])) for n in range(98)]
        assert (await server.ask("POST", "/api/runs", asked())).status == 503
        for _ in range(5):
            assert (await server.ask("POST", CHAT, chat())).status == 200
        assert {(await show(server, each))["state"] for each in stalled} == {"running"}
        assert {(await show(server, each))["started_at"] for each in quick} == {None}, "no slot was free for them"
        for each in stalled:
            await server.ask("DELETE", f"/api/runs/{each}")
        for n, each in enumerate(quick):
            assert (await result(server, each))["output"] == f"run {n}"
        await until(lambda: _settled(server, process, files, tasks), within=30)


def _settled(server: Appliance, process: psutil.Process, files: int, tasks: int) -> bool:
    leased = any(status.leases or status.waiting for status in server.fleet.status())
    open_files = process.num_fds() if files else 0
    return not leased and open_files <= files and trio.lowlevel.current_statistics().tasks_living <= tasks


async def test_results_outlive_the_program(open_server: OpenServer, configured: Configure, tmp_path: Path):
    config = configured({"one": {}}, store={"path": str(tmp_path / "log.sqlite")})
    async with open_server(config=config) as server:
        done = await run(server, asked(model="one", script=[{"text": "kept"}]))
        running = await begun(server, asked(model="one", script=STALLS))
    async with open_server(config=config) as server:
        again = (await server.ask("GET", f"/api/runs/{done['id']}/result")).json
        assert again == done
        found = (await server.ask("GET", f"/api/runs/{running}/result")).json
        assert (found["state"], found["fail_reason"], found["output"]) == ("failed", "worker_restarted", "so far")
        whole, *others = [
            (await server.ask("GET", f"/api/runs/{done['id']}/events?from={offset}")).body for offset in (0, 7, 9999)
        ]
        [(name, end)] = told(whole)
        assert (name, end["state"], set(others)) == ("end", "completed", {whole}), "whatever was read before"
        assert (await server.ask("GET", f"/api/runs/{done['id']}/events?from={len(whole)}")).body == b""
        assert len((await server.ask("GET", "/api/runs")).json["data"]) == 2


async def test_a_run_on_a_model_of_another_server(open_server: OpenServer, configured: Configure):
    """Its clocks run, and nothing here is restarted for it."""
    async with open_server() as there:
        peer = {"proxy": f"http://127.0.0.1:{there.port}", "models": ["alpha"]}
        config = configured({}, peers={"there": peer})
        async with open_server(config=config) as here:
            assert (await run(here, asked(script=[{"text": "from afar"}])))["output"] == "from afar"
            stalled = await run(here, asked(script=STALLS, timeouts={"stall": 2}))
            assert (stalled["fail_reason"], stalled["output"]) == ("stall_timeout", "so far")
            died = await run(here, asked(script=[{"text": "x", "die": 1}]))
            assert (died["state"], died["output"]) == ("failed", "x")
            used = await worker(here)
            assert (used["model"], used["restarts"]) == ("there/alpha", 0)
        assert there.owners.fleet.known("alpha") is not None
    async with open_server(config=config) as alone:
        found = await run(alone, asked())
        assert (found["state"], found["fail_reason"]) == ("failed", "connect_failed"), found


async def test_a_selector_runs_on_what_it_chooses(open_server: OpenServer, configured: Configure):
    config = configured({"one": {}}, selectors={"any": {"targets": ["one"]}})
    async with open_server(config=config) as server:
        assert (await run(server, asked(model="any", script=[{"text": "chosen"}])))["output"] == "chosen"
        assert server.state("one") == "loaded"


async def test_silent_runs_have_comments_among_their_events(open_server: OpenServer):
    """They count in offsets: who was cut off and goes on where it was misses nothing."""
    async with open_server(ping_after=0.2) as server:
        stalled = await begin(server, asked(script=STALLS))
        async with server.connect() as client:
            await client.send("GET", f"/api/runs/{stalled}/events?from=0")
            with trio.fail_after(30):
                got = await client.until(b"so far")
                got += await client.until(b": ping\n\n", 3)
        assert (await server.ask("DELETE", f"/api/runs/{stalled}")).status == 200
        rest = (await server.ask("GET", f"/api/runs/{stalled}/events?from={len(got)}")).body
        whole = (await server.ask("GET", f"/api/runs/{stalled}/events")).body
        assert got + rest == whole
        assert [name for name, _ in told(whole)] == ["state", "output", "end"]


async def test_a_run_under_way_may_finish_when_the_server_ends(open_server: OpenServer):
    async with open_server(grace=60.0) as server:
        running = await begun(server, asked("slowly, please", fake={"tokens": 40, "token_delay": 0.02}))
        await server.end()
        record = owner_of(server).find(running).record()
        assert record.outcome.state == "completed", record.outcome


async def test_a_run_that_goes_on_or_waits_for_its_caller_is_ended_with_the_server(open_server: OpenServer):
    async with open_server(grace=0.5) as server:
        running = await begun(server, asked(script=STALLS))
        await server.end()
        agents = owner_of(server)
    record = agents.find(running).record()
    assert (record.outcome.fail_reason, record.outcome.output) == ("worker_restarted", "so far")
    async with open_server(grace=60.0) as server:
        script = [{"calls": [{"name": "weather", "arguments": '{"place":"x"}'}]}]
        waiting = await begin(server, asked(tools=[WEATHER], script=script))
        await until_state(server, waiting, "tool_running")
        await server.end()  # its caller cannot come back
