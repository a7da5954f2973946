"""A request that names a model of the hub downloads it: over a real server, a hub of its own, and a fake engine."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import trio
from gguf_files import write_model
from http_harness import CHAT, Answer, Appliance, OpenServer, chat, model
from hub_process import FakeHub
from msgspec import structs
from waiting import until

from appliance.catalog.supply import DownloadSettings
from appliance.core.models.download import read_wanted
from appliance.features import FEATURES

REPO = "acme/tiny-GGUF"
MODEL = f"{REPO}:Q8_0"
SIZE = 1 << 20


@pytest.fixture
def serve(open_server: OpenServer, downloads: DownloadSettings, tmp_path: Path) -> OpenServer:
    """Serve by a Llama Smart Proxy file, with keys of the program beside its own; models come from `hub`."""

    def serve(places: DownloadSettings = downloads, ping_after: float = 15, **keys: object):
        path = tmp_path / "proxy.json"
        path.write_text(json.dumps({"server_pool": {"num_servers": 2}, **keys}))
        return open_server(config=path, downloads=places, ping_after=ping_after)

    return serve


def asked_for(hub: FakeHub) -> int:
    """How often the hub was asked for the repository's files."""
    return sum(entry["path"].startswith(f"/api/models/{REPO}/tree/") for entry in hub.requests())


async def listed(server: Appliance) -> list[str]:
    return [entry["id"] for entry in (await server.ask("GET", "/v1/models")).json["data"]]


@pytest.mark.parametrize("name", [REPO, MODEL, f"{REPO}:q8_0"])
async def test_a_smart_proxy_file_downloads_what_a_request_names(serve: OpenServer, hub: FakeHub, name: str):
    async with serve() as server:
        await server.good("POST", CHAT, chat(name))
        assert await listed(server) == [MODEL]
        assert server.state(MODEL) == "loaded"
        await server.good("POST", CHAT, chat(name))
        assert server.state(name) in ("loaded", "unknown"), "a name is no second model"
    assert asked_for(hub) == 1


async def test_without_consent_a_404_says_how_to_pull(serve: OpenServer, hub: FakeHub):
    async with serve(autoDownload="off") as server:
        how = f"'llama-appliance pull {MODEL}' downloads it"
        await server.refuses(404, "model_not_found", "POST", CHAT, chat(MODEL), words=how)
        assert "pull" not in (await server.ask("POST", CHAT, chat("gpt"))).error["message"]
    assert hub.requests() == []


async def test_ask_wants_the_requests_consent(serve: OpenServer, hub: FakeHub):
    async with serve(autoDownload="ask") as server:
        await server.refuses(409, "download_needed", "POST", CHAT, chat(MODEL), words="X-Appliance-Download: allow")
        assert hub.requests() == []
        await server.good("POST", CHAT, chat(MODEL), [("X-Appliance-Download", "allow")])
        assert (await server.ask("POST", CHAT, chat(MODEL))).status == 200, "it is here now"


async def test_owners_and_sizes_are_limited(serve: OpenServer, tmp_path: Path, hub: FakeHub):
    async with serve(autoDownloadFrom=["Acme"], autoDownloadMax="100KB") as server:
        whose = "only download models of Acme (autoDownloadFrom)"
        await server.refuses(404, None, "POST", CHAT, chat("other/tiny-GGUF"), words=whose)
        assert hub.requests() == []
        await server.refuses(403, "download_too_large", "POST", CHAT, chat(MODEL), words="0.00 GB (autoDownloadMax)")
        assert not list((tmp_path / "cache").rglob("blobs/*"))


async def test_the_disk_is_looked_at_first(serve: OpenServer, downloads: DownloadSettings, hub: FakeHub):
    async with serve(structs.replace(downloads, spare=1 << 60)) as server:
        assert (await server.ask("POST", CHAT, chat(MODEL))).error["reason"] == "disk_full"
    assert hub.requests("cdn") == []


async def test_all_wait_for_one_download_and_it_outlives_the_first(serve: OpenServer, hub: FakeHub):
    hub.behave(rate=SIZE)
    answers: list[Answer] = []
    async with serve() as server, trio.open_nursery() as nursery:
        first = trio.CancelScope()

        async def ask() -> None:
            answers.append(await server.ask("POST", CHAT, chat(MODEL)))

        async def ask_first() -> None:
            with first:
                await ask()

        under_way = server.owners.supply
        nursery.start_soon(ask_first)
        await until(under_way.snapshot)
        for _ in range(3):
            nursery.start_soon(ask)
        first.cancel()
        await until(lambda: len(answers) == 3)
        assert [answer.status for answer in answers] == [200, 200, 200]
        [download] = under_way.snapshot()
        assert (download.state, download.number) == ("finished", 1)
    assert asked_for(hub) == 1


async def test_a_waiting_stream_hears_pings_and_how_far_it_is(serve: OpenServer, tmp_path: Path, hub: FakeHub):
    hub.behave(rate=SIZE)
    async with serve(ping_after=0.1, sendLoadingState=True) as server:
        answer = await server.ask("POST", CHAT, chat(REPO, stream=True))
        assert "Downloading: " in answer.body.decode()
        assert answer.events[-1] == "data: [DONE]"
    shutil.rmtree(tmp_path / "cache")
    async with serve(ping_after=0.1) as server:
        answer = await server.ask("POST", CHAT, chat(REPO, stream=True))
        assert answer.events[0] == ": ping"
        assert answer.events[-1] == "data: [DONE]"


async def test_what_the_hub_has_not_is_told_and_shown_as_failed(serve: OpenServer):
    async with serve() as server:
        await server.refuses(404, "repository_not_found", "POST", CHAT, chat("acme/none"))
        await server.refuses(404, None, "POST", CHAT, chat(f"{REPO}:Q2_K"), words="it has Q8_0")
        assert "there is no repository acme/none" in server.fleet.known("acme/none").error


async def test_a_program_without_downloads_serves_what_is_here(
    open_server: OpenServer, downloads: DownloadSettings, hub: FakeHub, tmp_path: Path
) -> None:
    here, config = write_model(downloads.models_dir / "here.gguf"), tmp_path / "proxy.json"
    config.write_text(json.dumps({"server_pool": {"num_servers": 2}}))
    rest = [each for each in FEATURES if each.name != "downloads"]
    async with open_server(config=config, downloads=downloads, features=rest) as server:
        await server.good("POST", CHAT, chat("here"))
        assert "pull" not in (await server.refuses(404, "model_not_found", "POST", CHAT, chat(MODEL))).error["message"]
        for method, target in (("POST", "/models"), ("POST", "/models/pause"), ("DELETE", f"/models?model={MODEL}")):
            await server.refuses(404, "route_not_found", method, target, {"model": MODEL})
        pulled = await server.ask("POST", "/api/pull", {"model": f"hf.co/{MODEL}", "stream": False})
        assert (pulled.status, "this program downloads nothing" in pulled.json["error"]) == (404, True)
        told = await server.good("GET", "/api/disk")
        assert ["removes no files" in one["why"] for one in told.json["models"]] == [True]
    wanted = structs.replace(model(here, "alpha"), path="", fetch=(read_wanted(MODEL),))
    async with open_server(models=[wanted], features=rest) as server:
        await server.refuses(404, "model_not_found", "POST", CHAT, chat(), words="this program downloads nothing")
    assert hub.requests() == []
    assert here.exists()
