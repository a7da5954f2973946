"""The registry of requests under way."""

from __future__ import annotations

import itertools

import msgspec
import trio
from http_harness import CHAT, request

from appliance.core.records.progress import AnswerSoFar, Held
from appliance.errors import RequestCancelled
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
