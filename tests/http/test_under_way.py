"""What is under way, as ``GET /api/inflight`` tells it: each phase of a request, and its slot."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import trio
from http_harness import CHAT, Appliance, Client, OpenServer, chat
from waiting import PATIENCE, until

from appliance.core.settings import FleetSettings
from appliance.http.control.slots import KEPT

NOW = "/api/inflight"
ONE_BY_ONE = FleetSettings(models_max=1, stop_timeout=2.0, engine_args=("--load-delay", "0.5", "--parallel", "2"))
AGENT = [("User-Agent", "scripted/2.0 (a test)")]


async def told(server: Appliance) -> list[dict[str, Any]]:
    return (await server.ask("GET", NOW)).json["requests"]


async def test_a_request_is_seen_waiting_loading_reading_answering_and_gone(open_server: OpenServer):
    async with open_server(fleet=ONE_BY_ONE) as server, server.connect() as alpha:
        assert await told(server) == []
        await server.ask("POST", CHAT, chat("alpha"))  # the time of its load is known then
        body = chat("alpha", stream=True, slow_prompt=1, tokens=5000, token_delay=0.02)
        async with server.begun(chat("beta", stream=True, tokens=5000, token_delay=0.05)) as beta:
            await alpha.send("POST", CHAT, body | {"return_progress": True}, AGENT)
            waiting = (await until_phase(server, "waiting"))[1]
            assert waiting["queue_position"] == 1
            assert waiting["client"] == "scripted/2.0, 127.0.0.1"
            assert waiting["expected_wait_ms"] >= 0
            await beta.stream.aclose()
        assert (await until_phase(server, "loading"))[0]["model"] == "alpha"
        reading = (await until_phase(server, "prompt"))[0]
        assert 0 <= reading["prompt_processed"] < reading["prompt_total"]
        assert "tokens" not in reading
        answering = (await until_phase(server, "answering"))[0]
        assert answering["tokens"] >= 1
        assert answering["tokens_per_second"] > 0
        assert answering["resp_bytes"] > 0
        await until(lambda: server.slots_busy("alpha"))
        [request] = await until_told(server, lambda all: "slot" in all[0] and "tokens_estimated" not in all[0])
        assert request["slot"] in (0, 1)
        await server.good("POST", f"/api/inflight/{request['id']}/cancel")
        await until_told(server, lambda requests: not requests)


async def test_a_whole_answer_is_told_by_its_slot(server: Appliance, client: Client):
    await server.ask("POST", CHAT, chat("alpha"))
    await client.send("POST", CHAT, chat("alpha", slow_prompt=2, tokens=5000, token_delay=0.02))
    reading = (await until_phase(server, "prompt"))[0]
    assert reading["slot"] >= 0
    assert "prompt_total" not in reading  # a slot tells only how much it has read
    assert (await until_phase(server, "answering"))[0]["tokens"] >= 1


async def test_without_slots_less_is_told_and_tokens_are_estimated(open_server: OpenServer):
    fleet = FleetSettings(stop_timeout=2.0, engine_args=("--no-slots",))
    async with open_server(fleet=fleet) as server, AsyncExitStack() as stack:
        await server.ask("POST", CHAT, chat("alpha"))
        whole = await stack.enter_async_context(server.connect())
        await whole.send("POST", CHAT, chat("alpha", tokens=5000, token_delay=0.02))
        assert "slot" not in (await until_phase(server, "working"))[0]
        stream = chat("alpha", stream=True, tokens=5000, token_delay=0.005)
        begun = await stack.enter_async_context(server.begun(stream))
        await begun.until(b"data:", 200)
        request = (await told(server))[1]
        assert (request["phase"], request["tokens_estimated"]) == ("answering", True)
        assert 180 <= request["tokens"] <= 2 * 200 + 100  # more has come since the client's last look


async def test_the_engine_is_asked_for_slots_once_a_second_however_many_look(server: Appliance):
    busy = chat("alpha", stream=True, tokens=100_000, token_delay=0.001)
    async with server.begun(busy):
        began, counts = trio.current_time(), set[int]()

        async def look() -> None:
            counts.update(request["tokens"] for request in await told(server))

        for _ in range(5):
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(look)
        assert len(counts) <= 1 + (trio.current_time() - began) / KEPT  # a slot has more with every question


async def test_a_page_hears_how_many_are_under_way_and_the_slowest_phase(open_server: OpenServer):
    path = "/api/conversations/events"
    async with open_server(fleet=ONE_BY_ONE) as server, server.events(path) as page, AsyncExitStack() as stack:
        long = chat("beta", stream=True, tokens=5000, token_delay=0.05)
        beta = await stack.enter_async_context(server.begun(long))
        await until_heard(page, {"count": 1, "phase": "answering"})
        async with server.connect() as alpha:
            await alpha.send("POST", CHAT, chat("alpha", stream=True))
            await until_heard(page, {"count": 2, "phase": "waiting"})
        await until_heard(page, {"count": 1, "phase": "answering"})
        await beta.stream.aclose()
        await until_heard(page, {"count": 0, "phase": None})


async def until_heard(page: Client, wanted: dict[str, Any]) -> None:
    """Until the data of an ``under_way`` are these; others may come before it, of a load or a prompt."""
    with trio.fail_after(PATIENCE):
        heard: object = None
        while heard != wanted:
            event = json.loads((await page.record()).partition(b"data: ")[2] or b"{}")
            heard = event["data"] if event.get("event") == "under_way" else None


async def until_phase(server: Appliance, phase: str) -> list[dict[str, Any]]:
    return await until_told(server, lambda requests: any(one["phase"] == phase for one in requests))


async def until_told(server: Appliance, is_so: Callable[[list[dict[str, Any]]], object]) -> list[dict[str, Any]]:
    return await until(partial(told, server), is_so)
