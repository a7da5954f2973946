"""Clients of the bus: keys and watches, logins, and certificates."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
from bus_harness import box_files, boxes, bucket, client, new_pool, tls_of
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from port_blocks import port_block
from waiting import until, wait

from appliance.errors import UsageError
from appliance.features.pool import bus as bus_module
from appliance.features.pool.bus import Bus, open_bus
from appliance.features.pool.bus_server import server_program
from appliance.features.pool.core.buckets import BucketEntry, BusConflict, BusRefused, NoResponders
from appliance.features.pool.core.bus_words import BusAccess, BusPlace, external_access
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


async def problem_of(bus: Bus) -> str:
    """The id of the problem for which there is no connection."""
    await until(lambda: bus.state.problem, changed=bus.news.wait)
    assert bus.state.state == "lost"
    assert bus.state.problem.fix
    return bus.state.problem.id


async def test_the_kinds_of_a_wrong_code_are_told_apart(tmp_path: Path):
    async with boxes(tmp_path) as (box,):
        stranger = new_pool()
        theirs = box_files(stranger, "b1")
        for problem, access, tls in (
            ("bus-authority", box.access(), tls_of(theirs)),
            ("bus-key", box.access(seed=stranger.bus_seed, nkey=stranger.bus_user), tls_of(box.files)),
            ("bus-certificate", box.access(), tls_of(box.files, certified=False)),
            ("bus-certificate", box.access(), tls_of(theirs, trusted=box.files.ca)),
        ):
            async with open_bus(access, tls) as bus:
                assert await problem_of(bus) == problem
        async with client(box):
            pass


async def test_a_server_that_is_not_there_and_one_that_is_no_bus(tmp_path: Path):
    listener = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener[0].socket.getsockname()[1]

    async def http(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, http, listener)
        for tls in ("off", "first"):
            access = BusAccess(places=(BusPlace(host="127.0.0.1", port=port),), client="b1", tls=tls)
            async with open_bus(access, None) as bus:
                assert await problem_of(bus) == "bus-garbage"
        nursery.cancel_scope.cancel()
    async with open_bus(BusAccess(places=(BusPlace(host="127.0.0.1", port=port),), client="b1"), None) as bus:
        assert await problem_of(bus) == "bus-unreachable"


@contextmanager
def foreign_server(folder: Path, login: str) -> Generator[int]:
    """The port of a server that is not the program's own, and wants this login."""
    port = port_block(1)
    config = folder / "foreign.conf"
    config.write_text(
        f'listen: "127.0.0.1:{port}"\njetstream {{ store_dir: "{folder / "store"}" }}\n{login}\n', "utf-8"
    )
    with subprocess.Popen([server_program(), "-c", str(config)], stderr=subprocess.DEVNULL) as server:
        try:

            def listens() -> bool:
                with socket.socket() as probe:
                    return probe.connect_ex(("127.0.0.1", port)) == 0

            wait(listens)
            yield port
        finally:
            server.kill()


@pytest.mark.parametrize("login", ["user", "token", "late TLS"])
async def test_a_bus_that_is_there_already_is_used_by_its_url(tmp_path: Path, login: str):
    files = box_files(new_pool(), "b1")
    for name, text in (("ca", files.ca), ("cert", files.certificate), ("key", files.key)):
        (tmp_path / f"{name}.pem").write_text(text, "utf-8")
    tls = f'tls {{ cert_file: "{tmp_path}/cert.pem", key_file: "{tmp_path}/key.pem", ca_file: "{tmp_path}/ca.pem" }}'
    configured, front = {
        "user": ('authorization { user: "u", password: "p@:/ä" }', "nats://u:p%40%3A%2F%C3%A4@"),
        "token": ('authorization { token: "a b" }', "nats://a%20b@"),
        "late TLS": (tls, "tls://"),
    }[login]
    with foreign_server(tmp_path, configured) as port:
        access = external_access(f"{front}127.0.0.1:{port}", "b1")
        async with open_bus(access, tls_of(files)) as bus:
            keys = await bucket(bus)
            assert await keys.put("k", b"1", 0)
        if login != "late TLS":
            async with open_bus(external_access(f"nats://u:wrong@127.0.0.1:{port}", "b1"), None) as bus:
                assert await problem_of(bus) == "bus-key"


@pytest.mark.parametrize(
    "url", ["", "http://h", "nats://", "nats://u:secret@h:x", "nats://u:secret@", "h:4222", "nats://h/x"]
)
def test_a_url_that_is_none_of_a_bus_is_refused_without_its_password(url: str):
    with pytest.raises(UsageError, match="nats://user") as refused:
        external_access(url, "b1")
    assert "secret" not in str(refused.value)


@given(st.text(max_size=30))
def test_any_url_is_understood_or_refused(url: str):
    try:
        access = external_access(url, "b1")
    except UsageError:
        return
    assert all(place.host and 0 <= place.port < 65536 for place in access.places)


@pytest.mark.slow
async def test_a_voter_with_the_secret_of_another_pool_is_ended_and_says_so(tmp_path: Path):
    """It takes 10 s: so long it may be that the other servers are about to get the new secret."""
    async with boxes(tmp_path / "one", 3) as made, client(made[0]) as bus:
        keys = await bucket(bus, 3)
        made[2].server.serve(replace(made[2].serving, files=box_files(new_pool(), "b3")))
        state = await until(
            lambda: made[2].server.state, lambda it: it.problem, changed=made[2].server.news.wait, within=40
        )
        assert state.problem.id == "bus-server-strangers", made[2].log()
        assert await keys.put("k", b"1", None)
        assert made[0].server.state.problem is None, "the others met a stranger too, and go on"
        made[2].server.serve(made[2].serving)
        await made[2].ready()
