"""The event feed, read as a page reads it."""

from __future__ import annotations

import json
import re
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio
import trio.lowlevel
from event_reader import FIRST, feed
from http_harness import CHAT, UPGRADE, Appliance, Client, OpenServer, chat, model
from swap_harness import Configure
from waiting import PATIENCE, until

from appliance.catalog.catalog import Snapshot
from appliance.core.config.types import Config, ModelConfig, Peer
from appliance.core.records.history import Happening
from appliance.features.llama_swap import events
from appliance.http.control.listing import View
from appliance.traffic import traffic


async def test_a_client_begins_with_the_whole_picture(open_server: OpenServer, configured: Configure):
    file = configured(
        {"alpha": {"name": "Alpha", "aliases": ["al"]}, "org/beta": {}},
        peers={"p": {"proxy": "http://127.0.0.1:9", "models": ["m"]}},
        profiles={"work": {"pins": {"x": "alpha"}}},
        ui={"activity": {"session_id": ["X-Mine"]}},
    )
    async with open_server(config=file) as server:
        assert (await server.ask("PUT", "/api/profiles/active", {"name": "work"})).status == 200
        server.traffic.program_log.say("info", "hello")
        server.fleet.logs.append("alpha", "printed")
        async with feed(server) as reader:
            messages = [await reader.message() for _ in FIRST]
            kind, log = messages[0]
            assert (kind, log["source"]) == ("logData", "proxy")
            assert log["data"].startswith("[INFO] hello\n")
            assert messages[1] == ("logData", {"source": "upstream", "data": "[alpha] printed\n"})
            kind, models = messages[2]
            assert kind == "modelStatus"
            assert [(m["id"], m["state"], m["peerID"]) for m in models] == [
                ("alpha", "stopped", ""),
                ("org/beta", "stopped", ""),
                ("p/m", "", "p"),
            ]
            assert models[0]["name"] == "Alpha"
            assert models[0]["aliases"] == ["al"]
            assert messages[3] == ("uiConfig", {"activity": {"session_id": ["X-Mine"]}})
            assert messages[4] == ("profileChanged", {"active": "work"})
            assert messages[5] == ("inflight", {"operation": "snapshot"})


async def test_states_change_in_llama_swaps_words(open_server: OpenServer, fake_model: Path):
    slow = [model(fake_model, "alpha", args=("--load-delay", "0.3"))]
    async with open_server(models=slow) as server, feed(server) as reader:
        await reader.first()
        await server.fleet.load(slow[0], wait=False)
        assert [m["state"] for m in await reader.until("modelStatus")] == ["starting"]
        assert [m["state"] for m in await reader.until("modelStatus")] == ["ready"]
        assert (await server.ask("GET", "/unload")).body == b"OK"
        while (told := (await reader.until("modelStatus"))[0]["state"]) != "stopped":
            assert told == "stopping"


async def test_requests_that_change_no_state_say_nothing_of_states(server: Appliance):
    await server.ask("POST", CHAT, chat("alpha"))
    async with feed(server) as reader:
        await reader.first()
        rows = 0
        for _ in range(5):
            await server.ask("POST", CHAT, chat("alpha"))
        while rows < 5:
            kind, _ = await reader.message()
            rows += kind == "activity"
            assert kind != "modelStatus"


