"""Downloads, removal and the feed of models, over a real server, a hub of its own, and fake engines."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from gguf_files import write_model
from http_harness import CHAT, UPGRADE, Appliance, Client, OpenServer, chat, model
from hub_process import FakeHub
from kept_files import kept_of, kept_one
from msgspec import structs
from waiting import until

from appliance.catalog.supply import DownloadSettings
from appliance.http.control import model_routes

REPO = "acme/tiny-GGUF"
MODEL = f"{REPO}:Q8_0"
SIZE = 1 << 20
Event = dict[str, object]


class Feed:
    """The records of one connection to ``/models/sse``."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.comments = 0

    async def next(self) -> Event:
        """The next event; comments are counted."""
        while (record := await self._client.record()).startswith(b":"):
            self.comments += 1
        assert record.startswith(b"data: {")
        assert b"\n" not in record
        return json.loads(record.removeprefix(b"data: "))

    async def until(self, event: str, *, status: str | None = None) -> list[Event]:
        """Events up to the first of this name, with this status where one is given."""
        found: list[Event] = []
        with trio.fail_after(15):
            while True:
                found.append(await self.next())
                if found[-1]["event"] == event and (status is None or status_of(found[-1]) == status):
                    return found


def status_of(event: Event) -> object:
    data = event.get("data")
    return data.get("status") if isinstance(data, dict) else None


def words(events: list[Event]) -> list[tuple[object, object]]:
    """Name and status, repetitions left out."""
    said = [(event["event"], status_of(event)) for event in events]
    return [each for number, each in enumerate(said) if number == 0 or said[number - 1] != each]


@asynccontextmanager
async def feed(server: Appliance, query: str = "") -> AsyncGenerator[Feed]:
    """When this has been entered, the head is here."""
    async with server.events(f"/models/sse{query}") as client:
        yield Feed(client)


async def ok(server: Appliance, method: str, target: str, body: object = None) -> None:
    assert (await server.good(method, target, body)).json == {"success": True}


async def removed(server: Appliance) -> list[str]:
    told = (await server.good("DELETE", f"/models?model={MODEL}")).json
    assert (told["success"], told["model"]) == (True, MODEL)
    return told["paths"]


async def refused(server: Appliance, method: str, target: str, body: object = None) -> tuple[int, str, str]:
    answer = await server.ask(method, target, body)
    assert answer.json["error"]["code"] == answer.status
    return answer.status, answer.error["reason"], answer.error["message"]


async def entries(server: Appliance) -> dict[str, dict[str, object]]:
    listed = await server.ask("GET", "/models")
    return {entry["id"]: entry for entry in listed.json["data"]}


async def downloaded(server: Appliance, name: str = MODEL) -> None:
    async with feed(server) as reader:
        await ok(server, "POST", "/models", {"model": name})
        await reader.until("download_finished")


def files_in(cache: Path) -> list[str]:
    """Names of everything that is left of models, with what was begun."""
    return sorted(path.name for path in cache.rglob("*") if not path.is_dir() and path.suffix != ".lock")


# ---- the feed of processes -------------------------------------------------------------------------------------------


async def test_a_process_is_told_from_its_start_to_its_end(open_server: OpenServer, fake_model: Path):
    slow = [model(fake_model, "alpha", "al", args=("--load-delay", "0.5"))]
    async with open_server(models=slow) as server, feed(server) as reader:
        await ok(server, "POST", "/models/load", {"model": "al"})
        events = await reader.until("status_change", status="loaded")
        assert all(event["model"] == "alpha" for event in events)
        assert words(events) == [
            ("model_status", "loading"),
            ("status_change", "loading"),
            ("status_change", "loaded"),
        ]
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
    monkeypatch.setattr(model_routes, "PING_AFTER", 0.3)
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


# ---- downloads -------------------------------------------------------------------------------------------------------


