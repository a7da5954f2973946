"""Keys on a real bus of one server: compare-and-set, races, reads, and a watch that outlives the server."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import trio
from bus_harness import boxes, bucket, client, pid_of
from waiting import until

from appliance.features.pool import bus as bus_module
from appliance.features.pool.core.buckets import BucketEntry, BusConflict, BusRefused, NoResponders
from appliance.features.pool.core.nats import BusMessage
from appliance.trio_parts import beside


async def test_a_put_with_a_revision_replaces_that_one_alone(tmp_path: Path):
    async with boxes(tmp_path) as (box,), client(box) as bus:
        keys = await bucket(bus)
        assert await keys.get("k") is None
        first = await keys.put("k", b"one", 0)
        with pytest.raises(BusConflict):
            await keys.put("k", b"two", 0)
        second = await keys.put("k", b"two", first)
        with pytest.raises(BusConflict):
            await keys.put("k", b"three", first)
        assert await keys.get("k") == BucketEntry(value=b"two", revision=second)
        assert await keys.put("k", b"any", None) > second
        await keys.create(1)  # it is there already


async def test_requests_are_answered_refused_or_heard_by_nobody(tmp_path: Path):
    async with boxes(tmp_path) as (box,), client(box) as bus, client(box) as other:
        with pytest.raises(NoResponders, match="nobody"):
            await bus.request("pool.nobody")
        with pytest.raises(BusRefused, match="bytes"):
            await bus.request("pool.order", b"x" * (2 << 20))

        def answer(message: BusMessage) -> None:
            other.publish(message.reply, message.data[::-1] + message.headers["by"].encode())

        with other.subscription("pool.order.*", answer):
            await other.request("$JS.API.INFO")  # the server has read the subscription
            found = await bus.request("pool.order.b1", b"abc", headers={"by": "é"})
            assert found.data == "cbaé".encode()
        await other.request("$JS.API.INFO")
        with pytest.raises(NoResponders):
            await bus.request("pool.order.b1")


async def test_a_caller_that_leaves_breaks_nothing(tmp_path: Path):
    async with boxes(tmp_path) as (box,), client(box) as bus:
        keys = await bucket(bus)
        for number in range(30):
            with trio.move_on_after(0.0001 * number):
                await keys.put("k", b"x" * 100_000, None)
        assert await keys.put("after", b"1", 0)
        assert bus.state.state == "connected"


async def test_a_client_that_only_publishes_is_not_taken_for_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The server has nothing to say to it but answers to its pings."""
    monkeypatch.setattr(bus_module, "PING_EVERY", 0.2)
    monkeypatch.setattr(bus_module, "SILENCE", 1.0)
    async with boxes(tmp_path) as (box,), client(box) as bus:
        lost: list[object] = []

        async def note() -> None:
            await bus.news.wait()
            lost.append(bus.state)

        async with beside(note):
            for _ in range(60):
                assert bus.publish("pool.beat.b1", b"{}")
                await trio.sleep(0.05)
        assert not lost


@pytest.mark.skipif(sys.platform == "win32", reason="it kills by signal")
async def test_a_watch_tells_the_last_value_after_the_server_was_killed(tmp_path: Path):
    seen: list[dict[str, bytes]] = []

    def changed(entries: Mapping[str, BucketEntry]) -> None:
        seen.append({key: entry.value for key, entry in entries.items()})

    async with boxes(tmp_path) as (box,), client(box) as bus:
        keys = await bucket(bus)
        revision = await keys.put("a", b"1", 0)
        async with beside(lambda: keys.watch(changed)):
            await until(lambda: seen, lambda it: it and it[-1] == {"a": b"1"})
            revision = await keys.put("a", b"2", revision)
            await until(lambda: seen[-1], lambda it: it == {"a": b"2"})
            os.kill(pid_of(box.server), signal.SIGKILL)
            await until(lambda: bus.state.state, lambda it: it == "lost", changed=bus.news.wait)
            assert bus.state.problem is not None
            await until(lambda: bus.connected, changed=bus.news.wait)
            async with client(box) as other:
                await (await bucket(other)).put("a", b"3", revision)
            await until(lambda: seen[-1], lambda it: it == {"a": b"3"})
