"""Events of runs that outlive a program, runs under way when it ends, and runs that have nothing to say for long."""

from __future__ import annotations

import trio
from http_harness import OpenServer
from runs_harness import STALLS, WEATHER, asked, begin, begun, owner_of, told, until_state


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
