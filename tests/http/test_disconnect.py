"""A client that leaves takes its request with it, in whatever phase it is, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path

import pytest
import trio
from http_harness import CHAT, Appliance, OpenServer, chat, raw_post
from waiting import until

from appliance.core.settings import FleetSettings

WAITS = {
    "its model loads": ("waiting", {"fleet": FleetSettings(engine_args=("--load-delay", "1"))}),
    "its model is not started yet": ("waiting", {"fleet": FleetSettings(start_delay=1000.0)}),
    "its model is held for it": ("leases", {"held_for": 1000.0}),
}


def used(server: Appliance, model_id: str, field: str = "leases") -> int:
    return getattr(server.fleet.known(model_id), field, 0)


@pytest.mark.parametrize(("stream", "ping_after"), [(True, 0.05), (False, 15.0)])
async def test_while_the_prompt_is_worked_on(open_server: OpenServer, stream: bool, ping_after: float):
    async with open_server(ping_after=ping_after) as server:
        async with server.connect() as client:
            await client.send("POST", CHAT, chat(stream=stream, slow_prompt=90))
            await until(lambda: used(server, "alpha") and server.slots_busy("alpha"))
        await server.wait_idle("alpha")
        assert (await server.ask("POST", CHAT, chat())).status == 200


async def test_in_the_middle_of_a_flood_that_is_not_read(server: Appliance):
    async with server.begun(chat(stream=True, tokens=10_000, token_size=100_000)):
        await server.wait_full()
    await server.wait_idle("alpha")


@pytest.mark.parametrize(("field", "settings"), WAITS.values(), ids=WAITS)
async def test_while_it_waits(open_server: OpenServer, field: str, settings: dict[str, object]):
    async with open_server(**settings) as server:
        async with server.connect() as client:
            await client.send("POST", CHAT, chat())
            await until(lambda: used(server, "alpha", field))
        await until(lambda: not used(server, "alpha", "waiting") + used(server, "alpha"))
        assert (await server.ask("POST", "/models/unload", {"model": "alpha", "wait": True})).status == 200
        assert server.state("alpha") == "unloaded"


async def test_while_queued_behind_a_busy_model(open_server: OpenServer):
    busy = chat("alpha", stream=True, stall_after_tokens=1)
    async with open_server(fleet=FleetSettings(models_max=1)) as server, server.begun(busy):
        async with server.connect() as client:
            await client.send("POST", CHAT, chat("beta"))
            await until(lambda: used(server, "beta", "waiting"))
        await until(lambda: not used(server, "beta", "waiting"))
        assert server.state("alpha") == "loaded"


async def test_in_the_middle_of_its_body(server: Appliance):
    async with server.connect() as client:
        await client.stream.send_all(raw_post(b'{"model":"alpha"', length=1000))
        await trio.sleep(0.05)
    await trio.sleep(0.1)
    assert server.state("alpha") == "unknown"
    text = (await server.ask("GET", "/metrics")).body.decode()
    assert 'requests_total{route="/v1/chat/completions",status="499"} 1' in text
    assert "llama_appliance_request_bodies_bytes 0" in text


async def test_with_a_second_request_pipelined(server: Appliance):
    async with server.connect() as client:
        await client.stream.send_all(2 * raw_post(json.dumps(chat(stream=True, slow_prompt=90)).encode()))
        await until(lambda: used(server, "alpha"))
    await server.wait_idle("alpha")


def open_files() -> int:
    return len(list(Path(f"/proc/{os.getpid()}/fd").iterdir())) if sys.platform == "linux" else 0


@pytest.mark.slow
async def test_a_thousand_abandoned_requests_leave_nothing_behind(open_server: OpenServer):
    chance = random.Random(7)
    async with open_server(ping_after=0.02) as server:
        assert (await server.ask("POST", CHAT, chat())).status == 200
        assert (await server.ask("GET", "/health")).status == 200
        await server.wait_idle("alpha")
        tasks, files = trio.lowlevel.current_statistics().tasks_living, open_files()

        async def abandon(number: int, places: trio.CapacityLimiter) -> None:
            how = [
                chat(stream=True, tokens=50, token_delay=0.01),
                chat(stream=number % 2 == 0, slow_prompt=5),
                chat(stream=True, tokens=5000, token_size=1000),
                chat("nope"),
            ][number % 4]
            async with places, server.connect() as client:
                wire = raw_post(json.dumps(how).encode())
                ends = (0, 5, wire.find(b"{"), len(wire) - 1, *[len(wire)] * 8)
                await client.stream.send_all(wire[: chance.choice(ends)])
                await trio.sleep(chance.random() * 0.05)

        places = trio.CapacityLimiter(40)
        with trio.fail_after(40):
            async with trio.open_nursery() as nursery:
                for number in range(1000):
                    nursery.start_soon(abandon, number, places)
        await server.wait_idle("alpha")
        await until(lambda: trio.lowlevel.current_statistics().tasks_living <= tasks)
        await until(open_files, lambda count: count <= files)
        text = (await server.ask("GET", "/metrics")).body.decode()
        assert "llama_appliance_requests_under_way 1" in text
        assert "llama_appliance_request_bodies_bytes 0" in text
        assert (await server.ask("POST", CHAT, chat())).status == 200
