"""The program as its own client: the same pipeline, errors as exceptions, and nothing left of who leaves."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from http_harness import CHAT, Appliance, OpenServer, chat
from waiting import until

from appliance.core.settings import FleetSettings
from appliance.errors import ModelFailedToStart, ModelNotFound, RouteNotFound, ShuttingDown, UpstreamFailed

LIMIT = 1 << 20


@asynccontextmanager
async def asking(server: Appliance, path: str = CHAT, **request: object) -> AsyncGenerator[Any]:
    with trio.fail_after(20):
        async with server.opened.kernel.inward.ask(
            path, json.dumps(chat(**request)).encode(), origin="a test"
        ) as reply:
            yield reply


async def take(server: Appliance, got: bytearray, **request: object) -> None:
    """Everything that comes of a streamed request."""
    async with asking(server, stream=True, **request) as reply:
        while data := await reply.receive():
            got += data


class Heard:
    """A watch that writes down what it hears."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def granted(self, model: str | None) -> None:
        self.words.append(f"granted {model}")

    def connected(self) -> None:
        self.words.append("connected")

    def received(self) -> None:
        if "received" not in self.words:
            self.words.append("received")


async def test_an_answer_is_the_same_as_a_clients(server: Appliance):
    watch = Heard()
    async with server.opened.kernel.inward.ask(
        CHAT, json.dumps(chat()).encode(), origin="a test", watch=watch
    ) as reply:
        assert (reply.status, reply.event_stream) == (200, False)
        inward = json.loads(await reply.read(LIMIT))
    assert inward["choices"] == (await server.ask("POST", CHAT, chat())).json["choices"]
    assert watch.words == ["granted alpha", "connected"]
    first, second = await server.rows()
    assert {row["model"] for row in (first, second)} == {"alpha"}
    assert first["tokens"] == second["tokens"]


async def test_a_stream_comes_as_it_is_made_and_a_slow_asker_holds_nobody_up(server: Appliance):
    async with asking(server, stream=True, tokens=60, token_size=200_000) as slow:
        assert slow.event_stream
        await slow.receive()
        assert (await server.ask("POST", CHAT, chat())).status == 200
        await server.wait_held_up("alpha")
        got = 0
        while data := await slow.receive():
            got += len(data)
        assert got > 60 * 200_000
        assert server.fleet.known("alpha").leases == 0


async def test_who_waits_is_shown_in_flight_under_the_name_given(server: Appliance):
    async with asking(server, stream=True, stall_after_tokens=2) as reply:
        await reply.receive()
        assert [request.remote_ip for request in server.traffic.inflight.snapshot()] == ["a test"]
    await server.wait_idle("alpha")


async def test_errors_are_exceptions_and_are_written_down_as_for_a_client(server: Appliance):
    for error, path, asked in (
        (ModelNotFound, CHAT, {"model": "gamma"}),
        (RouteNotFound, "/models/load", {}),
        (UpstreamFailed, CHAT, {"not_http": True}),
    ):
        with pytest.raises(error):
            async with asking(server, path, **asked):
                pytest.fail("that was no answer")
    assert {row["resp_status_code"] for row in await server.rows()} == {404, 502}


async def test_a_death_in_the_middle_is_told_after_what_had_come(server: Appliance):
    got = bytearray()
    with pytest.raises(UpstreamFailed, match="died"):
        await take(server, got, die_after_tokens=3)
    assert got.count(b"data: ") >= 3


async def test_a_model_that_does_not_start_is_an_exception(open_server: OpenServer):
    async with open_server(fleet=FleetSettings(engine_args=("--fail-to-load",))) as server:
        with pytest.raises(ModelFailedToStart, match="alpha"):
            async with asking(server):
                pytest.fail("it cannot start")


async def test_what_the_block_raises_leaves_it_as_itself_and_ends_the_request(server: Appliance):
    async def fail() -> None:
        async with asking(server, stream=True, stall_after_tokens=2) as reply:
            await reply.receive()
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await fail()
    await server.wait_idle("alpha")
    assert [row["resp_status_code"] for row in await server.rows()] == [499]


async def test_leaving_and_cancelling_at_any_moment_gives_the_lease_back(server: Appliance):
    await server.ask("POST", CHAT, chat())
    for n in range(40):
        with trio.move_on_after(0.002 * n):
            await take(server, bytearray(), tokens=50, token_delay=0.002)
    await server.wait_idle("alpha")
    assert server.owners.fleet.known("alpha").leases == 0
    await until(server.rows, lambda found: len(found) >= 2, within=10)


async def test_a_longer_answer_than_allowed_is_an_error_and_the_engines_own_refusal_an_answer(server: Appliance):
    async with asking(server, status=400) as reply:
        assert reply.status == 400
        assert json.loads(await reply.read(LIMIT))["error"]["fake"] is True
    with pytest.raises(UpstreamFailed, match="longer than 10 bytes"):
        async with asking(server) as reply:
            await reply.read(10)


async def test_requests_end_with_the_server(open_server: OpenServer):
    async with open_server(grace=0.2) as server:
        got = bytearray()

        async def end_it() -> None:
            await until(lambda: got)
            server.shutdown.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(end_it)
            with pytest.raises(ShuttingDown):
                await take(server, got, stall_after_tokens=2)
