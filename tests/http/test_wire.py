"""Bytes that no decent client sends, and some that a decent one does."""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import sys
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest
import trio
from http_harness import CHAT, Appliance, Client, OpenServer, chat, raw_post
from waiting import PATIENCE, SOON, until

from appliance.core.bodies import pace
from appliance.http.bytes import connection as connection_module
from appliance.http.bytes import server as server_module

MIB = 1 << 20
CHUNKED = "Transfer-encoding: chunked"


async def timed_out(client: Client, drop: bytes = b" ", every: float = 0.1) -> str:
    """Send drops until the server has had enough of them: the reason that it gives."""

    async def drip() -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while True:
                await client.stream.send_all(drop)
                await trio.sleep(every)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(drip)
        answer = await client.answer()
        nursery.cancel_scope.cancel()
    assert answer.status == 408
    return answer.error["reason"]


def status(wire: bytes) -> int:
    return int(wire.split(b" ", 2)[1])


async def is_well(server: Appliance, caplog: pytest.LogCaptureFixture) -> bool:
    """It still serves, and nothing a client did has reached the log."""
    answer = await server.ask("POST", CHAT, chat())
    return answer.status == 200 and not [r for r in caplog.records if r.levelno >= logging.WARNING]


UPGRADE = b"GET /health HTTP/1.1\r\nHost: localhost\r\nUpgrade: %b\r\nConnection: Upgrade, %b\r\n%b\r\n\r\n"
GARBAGE = [  # one of each kind; `tests/core/bodies` has all refusals
    (b"\r\n\r\n\r\n\r\nhello\r\n\r\n", 400),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 100 + b"\r\n\r\n", 400),
    (b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n", 505),
    (b"GET / HTTP/1.1\nHost: localhost\nX: y\n\n", 400),
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 140_000 + b"\r\n\r\n", 431),
    (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 65_536 + b"\r\n\r\n", 431),
    (b"GET /" + b"x" * 140_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 431),
    (b"CONNECT evil.example:443 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 400),
    (b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 200),
    (b"GET %00%ff/../../etc/passwd HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 400),
    (b"GET http://localhost/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 400),
    (UPGRADE % (b"h2c", b"HTTP2-Settings, close", b"HTTP2-Settings: AAMAAABkAAQAAP__"), 200),
    (UPGRADE % (b"websocket", b"x", b"Sec-WebSocket-Key: dGhlIHNhbXBsZQ==\r\nSec-WebSocket-Version: 13"), 400),
    (raw_post(b"zz\r\nhello", CHUNKED), 400),
    (raw_post(b"5\r\nhelloworld\r\n0\r\n\r\n", CHUNKED), 400),
    (raw_post(b"5" * 100 + b"\r\nhello\r\n", CHUNKED), 400),
]


async def test_garbage_is_refused_with_words(server: Appliance, caplog: pytest.LogCaptureFixture):
    for wire, expected in GARBAGE:
        got = await server.exchange(wire)
        assert status(got) == expected, wire[:200]
        head, _, body = got.partition(b"\r\n\r\n")
        assert b"server: llama-appliance" in head.lower(), wire[:200]
        if expected >= 400:
            assert json.loads(body)["error"]["code"] == expected, wire[:200]
        assert await is_well(server, caplog), wire[:200]


async def test_a_body_that_says_it_is_too_large_is_refused_before_it_is_read(server: Appliance):
    began = trio.current_time()
    async with server.connect() as client:
        await client.stream.send_all(raw_post(b"", length=101 * MIB))
        answer = await client.answer()
    assert (answer.status, answer.error["reason"], answer.header("connection")) == (413, "body_too_large", "close")
    assert trio.current_time() - began < SOON


async def test_the_answer_to_a_refused_upload_reaches_a_client_that_sends_first(open_server: OpenServer):
    async with open_server(max_body=MIB) as server:
        for extra in ((), (CHUNKED,)):
            body = b"x" * (30 * MIB)
            wire = raw_post(b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body) if extra else body, *extra)
            got = await server.exchange(wire)
            assert (status(got), b"body_too_large" in got) == (413, True)


@pytest.mark.slow
async def test_a_hundred_megabytes_go_through(server: Appliance):
    body = json.dumps(chat()).encode()[:-1] + b', "x": "' + b"y" * (100 * MIB - 200) + b'"}'
    answer = await server.ask("POST", CHAT, body, patience=40)
    assert (answer.status, answer.json["object"]) == (200, "chat.completion")


async def test_all_bodies_together_are_bounded(open_server: OpenServer):
    async with open_server(max_bodies=1000) as server, server.connect() as holder:
        await holder.stream.send_all(raw_post(b'{"model":"alpha"' + b" " * 850, length=900))
        await trio.sleep(0.05)
        full = await server.refuses(503, "busy", "POST", CHAT, b" " * 200)
        assert full.header("retry-after") == "1"
        assert (await server.ask("POST", CHAT, chat())).status == 200


async def test_a_promise_of_many_bytes_takes_nobodys_room(open_server: OpenServer):
    async with open_server(max_body=1000, max_bodies=1000) as server, server.connect() as promising:
        await promising.stream.send_all(raw_post(b"{", length=1000))
        await trio.sleep(0.05)
        assert (await server.ask("POST", CHAT, json.dumps(chat()).encode() + b" " * 700)).status == 200


@pytest.mark.parametrize(
    ("wire", "drop"),
    [
        (raw_post(b"{", length=1000), b" "),
        (raw_post(b"{", length=1000), b""),
        (raw_post(b"x" * MIB, length=2 * MIB), b"x"),
        (raw_post(b"%x\r\n%b\r\n" % (MIB, b"x" * MIB), CHUNKED), b"1\r\nx\r\n"),
    ],
    ids=["a letter", "a letter and no more", "much", "much in a chunk"],
)
async def test_a_body_that_comes_drop_by_drop_is_a_408(open_server: OpenServer, wire: bytes, drop: bytes):
    """Behind much at once, too: a megabyte would pay for a quarter of an hour if the least rate were an average."""
    async with open_server(body_stall=0.6) as server, server.connect() as client:
        await client.stream.send_all(wire)
        assert await timed_out(client, drop) == "body_timeout"


async def test_a_head_that_comes_drop_by_drop_is_a_408(server: Appliance, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(connection_module, "HEAD_TIMEOUT", 0.5)
    async with server.connect() as client:
        began = trio.current_time()
        await client.stream.send_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: ")
        await timed_out(client, b"x", 0.02)
        assert 0.4 < trio.current_time() - began < SOON + 0.5


async def test_an_idle_connection_is_closed_in_time(server: Appliance, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(connection_module, "IDLE_TIMEOUT", 0.3)
    async with server.connect() as client:
        await client.send("GET", "/health")
        assert (await client.answer()).status == 200
        assert await client.everything() == b""


async def test_connections_without_a_request_make_way_for_others(
    open_server: OpenServer, monkeypatch: pytest.MonkeyPatch
):
    """Nobody holds all places, by saying nothing or the half of a head, or by having asked once."""
    monkeypatch.setattr(server_module, "KEEPS", 0.0)
    async with open_server(clients=3) as server, AsyncExitStack() as stack:
        silent, half, idle = [await stack.enter_async_context(server.connect()) for _ in range(3)]
        await half.stream.send_all(b"GET /health HTTP/1.1\r\nHost: loc")
        await idle.send("GET", "/health")
        assert (await idle.answer()).status == 200
        for _ in range(3):  # each stays, and so takes the place of the one that has had its for the longest time
            client = await stack.enter_async_context(server.connect())
            await client.send("GET", "/health")
            assert (await client.answer()).status == 200
        for client in (silent, half):
            answer = await client.answer()
            assert (answer.status, answer.error["reason"], answer.header("retry-after")) == (503, "busy", "1")


async def test_clients_that_have_just_come_and_requests_under_way_make_way_for_nobody(open_server: OpenServer):
    """Each may be about to ask; a client without a place is told so when it does."""
    async with open_server(clients=2) as server, server.connect() as one, server.connect() as two:
        for _ in range(3):
            refused = await server.ask("GET", "/health")
            assert (refused.status, refused.error["reason"], refused.header("retry-after")) == (503, "busy", "1")
        async with server.connect() as silent:
            assert (await silent.answer()).status == 503
        for client in (one, two):
            await client.send("GET", "/health")
            assert (await client.answer()).status == 200
            client.next_request()
            await client.send("POST", CHAT, chat(stream=True, tokens=3, stall_after_tokens=2))
            assert (await client.head()).status_code == 200
        async with server.connect() as silent:
            answer = await silent.answer()
            assert (answer.status, answer.error["reason"]) == (503, "busy")


@pytest.mark.skipif(sys.platform != "linux", reason="addresses of the loopback, as Linux has them")
async def test_an_address_with_its_share_takes_no_place_of_another(
    open_server: OpenServer, monkeypatch: pytest.MonkeyPatch
):
    keeps = 0.05
    monkeypatch.setattr(server_module, "KEEPS", keeps)
    async with open_server(clients=2) as server, server.connect() as good, AsyncExitStack() as stack:
        await good.send("GET", "/health")
        assert (await good.answer()).status == 200
        good.next_request()
        await trio.sleep(2 * keeps)  # a client that is idle for so long makes way
        for _ in range(10):
            stranger = stack.enter_context(trio.socket.socket())
            await stranger.bind(("127.0.0.2", 0))
            await stranger.connect(("127.0.0.1", server.port))
        await good.send("GET", "/health")
        assert (await good.answer()).status == 200


async def test_a_request_that_was_not_looked_at_makes_way_for_nobody(
    open_server: OpenServer, monkeypatch: pytest.MonkeyPatch
):
    """A request and another connection at the same moment: which of the two is seen first is chance."""
    keeps = 0.05
    monkeypatch.setattr(server_module, "KEEPS", keeps)
    ask = b"GET /running HTTP/1.1\r\nHost: localhost\r\n\r\n"
    async with open_server(clients=1) as server:
        for _ in range(10):
            async with server.connect() as first:
                await first.stream.send_all(ask)
                assert (await first.answer()).status == 200
                await trio.sleep(1.5 * keeps)  # as above
                with socket.socket() as second, socket.socket(fileno=os.dup(first.stream.socket.fileno())) as same:
                    second.setblocking(False)
                    assert same.send(ask) == len(ask)  # without a checkpoint between the two
                    with suppress(BlockingIOError):
                        second.connect(("127.0.0.1", server.port))
                    assert status(await first.stream.receive_some(1000)) == 200
            await trio.sleep(keeps)  # the one that has just come may make way now


async def test_answers_that_nobody_reads_make_way(
    open_server: OpenServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(server_module, "KEEPS", 0.0)
    (tmp_path / "large.bin").write_bytes(bytes(32 * MIB))
    async with open_server(clients=2, api_keys=("k",), static=str(tmp_path)) as server, AsyncExitStack() as stack:
        strangers = [await stack.enter_async_context(server.connect()) for _ in range(2)]
        for stranger in strangers:
            await stranger.send("GET", "/large.bin")
            assert (await stranger.head()).status_code == 200
        key = [("Authorization", "Bearer k")]
        await until(lambda: server.ask("POST", CHAT, chat(), key), lambda answer: answer.status == 200)


@pytest.mark.slow
async def test_an_answer_that_needs_no_key_has_to_be_taken_at_a_rate(
    open_server: OpenServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A client with a key may be slow for ever, as long as it takes something within ``write_stall``."""
    monkeypatch.setattr(pace, "LEAST_RATE", 100 * MIB)
    size = 32 * MIB
    (tmp_path / "large.bin").write_bytes(bytes(size))
    long = json.dumps(chat(stream=True, tokens=1000, token_size=size // 1000)).encode()
    async with (
        open_server(api_keys=("k",), static=str(tmp_path), write_stall=4.0) as server,
        server.connect() as keyed,
        server.connect() as stranger,
    ):
        await keyed.send("POST", CHAT, long, [("Authorization", "Bearer k")])
        await stranger.send("GET", "/large.bin")
        for client in (keyed, stranger):
            assert (await client.head()).status_code == 200

        async def both_read() -> None:
            while True:
                assert await stranger.data()
                assert await keyed.data()
                await trio.sleep(0.05)

        with trio.fail_after(3 * PATIENCE):
            with pytest.raises(trio.BrokenResourceError):
                await both_read()
            for _ in range(20):
                assert await keyed.data()


async def test_requests_of_many_strangers_leave_a_good_one_its_turns(open_server: OpenServer):
    """Measured in strangers that have theirs meanwhile, which no slow machine changes."""
    many = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n" * 500
    async with open_server(api_keys=("k",)) as server, AsyncExitStack() as stack:
        key = [("Authorization", "Bearer k")]
        assert (await server.ask("GET", "/running", headers=key)).status == 200
        strangers = [await stack.enter_async_context(server.connect()) for _ in range(100)]
        for stranger in strangers:
            await stranger.stream.send_all(many)
        refused = server.traffic.metrics.requests
        await until(lambda: refused["own", 401] > len(strangers))
        before = refused["own", 401]
        assert (await server.ask("GET", "/running", headers=key)).status == 200
        meanwhile = refused["own", 401] - before
        assert 0 < meanwhile < 2 * len(strangers)


async def test_what_a_public_path_is_sent_takes_nobodys_room(open_server: OpenServer):
    async with open_server(api_keys=("k",), max_bodies=1000) as server, server.connect() as stranger:
        await stranger.stream.send_all(raw_post(b"x" * 900, path="/health", length=1000))
        answer = await stranger.answer()
        assert (answer.status, answer.header("connection")) == (404, "close")
        body = json.dumps(chat()).encode()
        assert (await server.ask("POST", CHAT, body, [("Authorization", "Bearer k")])).status == 200


async def test_one_connection_serves_many_requests_also_pipelined(server: Appliance):
    stream, body = (json.dumps(chat(stream=stream)).encode() for stream in (True, False))
    own = b"GET /%b HTTP/1.1\r\nHost: x.localhost\r\n\r\n"
    wire = raw_post(body) * 4 + own % b"nope" + raw_post(stream) + own % b"health" + raw_post(body, "Connection: close")
    got = await server.exchange(wire)
    assert re.findall(rb"HTTP/1.1 (\d+)", got) == [b"200"] * 4 + [b"404"] + [b"200"] * 3
    assert got.count(b'"chat.completion"') == 5


async def test_http_1_0_gets_a_body_that_ends_with_the_connection(server: Appliance):
    for fault, last in (({}, b"data: [DONE]\n\n"), ({"die_after_tokens": 2}, b'"upstream_failed"}}\n\n')):
        got = await server.exchange(raw_post(json.dumps(chat(stream=True, **fault)).encode(), version="1.0"))
        head, _, body = got.partition(b"\r\n\r\n")
        assert status(got) == 200
        assert b"chunked" not in head.lower()
        assert body.startswith(b"data: {")
        assert body.endswith(last)


async def test_expect_100_continue(server: Appliance, client: Client):
    body = json.dumps(chat()).encode()
    await client.stream.send_all(raw_post(b"", "Expect: 100-continue", length=len(body)))
    with trio.fail_after(PATIENCE):
        assert (await client.stream.receive_some(1000)).startswith(b"HTTP/1.1 100")
    await client.stream.send_all(body)
    assert (await client.stream.receive_some(1000)).startswith(b"HTTP/1.1 200")


async def test_head_and_options(server: Appliance):
    for path in ("/health", "/v1/models", "/", "/metrics"):
        answer = await server.ask("HEAD", path)
        assert (answer.status, answer.body) == (200, b"")
        assert int(answer.header("content-length") or 0) > 0
    for path in ("/", "/v1/models", "/nowhere", CHAT):
        answer = await server.ask("OPTIONS", path)
        assert (answer.status, answer.body, answer.header("content-type")) == (200, b"", "text/html")


async def test_bodies_that_cannot_be_read_start_nothing(server: Appliance):
    shapes = (b"{", b"[]", b"", b'{"model": []}', b"\xff" * 100, b'{"a":' * 100_000, b'{"model":"alpha","stream":"x"}')
    for body in shapes:
        answer = await server.ask("POST", CHAT, body)
        assert (answer.status, answer.error["code"], answer.error["type"]) == (400, 400, "invalid_request_error")
        assert server.fleet.status() == []
        assert (await server.ask("POST", "/v1/messages", body)).json["type"] == "error"


async def test_a_client_that_has_closed_its_sending_side_still_gets_a_short_answer(server: Appliance):
    assert (await server.ask("GET", "/health")).status == 200
    for _ in range(20):
        async with server.connect() as client:
            await client.send("GET", "/v1/models")
            await client.stream.send_eof()
            assert (await client.answer()).json["object"] == "list"
