"""A client that leaves takes its request with it; a server ends when it said it would, whatever its clients do."""

from __future__ import annotations

import json
import os
import random
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import trio
from http_harness import CHAT, LOCAL, Appliance, OpenServer, chat, raw_post
from waiting import PATIENCE, until

from appliance.core.settings import FleetSettings, HttpSettings
from appliance.errors import UsageError
from appliance.http.bytes import listening
from appliance.http.bytes.listening import open_listeners
from appliance.http.server import open_listening

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


LONG = 3 * PATIENCE
"""A grace that nobody may use up."""
FLOOD = chat(stream=True, tokens=10_000, token_size=100_000)


async def test_idle_connections_are_closed_at_once(open_server: OpenServer):
    async with open_server(grace=LONG) as server, server.connect() as quiet, server.connect() as used:
        await used.send("GET", "/health")
        assert (await used.answer()).status == 200
        await quiet.stream.send_all(b"GET /hea")
        await trio.sleep(0.05)
        await server.end()
        assert await used.stream.receive_some(1) == b""


@pytest.mark.parametrize("ready", [False, True])
async def test_a_request_under_way_may_finish(open_server: OpenServer, ready: bool):
    """Also one that needs no task, because its model is there."""
    async with open_server(grace=LONG) as server:
        if ready:
            await server.ask("POST", CHAT, chat())
        async with server.begun(chat(stream=True, tokens=30, token_delay=0.02)) as client:
            server.shutdown.set()
            assert (await client.rest()).endswith(b"data: [DONE]\n\n")
        await server.end()


async def test_a_plain_request_at_the_end_of_the_grace_is_a_503(open_server: OpenServer):
    async with open_server(grace=0.3) as server, server.connect() as client:
        await client.send("POST", CHAT, chat(slow_prompt=90))
        await until(lambda: server.state("alpha") == "loaded" and server.slots_busy("alpha"))
        await server.end()
        answer = await client.answer()
        assert (answer.status, answer.error["reason"]) == (503, "shutting_down")


async def test_what_is_not_read_and_what_is_half_sent_cannot_hold_it(open_server: OpenServer):
    async with (
        open_server(grace=0.5) as server,
        server.begun(FLOOD),
        server.connect() as body,
        server.connect() as unread,
    ):
        await server.wait_full()
        await body.stream.send_all(raw_post(b"{", length=1000))
        await unread.stream.send_all(raw_post(b"", length=10**11))
        assert (await unread.answer()).status == 413
        await trio.sleep(0.05)
        await server.end()


async def test_the_port_is_free_again_at_once(open_server: OpenServer):
    async with open_server(grace=0.2) as server, server.begun(chat(stream=True, stall_after_tokens=2)):
        await server.end()
        async with open_server(listen=(("127.0.0.1", server.port),)) as again:
            assert (await again.ask("GET", "/health")).status == 200


async def test_a_stalled_reader_is_cut_off_and_its_engine_freed(open_server: OpenServer):
    async with open_server(write_stall=0.4) as server, server.begun(FLOOD):
        await server.wait_idle("alpha")


async def refuse(settings: HttpSettings) -> str:
    with trio.fail_after(PATIENCE), pytest.raises(UsageError) as caught:
        async with open_listening(settings):
            pass
    return str(caught.value)


async def test_a_port_in_use_is_told_with_who_has_it(
    server: Appliance, free_port: Callable[[], int], monkeypatch: pytest.MonkeyPatch
):
    words = await refuse(HttpSettings(listen=(("127.0.0.1", server.port),)))
    assert all(said in words for said in (f"127.0.0.1:{server.port}", "another llama-appliance", "--listen")), words
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setattr(listening, "PROBE_TIME", 0.2)  # nothing answers there
        words = await refuse(HttpSettings(listen=(*LOCAL, ("127.0.0.1", taken.getsockname()[1]))))
        assert "another program" in words
    assert "no such address" in await refuse(HttpSettings(listen=(("192.0.2.1", free_port()),)))
    assert "not known" in await refuse(HttpSettings(listen=(("no.such.host.invalid", 1),)))
    assert "65535" in await refuse(HttpSettings(listen=(("127.0.0.1", 99999),)))


@pytest.mark.skipif(not hasattr(socket, "SO_REUSEPORT"), reason="this system does not let processes share a port")
async def test_a_port_is_shared_by_those_who_all_ask_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "PROBE_TIME", 0.2)  # nothing answers there
    (first,) = await open_listeners([("127.0.0.1", 0)], reuse_port=True)
    place = first.bound
    try:
        assert not isinstance(place, tuple) or place[1] > 0
        (second,) = await open_listeners([place], reuse_port=True)
        second.close()
        with pytest.raises(UsageError, match="listens there already"):
            await open_listeners([place])
    finally:
        first.close()
    with pytest.raises(UsageError, match="this machine has no such address"):
        await open_listeners([("203.0.113.7", 0)], reuse_port=True)


@pytest.mark.parametrize("reuse_port", [False, True])
async def test_localhost_is_listened_on_at_both_its_addresses(reuse_port: bool):
    """Some clients try only the first address of a name, and systems differ in which that is."""
    expected = ["127.0.0.1"]
    with socket.socket(socket.AF_INET6) as probe, suppress(OSError):
        probe.bind(("::1", 0))
        expected = ["127.0.0.1", "::1"]
    listeners = await open_listeners([("LocalHost", 0)], reuse_port=reuse_port)
    try:
        assert [each.bound[0] for each in listeners] == expected
        assert len({each.bound[1] for each in listeners}) == 1
        if "::1" in expected and not reuse_port:
            with pytest.raises(UsageError, match="listens there already"):
                await open_listeners([("localhost", listeners[0].bound[1])])
    finally:
        for each in listeners:
            each.close()
    if "::1" in expected and not reuse_port:
        with socket.create_server(("::1", 0), family=socket.AF_INET6) as other:
            port = other.getsockname()[1]
            with pytest.raises(UsageError, match="listens there already"):
                await open_listeners([("localhost", port)])
            (alone,) = await open_listeners([("127.0.0.1", port)])  # nothing of the first attempt is left
            alone.close()
