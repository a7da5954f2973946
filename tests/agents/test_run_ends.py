"""Events of runs that outlive a program, runs under way when it ends, and runs that have nothing to say for long."""

from __future__ import annotations

import json
from pathlib import Path

import trio
from http_harness import OpenServer
from runs_harness import ALARM, WEATHER, asked, begin, box, run, told, until_said, until_state


async def test_events_of_an_earlier_program_are_told_anew(
    open_server: OpenServer, tmp_path: Path, fake_llama_server: tuple[str, ...], fake_model: Path
):
    command = " ".join((*fake_llama_server, "-m", str(fake_model), "--port", "${PORT}"))
    config = tmp_path / "config.yaml"
    config.write_text(f"store:\n  path: {tmp_path}/log\nmodels:\n  one:\n    cmd: {json.dumps(command)}\n")
    calls = [{"name": "echo", "arguments": '{"text":"a"}'}, {"name": "alarm", "arguments": "{}"}]
    script = [{"reasoning": "hm", "calls": calls}, {"text": "done"}]
    body = asked(model="one", script=script, tools=["echo"], exit_tools=[ALARM])
    async with open_server(config=config, tools=box()) as server:
        done = await run(server, body)
        assert (done["state"], done["output"]) == ("completed", "done")
        first = (await server.ask("GET", f"/api/runs/{done['id']}/events")).body
    async with open_server(config=config) as server:

        async def read(offset: int) -> bytes:
            return (await server.ask("GET", f"/api/runs/{done['id']}/events?from={offset}")).body

        whole = await read(0)
        events = told(whole)
        assert [name for name, _ in events] == ["reasoning", "tool_call", "tool_result", "signal", "output", "end"]
        assert (events[1][1]["name"], events[2][1]["result"]) == ("echo", 'echo got {"text":"a"}')
        before = {name: value for name, value in told(first) if name in ("signal", "tool_result", "end")}
        assert {name: value for name, value in events if name in before} == before
        records = whole.split(b"\n\n")
        begins = [len(b"\n\n".join([*records[:n], b""])) for n in range(1, len(records))]
        for offset in (*begins, len(whole)):
            assert await read(offset) == whole[offset:]
        last = whole[begins[-2] :]
        for offset in (1, begins[0] + 5, len(first), len(whole) + 1):
            assert await read(offset) == last, "no part of a record is told to who has read another telling"


async def test_silent_runs_have_comments_among_their_events(open_server: OpenServer):
    """They count in offsets: who was cut off and goes on where it was misses nothing."""
    async with open_server(ping_after=0.2) as server:
        stalled = await begin(server, asked(script=[{"text": "so far", "stall": True}]))
        got = b""
        async with server.connect() as client:
            await client.send("GET", f"/api/runs/{stalled}/events?from=0")
            await client.head()
            with trio.fail_after(30):
                while b"so far" not in got or got.count(b": ping\n\n") < 3:
                    got += await client.data()
        assert (await server.ask("DELETE", f"/api/runs/{stalled}")).status == 200
        rest = (await server.ask("GET", f"/api/runs/{stalled}/events?from={len(got)}")).body
        whole = (await server.ask("GET", f"/api/runs/{stalled}/events")).body
        assert got + rest == whole
        assert [name for name, _ in told(whole)] == ["state", "output", "end"]


async def test_a_run_under_way_may_finish_when_the_server_ends(open_server: OpenServer):
    async with open_server(grace=60.0) as server:
        running = await begin(server, asked("slowly, please", fake={"tokens": 40, "token_delay": 0.02}))
        await until_said(server, running)
        server.shutdown.set()
        with trio.fail_after(30):
            await server.ended.wait()
        record = server.owners.agents.find(running).record()
        assert record.outcome.state == "completed", record.outcome


async def test_a_run_that_goes_on_or_waits_for_its_caller_is_ended_with_the_server(open_server: OpenServer):
    async with open_server(grace=0.5) as server:
        running = await begin(server, asked(script=[{"text": "so far", "stall": True}]))
        await until_said(server, running)
        server.shutdown.set()
        with trio.fail_after(20):
            await server.ended.wait()
        agents = server.owners.agents
    record = agents.find(running).record()
    assert (record.outcome.fail_reason, record.outcome.output) == ("worker_restarted", "so far")
    async with open_server(grace=60.0) as server:
        script = [{"calls": [{"name": "weather", "arguments": '{"place":"x"}'}]}]
        waiting = await begin(server, asked(tools=[WEATHER], script=script))
        await until_state(server, waiting, "tool_running")
        server.shutdown.set()
        with trio.fail_after(20):  # its caller cannot come back
            await server.ended.wait()
