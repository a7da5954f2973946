"""The feed of models, and loads that wait for a word, over a real server and fake engines."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from feed_reader import entries, feed, ok, status_of, words
from http_harness import CHAT, UPGRADE, Appliance, OpenServer, chat, model

from appliance.http.control import model_feed

# ---- the feed of processes -------------------------------------------------------------------------------------------


async def test_a_process_is_told_from_its_start_to_its_end(open_server: OpenServer, fake_model: Path):
    slow = [model(fake_model, "alpha", "al", args=("--load-delay", "0.5"))]
    async with open_server(models=slow) as server, feed(server) as reader:
        await ok(server, "POST", "/models/load", {"model": "al"})
        events = await reader.until("status_change", status="loaded")
        assert all(event["model"] == "alpha" for event in events)
        assert words(events) == [("model_status", "loading"), ("status_change", "loading"), ("status_change", "loaded")]
        assert events[0]["data"] == {"status": "loading"}
        values = [event["data"]["progress"]["value"] for event in events[1:-1]]
        assert len(values) >= 2
        assert values == sorted(values)
        assert events[1]["data"]["progress"]["stages"] == ["text_model"]
        assert events[-1]["data"]["info"]["id"] == "alpha"
        await ok(server, "POST", "/models/unload", {"model": "alpha"})
        events = await reader.until("status_change")
        assert events == [{"model": "alpha", "event": "status_change", "data": {"status": "unloaded", "exit_code": 0}}]


async def test_loaded_is_told_once_and_with_what_has_been_loaded(open_server: OpenServer, fake_model: Path):
    """Also where the process answers long before it says so; requests do not wait for its words."""
    late = [model(fake_model, "alpha", args=("--load-delay", "0.1", "--late-words", "2"))]
    async with open_server(models=late) as server, feed(server) as reader:
        assert (await server.ask("POST", CHAT, chat())).status == 200
        assert server.state("alpha") == "loaded"
        assert server.fleet.status()[0].says_more
        events = await reader.until("status_change", status="loaded")
        told = [event["data"] for event in events if status_of(event) == "loaded"]
        assert [data.get("info", {}).get("id") for data in told] == ["alpha"]
        await ok(server, "POST", "/models/unload", {"model": "alpha"})
        events = await reader.until("status_change", status="unloaded")
        assert [status_of(event) for event in events] == ["unloaded"]


async def test_a_load_that_fails_tells_its_exit_code(open_server: OpenServer, fake_model: Path):
    failing = model(fake_model, "alpha", args=("--fail-to-load", "--exit-code", "7"))
    async with open_server(models=[failing]) as server, feed(server) as reader:
        for _ in range(2):  # the second failure is news, although it is the same as the first
            await ok(server, "POST", "/models/load", {"model": "alpha"})
            events = await reader.until("status_change", status="unloaded")
            assert (words(events)[0], events[-1]["data"]["exit_code"]) == (("model_status", "loading"), 7)


async def test_an_engine_that_dies_has_failed(server: Appliance):
    async with feed(server) as reader:
        assert (await server.ask("POST", CHAT, chat(die_before_head=True, exit_code=0))).status == 502
        events = await reader.until("status_change", status="unloaded")
        assert events[-1]["data"] == {"status": "unloaded", "exit_code": 1}  # as in the list: nobody stopped it
        assert (await entries(server))["alpha"]["status"]["failed"] is True


async def test_one_process_after_another_is_an_end_and_a_beginning(server: Appliance):
    async with feed(server) as reader:
        assert (await server.ask("POST", CHAT, chat())).status == 200
        await reader.until("status_change", status="loaded")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.ask, "POST", CHAT, chat(tokens=30, token_delay=0.02))
            while not (status := server.fleet.known("alpha")) or not status.leases:
                await server.fleet.wait_changed()
            nursery.start_soon(ok, server, "POST", "/models/unload", {"model": "alpha"})
            while server.state("alpha") != "stopping":
                await server.fleet.wait_changed()
            nursery.start_soon(server.ask, "POST", CHAT, chat())  # waits for the next process
        events = await reader.until("status_change", status="loaded")
        assert [said for said in words(events) if said != ("status_change", "loading")] == [
            ("status_change", "unloaded"),
            ("model_status", "loading"),
            ("status_change", "loaded"),
        ]


async def test_a_snapshot_begins_with_every_model(server: Appliance):
    """Without it nothing is told of before."""
    await ok(server, "POST", "/models/load", {"model": "beta", "wait": True})
    async with feed(server, "?snapshot=1") as reader, feed(server, "?snapshot=0") as plain:
        first, second = [await reader.next() for _ in range(2)]
        unloaded = {"status": "unloaded", "exit_code": 0}
        assert first == {"model": "alpha", "event": "status_change", "data": unloaded}
        assert (second["model"], status_of(second), second["data"]["info"]["id"]) == ("beta", "loaded", "beta")
        await ok(server, "POST", "/models/unload", {"model": "beta"})
        for each in (reader, plain):
            assert await each.next() == {**first, "model": "beta"}


async def test_pings_fill_silence(server: Appliance, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(model_feed, "PING_AFTER", 0.3)
    async with feed(server) as reader:
        with trio.move_on_after(1.5):
            await reader.next()
        assert 2 <= reader.comments <= 5


async def test_who_reads_nothing_holds_nobody_up_and_hears_how_it_is_now(server: Appliance):
    async with feed(server) as slow, feed(server) as quick:
        for _ in range(3):
            await ok(server, "POST", "/models/load", {"model": "alpha"})
            await quick.until("status_change", status="loaded")
            await ok(server, "POST", "/models/unload", {"model": "alpha"})
            await quick.until("status_change", status="unloaded")
        await ok(server, "POST", "/models/load", {"model": "beta", "wait": True})
        events = await slow.until("status_change", status="loaded")
        while events[-1]["model"] != "beta":
            events += await slow.until("status_change", status="loaded")
        alphas = [event for event in events if event["model"] == "alpha"]
        assert status_of(alphas[-1]) == "unloaded"


# ---- loading only when told ------------------------------------------------------------------------------------------


async def test_without_autoload_a_request_finds_only_what_runs(open_server: OpenServer):
    async with open_server(autoload=False) as server:
        assert (await server.ask("GET", "/props")).json["models_autoload"] is False
        for headers in ((), (("X-Conversation-Id", "c1"),)):
            for stream in (False, True):
                asked = (CHAT, chat(stream=stream), headers)
                await server.refuses(400, "model_not_loaded", "POST", *asked, words="model is not loaded")
        assert (await server.ask("GET", "/upstream/alpha/v1/models")).status == 400
        assert (await server.ask("GET", "/ws?model=alpha", headers=UPGRADE)).status == 400
        assert server.state("alpha") == "unknown"
        await ok(server, "POST", "/models/load", {"model": "alpha"})
        assert (await server.ask("POST", CHAT, chat())).status == 200  # it waits for what loads already
        assert (await server.ask("POST", CHAT, chat(), (("X-Conversation-Id", "c1"),))).status == 200
        await ok(server, "POST", "/models/unload", {"model": "alpha", "wait": True})
        assert (await server.ask("POST", CHAT, chat())).status == 400


@pytest.mark.parametrize(
    ("autoload", "statuses"),
    [
        (False, {"?autoload=yes": 400, "?autoload=0": 400, "?autoload=1": 200, "?autoload=true": 200}),
        (True, {"?autoload=0": 400, "?autoload=false": 400, "?autoload=": 400, "?autoload=1": 200, "": 200}),
    ],
)
async def test_the_query_decides_for_one_request(open_server: OpenServer, autoload: bool, statuses: dict[str, int]):
    async with open_server(autoload=autoload) as server:
        assert (await server.ask("GET", "/props")).json["models_autoload"] is autoload
        for query, status in statuses.items():
            assert (await server.ask("POST", f"{CHAT}{query}", chat())).status == status, query
            assert (server.state("alpha") == "loaded") is (status == 200)
            await server.fleet.unload("alpha")
