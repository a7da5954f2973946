"""A client that waits for its model is told its place and its time: in headers, comments, events, and at the end."""

from __future__ import annotations

import json

import h11
import trio
from http_harness import CHAT, Appliance, Client, OpenServer, chat
from waiting import until

from appliance.core.settings import FleetSettings

ONE_BY_ONE = FleetSettings(models_max=1, stop_timeout=2.0, engine_args=("--load-delay", "0.5"))
BUSY = chat("beta", stream=True, tokens=1000, token_delay=0.05)
"""Beta answers until the client leaves."""


async def known(server: Appliance) -> None:
    """Both models have been loaded, so that their times are known; beta is there."""
    for name in ("alpha", "beta"):
        answer = await server.ask("POST", CHAT, chat(name))
        assert answer.header("X-Queue-Position") in ("0", "1")  # the other one's process may have had to go first
        assert float(answer.header("X-Queue-Wait") or 0) >= 0.5
        assert answer.header("X-Queue-Expected") is None
    assert (await server.ask("POST", CHAT, chat("beta"))).header("X-Queue-Position") is None


def headers(head: h11.Response) -> dict[str, str]:
    return {name.decode().lower(): value.decode() for name, value in head.headers}


async def comment(client: Client, prefix: str) -> str:
    while not (record := (await client.record()).decode()).startswith(prefix):
        pass
    return record


async def test_a_stream_hears_its_place_and_what_is_to_be_expected(open_server: OpenServer):
    async with open_server(fleet=ONE_BY_ONE, ping_after=0.1) as server:
        await known(server)
        async with server.begun(BUSY) as beta, server.connect() as alpha:
            await alpha.send("POST", CHAT, chat("alpha", stream=True))
            told = headers(await alpha.head())
            assert told["x-queue-position"] == "1"
            assert float(told["x-queue-expected"]) > 0.4
            assert (await comment(alpha, ": ping; queue_position=1; expected_wait=")).rpartition("=")[2] != "0.0"
            await beta.stream.aclose()
            await comment(alpha, ": ping; expected_wait=")  # it loads now
            await alpha.until(b"data: [DONE]")


async def test_a_plain_answer_says_at_the_end_how_long_it_waited_and_where(open_server: OpenServer):
    async with open_server(fleet=ONE_BY_ONE) as server:
        await known(server)
        async with server.begun(BUSY) as beta, server.connect() as first, server.connect() as second:
            for number, client in enumerate((first, second), 1):
                await client.send("POST", CHAT, chat("alpha"))
                await until(lambda: server.fleet.queued, lambda queued, number=number: queued == number)
            began = trio.current_time()
            await trio.sleep(0.3)  # they wait for so long, and then for the load
            await beta.stream.aclose()
            for client, place in ((first, "1"), (second, "2")):
                told = headers(await client.head())
                assert told["x-queue-position"] == place
                assert 0.8 <= float(told["x-queue-wait"]) <= trio.current_time() - began + 5


async def test_clients_of_ollama_are_told_in_the_same_headers(open_server: OpenServer):
    async with open_server(fleet=ONE_BY_ONE, ping_after=0.1) as server:
        await known(server)
        answer = await server.ask("POST", "/api/chat", chat("alpha"))
        assert answer.header("content-type") == "application/x-ndjson"
        assert answer.header("X-Queue-Position") in ("0", "1")
        assert float(answer.header("X-Queue-Expected") or 0) > 0
        assert all(json.loads(line) for line in answer.body.splitlines())