async def test_a_download_is_listed_loaded_and_asked(served: Appliance, hub: FakeHub):
    total = (hub.root / REPO / "tiny-Q8_0.gguf").stat().st_size
    async with feed(served) as reader:
        assert await entries(served) == {}
        await ok(served, "POST", "/models", {"model": REPO})  # the tag is the hub's to say
        events = await reader.until("download_finished")
        listed = await entries(served)
        assert list(listed) == [MODEL]
        assert listed[MODEL]["status"]["value"] == "unloaded"
        assert (listed[MODEL]["source"], listed[MODEL]["can_remove"]) == ("cache", True)
        assert {event["model"] for event in events} <= {MODEL, "*"}
        assert [event["data"] for event in events if event["event"] == "model_status"] == [{"status": "downloading"}]
        told = [event["data"]["progress"] for event in events if event["event"] == "download_progress"]
        [(url, last)] = told[-1].items()
        assert url.startswith(f"{hub.url}/{REPO}/resolve/")
        assert last == {"done": total, "total": total}
        assert "data" not in events[-1]
        await ok(served, "POST", "/models/load", {"model": MODEL, "wait": True})
        assert (await served.ask("POST", CHAT, chat(REPO))).status == 200


async def test_a_coming_model_is_in_the_list_and_removed_with_what_has_come(
    served: Appliance, downloads: DownloadSettings, hub: FakeHub
):
    hub.behave(stall_after=SIZE // 2)
    async with feed(served) as reader:
        await ok(served, "POST", "/models", {"model": MODEL})
        await reader.until("download_progress")
        [entry] = (await entries(served)).values()
        assert (entry["id"], entry["status"]["value"], entry["source"]) == (MODEL, "downloading", "cache")
        assert entry["can_remove"] is True
        [progress] = entry["status"]["progress"].values()
        assert progress["total"] == (hub.root / REPO / "tiny-Q8_0.gguf").stat().st_size
        assert (await refused(served, "POST", "/models/load", {"model": MODEL}))[0] == 404
        async with feed(served, "?snapshot=1") as late:
            assert words(await late.until("download_progress"))[0] == ("model_status", "downloading")
        assert (await served.ask("GET", "/")).status == 200
        assert await removed(served) == []
        events = await reader.until("model_remove")
        told = [event["event"] for event in events if event["event"] != "download_progress"]
        assert told == ["download_failed", "model_remove"]
        assert files_in(downloads.cache) == []
        assert (await refused(served, "DELETE", f"/models?model={MODEL}"))[0] == 404


async def test_a_download_is_cancelled_by_unload(served: Appliance, hub: FakeHub):
    hub.behave(stall_after=SIZE // 2)
    async with feed(served) as reader:
        for name in (MODEL, MODEL.lower(), REPO):
            await ok(served, "POST", "/models", {"model": MODEL})
            await reader.until("download_progress")
            await ok(served, "POST", "/models/unload", {"model": name})
            await reader.until("download_failed")
            assert await entries(served) == {}
        assert (await refused(served, "POST", "/models/unload", {"model": MODEL}))[0] == 400
        hub.behave()
        await downloaded(served)
        assert list(await entries(served)) == [MODEL]


async def test_a_download_is_paused_until_it_is_asked_for_again(served: Appliance, hub: FakeHub):
    hub.behave(stall_after=SIZE // 2)
    async with feed(served) as reader:
        assert (await refused(served, "POST", "/models/pause", {"model": MODEL}))[0] == 400
        await ok(served, "POST", "/models", {"model": MODEL})
        assert "paused" not in (await entries(served))[MODEL]["status"]
        await reader.until("download_progress")
        await ok(served, "POST", "/models/pause", {"model": REPO})
        status = (await entries(served))[MODEL]["status"]
        assert (status["value"], status["paused"]) == ("downloading", True)
        hub.behave()
        await ok(served, "POST", "/models", {"model": MODEL})
        await reader.until("download_finished")
        assert "paused" not in (await entries(served))[MODEL]["status"]


async def test_events_in_the_words_of_the_readme(served: Appliance):
    async with feed(served, "?names=readme") as reader:
        await ok(served, "POST", "/models", {"model": MODEL})
        progress = (await reader.until("download_progress"))[-1]["data"]
        assert [sorted(file) for file in progress.values()] == [["done", "total"]]
        await reader.until("download_finished")
        await ok(served, "POST", "/models/load", {"model": MODEL})
        assert (await reader.until("model_status", status="loaded"))[-1]["data"]["info"]["id"] == MODEL


NOT_TO_BE_HAD = [
    ({}, "acme/none-GGUF:Q8_0", 404, "repository_not_found"),
    ({}, f"{REPO}:Q2_K", 404, "not_found"),
    ({"gated": True}, MODEL, 403, "repository_gated"),
    ({"fail_status": 500, "fail_times": 100}, MODEL, 502, "hub_failed"),
    ({}, "no-repository", 400, "invalid_request"),
    ({}, f"{REPO}:../x", 400, "invalid_request"),
]


async def test_what_cannot_be_downloaded_is_said_at_once(served: Appliance, downloads: DownloadSettings, hub: FakeHub):
    for mood, name, status, reason in NOT_TO_BE_HAD:
        hub.behave(**mood)
        assert (await refused(served, "POST", "/models", {"model": name}))[:2] == (status, reason)
        assert await entries(served) == {}
    assert files_in(downloads.cache) == []


async def test_offline_and_without_a_cache_nothing_is_downloaded(open_server: OpenServer, downloads: DownloadSettings):
    offline = structs.replace(downloads, hub=structs.replace(downloads.hub, offline=True))
    async with open_server(downloads=offline) as server:
        assert (await refused(server, "POST", "/models", {"model": MODEL}))[:2] == (403, "offline")
    async with open_server() as server:
        assert (await refused(server, "POST", "/models", {"model": MODEL}))[:2] == (403, "forbidden")
        assert (await refused(server, "DELETE", "/models?model=alpha"))[:2] == (403, "forbidden")


async def test_what_is_here_is_not_downloaded_again(served: Appliance, downloads: DownloadSettings):
    write_model(downloads.models_dir / "mine.gguf")
    await downloaded(served)
    for name in (MODEL, MODEL.lower(), "mine"):
        told = (400, "invalid_request", f"model '{name}' already exists")
        assert await refused(served, "POST", "/models", {"model": name}) == told
    for body in ({"model": ""}, {}):
        assert (await refused(served, "POST", "/models", body))[2] == "model must be a non-empty string"
    assert (await refused(served, "POST", "/models", b"{"))[0] == 400


async def test_what_is_here_and_broken_is_downloaded_again(served: Appliance, downloads: DownloadSettings):
    await downloaded(served)
    [file] = (downloads.cache / "models--acme--tiny-GGUF" / "snapshots").glob("*/*.gguf")
    file.resolve().write_bytes(b"rubbish")
    assert (await served.ask("GET", "/models?reload=1")).json["data"][0]["status"]["error"]
    await downloaded(served)
    assert "error" not in (await entries(served))[MODEL]["status"]
    assert (await served.ask("POST", CHAT, chat(MODEL))).status == 200


# ---- removal ---------------------------------------------------------------------------------------------------------


async def test_a_loaded_model_is_stopped_and_its_files_go(served: Appliance, downloads: DownloadSettings):
    await downloaded(served)
    await ok(served, "POST", "/models/load", {"model": MODEL, "wait": True})
    contexts = kept_of(served.owners.fleet)
    other, _ = [await kept_one(contexts, model=model) for model in ("other", MODEL)]
    async with feed(served) as reader:
        [path] = await removed(served)
        assert [each.name for each in contexts.entries()] == [other.name]
        assert Path(path).is_relative_to(downloads.cache)
        assert served.state(MODEL) == "unloaded"
        assert files_in(downloads.cache) == []
        events = await reader.until("models_reload")
        assert [(event["event"], event["model"]) for event in events] == [
            ("status_change", MODEL),
            ("model_remove", MODEL),
            ("models_reload", "*"),
        ]
    assert await entries(served) == {}
    assert (await served.ask("POST", CHAT, chat(MODEL))).status == 404
    await downloaded(served)
    assert list(await entries(served)) == [MODEL]


async def test_what_an_ended_download_has_left_is_removed(served: Appliance, downloads: DownloadSettings, hub: FakeHub):
    hub.behave(stall_after=SIZE // 2)
    await ok(served, "POST", "/models", {"model": MODEL})
    await until(lambda: files_in(downloads.cache))
    await ok(served, "POST", "/models/unload", {"model": MODEL})
    assert files_in(downloads.cache) != []
    assert await removed(served) == []
    assert files_in(downloads.cache) == []


async def test_only_the_caches_models_are_removed(served: Appliance, downloads: DownloadSettings):
    mine = write_model(downloads.models_dir / "mine.gguf")
    await downloaded(served)
    told = await served.refuses(403, "forbidden", "DELETE", "/models?model=mine", words="not removable")
    assert "models_dir" in told.error["message"]
    assert mine.exists()
    for query, expected in (("", 400), ("?model=", 400), ("?model=nobody", 404), (f"?model={REPO}", 404)):
        assert (await refused(served, "DELETE", f"/models{query}"))[0] == expected
    assert sorted(await entries(served)) == [MODEL, "mine"]


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