async def test_logs_profiles_rows_and_requests_as_they_come(open_server: OpenServer, configured: Configure):
    file = configured({"alpha": {}}, profiles={"work": {"pins": {"x": "alpha"}}}, logLevel="warn")
    async with open_server(config=file) as server, feed(server) as reader:
        await reader.first()
        server.traffic.program_log.say("warn", "uh oh")
        assert await reader.until("logData") == {"source": "proxy", "data": "[WARN] uh oh\n"}
        server.fleet.logs.append("alpha", "a\tb")
        assert await reader.until("logData") == {"source": "upstream", "data": "[alpha] a\tb\n"}
        await server.ask("PUT", "/api/profiles/active", {"name": "work"})
        assert await reader.until("profileChanged") == {"active": "work"}
        assert len(await reader.until("modelStatus")) == 1
        await server.ask("POST", CHAT, chat("x", stream=True, tokens=20, token_delay=0.05))
        began = await reader.until("inflight")
        assert (began["operation"], began["request"]["model"]) == ("upsert", "alpha")
        assert began["request"]["req_path"] == CHAT
        assert began["request"]["remote_ip"] == "127.0.0.1"
        last = change = began
        while change["operation"] == "upsert":
            last, change = change, await reader.until("inflight")
        assert last["request"]["resp_headers"]["Content-Type"].startswith("text/event-stream")
        assert last["request"]["resp_bytes"] > 0
        assert change == {"operation": "remove", "id": "1"}
        row = await reader.until("activity")
        [stored] = await server.rows()
        assert row == {"id": stored["id"]}


async def test_a_message_is_made_once_for_all_readers(server: Appliance):
    """What the readers get of a log and of a request is not only equal, but the same bytes in memory."""
    traffic, owners = server.traffic, server.owners
    view = View(owners.fleet, owners.catalog, owners.peers, traffic.profile)
    sources = events.EventSources(view, traffic, owners.history)
    feeds = [events.EventFeed(sources) for _ in range(3)]

    async def same(kind: str) -> None:
        told = [list[bytes]() for _ in feeds]
        with trio.fail_after(10):
            while not any(all(any(one is other for other in more) for more in told[1:]) for one in told[0]):
                for each, got in zip(feeds, told, strict=True):
                    got += [message for message in [await anext(each)] if f'"type":"{kind}"'.encode() in message]

    async with feeds[0], feeds[1], feeds[2], trio.open_nursery() as nursery:
        for each in feeds:
            await anext(each)
        traffic.program_log.say("info", "to all")
        await same("logData")
        owners.history.add(Happening(kind="loaded", model="alpha"))
        await same("history")
        nursery.start_soon(server.ask, "POST", CHAT, chat(stream=True, tokens=100, token_delay=0.05))
        await same("inflight")
        nursery.cancel_scope.cancel()


async def test_a_long_log_comes_in_pieces(server: Appliance):
    async with feed(server) as reader:
        await reader.first()
        for _ in range(5):
            server.fleet.logs.append("alpha", "x" * 8000)
        server.traffic.program_log.say("info", "y" * (events.MAX_LOG + 10))
        got = ""
        while got.count("x") + got.count("y") < 5 * 8000 + events.MAX_LOG + 10:
            piece = (await reader.until("logData"))["data"]
            assert len(piece) <= events.MAX_LOG
            got += piece
        assert got.count("x") == 40_000
        assert got.count("y") == events.MAX_LOG + 10


