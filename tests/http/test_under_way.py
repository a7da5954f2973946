"""What is under way: the registry of requests, and what ``GET /api/inflight`` tells of each phase and slot."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import msgspec
import trio
from http_harness import CHAT, Appliance, Client, OpenServer, chat, request
from waiting import PATIENCE, until

from appliance.core.records.progress import AnswerSoFar, Held
from appliance.core.settings import FleetSettings
from appliance.errors import RequestCancelled
from appliance.http.control.slots import KEPT
from appliance.traffic.inflight import HELD_CHANGES, UPDATE_INTERVAL, InFlight, InFlightChange

HEADERS = [("authorization", "Bearer secret"), ("user-agent", "tester/1.0 (any)")]
SESSIONS = [("x-session-id", "one"), ("X-Session-ID", "two")]
ASK = request(CHAT, *HEADERS, *SESSIONS, client="10.0.0.1")


class Answer:
    def __init__(self) -> None:
        self.passed = 0

    def so_far(self) -> AnswerSoFar:
        return AnswerSoFar(2.0, self.passed)


def ignore(why: Exception) -> None:
    """Somebody wants a request to end that cannot."""


def shapes(changes: list[InFlightChange]):
    return [msgspec.to_builtins(change) for change in changes]


async def test_what_is_shown_of_a_request(autojump_clock: trio.testing.MockClock):
    inflight = InFlight()
    with inflight.begin(ASK, "alpha", {"selector": "s"}, cancel=ignore) as entry:
        await trio.sleep(1.5)
        answer = Answer()
        entry.started([(b"content-type", b"text/event-stream"), (b"set-cookie", b"secret")], answer)
        answer.passed += 10
        [shown] = msgspec.to_builtins(inflight.snapshot())
        assert shown.pop("timestamp").endswith("Z")
        assert shown == {
            "id": "1",
            "model": "alpha",
            "req_path": "/v1/chat/completions",
            "method": "POST",
            "req_headers": {"Authorization": "[REDACTED]", "User-Agent": "tester/1.0 (any)", "X-Session-Id": "one"},
            "remote_ip": "10.0.0.1",
            "resp_headers": {"Content-Type": "text/event-stream", "Set-Cookie": "[REDACTED]"},
            "resp_bytes": 10,
            "elapsed_ms": 1500,
            "metadata": {"selector": "s"},
            "client": "tester/1.0, 10.0.0.1",
            "phase": "answering",
        }
    assert inflight.snapshot() == []


class InQueue:
    def __init__(self) -> None:
        self.at: int | None = 2
        self.left: float | None = 1.5
        self.waited = 0.0

    def held(self) -> Held | None:
        if self.left is None:
            return None
        return "loading" if self.at is None else "waiting"

    def position(self) -> int | None:
        return self.at

    def expected(self) -> float | None:
        return self.left


async def test_a_place_in_the_queue_is_told_when_it_changes(autojump_clock: trio.testing.MockClock):
    inflight, place = InFlight(), InQueue()
    with inflight.follow() as reader, inflight.begin(ASK, "alpha", cancel=ignore) as entry:
        reader.take()
        entry.place = place
        told: list[tuple[object, ...]] = []
        for place.at, place.left in ((2, 1.5), (1, 0.4), (None, 0.2), (None, 0.1), (None, None)):
            with trio.move_on_after(2 * UPDATE_INTERVAL):
                await reader.wait()
                [change] = shapes(reader.take())
                request = change["request"]
                told.append((request["phase"], request.get("queue_position"), request.get("expected_wait_ms")))
        # Where only the time has changed, nothing is told.
        assert told == [("waiting", 2, 1500), ("waiting", 1, 400), ("loading", None, 200), ("working", None, None)]


async def test_a_reader_begins_with_a_snapshot_and_hears_every_change():
    inflight = InFlight()
    with inflight.follow() as reader:
        assert shapes(reader.take()) == [{"operation": "snapshot"}]
        with inflight.begin(ASK, "alpha", cancel=ignore) as entry:
            [change] = shapes(reader.take())
            assert (change["operation"], change["request"]["id"]) == ("upsert", entry.id)
            assert "metadata" not in change["request"]
            entry.started([(b"X-A", b"b")], Answer())
            [change] = shapes(reader.take())
            assert change["request"]["resp_headers"] == {"X-A": "b"}
            assert reader.take() == []
            with inflight.follow() as second:
                [other] = shapes(second.take())
                assert [request["id"] for request in other["requests"]] == [entry.id]
                assert second.take() == []
        assert shapes(reader.take()) == [{"operation": "remove", "id": "1"}]


async def test_bytes_are_told_now_and_again_and_the_last_ones_too(autojump_clock: trio.testing.MockClock):
    inflight = InFlight()
    heard: list[tuple[float, int]] = []
    began = trio.current_time()

    async def listen() -> None:
        reader.take()
        while True:
            await reader.wait()
            for change in reader.take():
                if not isinstance(change.request, msgspec.UnsetType):
                    heard.append((round(trio.current_time() - began, 2), change.request.resp_bytes))

    with inflight.follow() as reader:
        async with trio.open_nursery() as nursery:
            with inflight.begin(ASK, "alpha", cancel=ignore) as entry:
                answer = Answer()
                entry.started((), answer)
                nursery.start_soon(listen)
                for _ in range(100):
                    answer.passed += 1
                    await trio.sleep(0.01)
                await trio.sleep(5)  # it stalls
            nursery.cancel_scope.cancel()
    assert heard[-1][1] == 100
    assert heard[-1][0] <= 1 + UPDATE_INTERVAL
    pauses = [b - a for (a, _), (b, _) in itertools.pairwise(heard)]
    assert len(heard) in (4, 5)
    assert min(pauses) >= UPDATE_INTERVAL - 0.011


async def test_a_reader_that_fell_behind_gets_a_snapshot():
    inflight = InFlight()
    with inflight.follow() as reader, inflight.begin(ASK, "alpha", cancel=ignore):
        reader.take()
        for _ in range(HELD_CHANGES):
            with inflight.begin(ASK, "beta", cancel=ignore):
                pass
        [change] = reader.take()
        assert change.operation == "snapshot"
        assert [request.model for request in change.requests] == ["alpha"]
        assert reader.take() == []


async def test_cancelling_tells_the_request_why():
    inflight = InFlight()
    told: list[Exception] = []
    with inflight.begin(ASK, "alpha", cancel=told.append) as entry:
        assert inflight.cancel(entry.id)
    assert [type(why) for why in told] == [RequestCancelled]
    assert not inflight.cancel(entry.id)
    assert len(told) == 1


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