async def test_a_new_list_of_models_is_told_without_a_bell(
    server: Appliance, fake_model: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(events, "LOOK_EVERY", 0.1)
    async with feed(server) as reader:
        await reader.first()
        server.catalog.snapshot = Snapshot([model(fake_model, "new")])
        assert [m["id"] for m in await reader.until("modelStatus")] == ["new"]
        server.catalog.adopt(Config(models={"conf": ModelConfig()}))
        assert [m["id"] for m in await reader.until("modelStatus")] == ["conf"]


async def test_what_a_peer_lists_is_told(server: Appliance, fake_model: Path):
    async with feed(server) as reader:
        await reader.first()
        await server.ask("POST", CHAT, chat("alpha"))
        address = server.fleet.address("alpha")
        config = Config(peers={"p": Peer(proxy=f"http://127.0.0.1:{address.port}", api_key=address.key or "")})
        server.catalog.adopt(config)
        server.owners.peers.adopt(config)
        models: list[str] = []
        while "p/alpha" not in models:
            models = [m["id"] for m in await reader.until("modelStatus")]
        [entry] = (await server.ask("GET", "/v1/models")).json["data"]
        assert (entry["id"], entry["name"], entry["meta"]["llamaswap"]["peerID"]) == ("p/alpha", "p: alpha", "p")


async def test_silence_is_broken_by_comments(server: Appliance, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(events, "PING_AFTER", 0.2)
    monkeypatch.setattr(events, "LOOK_EVERY", 0.05)
    async with feed(server) as reader:
        await reader.first()
        assert await reader.record() == b": ping"
        server.fleet.logs.append("alpha", "end")
        await reader.until("logData")


async def test_a_reader_that_sleeps_costs_nothing_and_catches_up(server: Appliance):
    async with feed(server) as reader:
        await reader.first()
        for number in range(3000):
            server.fleet.logs.append("alpha", f"line {number} " + "x" * 5000)
            if number % 100 == 0:
                await trio.lowlevel.checkpoint()
        assert (await server.ask("GET", "/api/version")).status == 200
        seen = ""
        while "line 2999 " not in seen:
            seen = (await reader.until("logData"))["data"]


@pytest.mark.parametrize("path", ["/api/events", "/api/conversations/events", "/models/sse", "/logs/stream"])
async def test_an_answer_without_end_ends_with_the_server_and_may_be_asked_for_its_head(
    open_server: OpenServer, path: str
):
    async with open_server(grace=3 * PATIENCE) as server, server.connect() as client:
        head = await server.ask("HEAD", path)
        assert (head.status, head.body) == (200, b"")
        await client.send("GET", path)
        answer = await client.head()
        assert dict(answer.headers)[b"content-type"].decode() == head.header("content-type")
        server.shutdown.set()
        await client.rest()
        await server.end()


SOCKETS = ["/v1/stream/ws", "/api/link"]
READERS = [
    *("/api/events", "/logs/stream", "/models/sse?snapshot=1", "/api/conversations/events", "/api/runs/RUN/events"),
    *("/v1/stream/c?from=0", "/v1/stream?conv_id=c", *SOCKETS),
]
"""The answers without an end."""


async def test_readers_of_every_kind_beyond_the_limit_are_refused_until_one_leaves(
    server: Appliance, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(traffic, "MAX_FEEDS", len(READERS))
    async with server.connect() as asker:
        await asker.send("POST", CHAT, chat(stream=True, stall_after_tokens=2), [("X-Conversation-Id", "c")])
        await asker.head()
        run = {"model": "alpha", "user_prompt": "hi", "params": {"fake": {"stall_after_tokens": 2}}}
        run_id = (await server.ask("POST", "/api/runs", run)).json["id"]
        feeds = server.traffic.lifetime.feeds
        async with AsyncExitStack() as readers:
            for path in READERS:
                client = await readers.enter_async_context(server.connect())
                assert await _asked(client, path, run_id) in ("101", "200"), path
            assert feeds.open == len(READERS)
            for path in READERS:
                async with server.connect() as client:
                    assert await _asked(client, path, run_id) == "503 busy, again in 10", path
        await until(lambda: feeds.open, lambda left: left == 0)
        for path in READERS:
            async with server.connect() as client:
                assert await _asked(client, path, run_id) in ("101", "200"), path


async def _asked(client: Client, path: str, run_id: str) -> str:
    """Ask for one of these, and return what came of it."""
    await client.send("GET", path.replace("RUN", run_id), headers=UPGRADE if path in SOCKETS else ())
    received = b""
    with trio.fail_after(PATIENCE):
        while b"\r\n\r\n" not in received or (b" 503 " in received and b"}}" not in received):
            received += await client.stream.receive_some(1 << 16)
    status = received.split(b" ")[1].decode()
    if status != "503":
        return status
    again = re.search(rb"(?i)retry-after: (\d+)", received)
    reason = json.loads(received[received.index(b"{") :])["error"]["reason"]
    return f"503 {reason}, again in {again[1].decode()}"
