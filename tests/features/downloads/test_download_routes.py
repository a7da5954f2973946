"""Downloads, removal and what could be downloaded, over a real server with a hub of its own; what the feed says."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
from feed_reader import entries, feed, ok, refused, words
from gguf_files import write_model
from http_harness import CHAT, Appliance, OpenServer, chat
from hub_process import FakeHub, fake_hub
from kept_files import kept_of, kept_one
from msgspec import structs

from appliance.catalog.supply import DownloadSettings
from appliance.core.models.hub_address import HubAccess

REPO = "acme/tiny-GGUF"
MODEL = f"{REPO}:Q8_0"
SIZE = 1 << 20


async def removed(server: Appliance) -> list[str]:
    told = (await server.good("DELETE", f"/models?model={MODEL}")).json
    assert (told["success"], told["model"]) == (True, MODEL)
    return told["paths"]


async def downloaded(server: Appliance, name: str = MODEL) -> None:
    async with feed(server) as reader:
        await ok(server, "POST", "/models", {"model": name})
        await reader.until("download_finished")


def files_in(cache: Path) -> list[str]:
    """Names of everything that is left of models, with what was begun."""
    return sorted(path.name for path in cache.rglob("*") if not path.is_dir() and path.suffix != ".lock")


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


async def test_only_the_caches_models_are_removed(served: Appliance, downloads: DownloadSettings):
    mine = write_model(downloads.models_dir / "mine.gguf")
    await downloaded(served)
    told = await served.refuses(403, "forbidden", "DELETE", "/models?model=mine", words="not removable")
    assert "models_dir" in told.error["message"]
    assert mine.exists()
    for query, expected in (("", 400), ("?model=", 400), ("?model=nobody", 404), (f"?model={REPO}", 404)):
        assert (await refused(served, "DELETE", f"/models{query}"))[0] == expected
    assert sorted(await entries(served)) == [MODEL, "mine"]


@pytest.fixture
def two_repos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[FakeHub]:
    monkeypatch.setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")
    for name, weights in (("tiny-Q8_0", 2000), ("tiny-Q4_K_M", 1000), ("mmproj-F16", 10)):
        write_model(tmp_path / "hub" / REPO / f"{name}.gguf", weights=weights)
    write_model(tmp_path / "hub" / "acme" / "other-GGUF" / "other-Q4_0.gguf")
    with fake_hub(tmp_path / "hub") as running:
        yield running


def settings_for(endpoint: str, folder: Path, *, offline: bool = False) -> DownloadSettings:
    return DownloadSettings(cache=folder / "cache", hub=HubAccess(endpoint=endpoint, offline=offline), spare=0)


async def test_the_hub_is_searched_and_its_quantisations_are_judged(
    open_server: OpenServer, two_repos: FakeHub, tmp_path: Path
) -> None:
    async with open_server(downloads=settings_for(two_repos.url, tmp_path)) as server:
        found = (await server.ask("GET", "/api/hub/search?q=tiny")).json["data"]
        assert found == [{"id": REPO, "downloads": 7, "likes": 1, "gated": False, "tags": []}]
        assert (await server.ask("GET", "/api/hub/search?q=nothing")).json["data"] == []
        assert (await server.ask("GET", "/api/hub/search")).status == 400
        choices = (await server.ask("GET", f"/api/hub/choices?repo={REPO}")).json["data"]
        assert [choice["model"] for choice in choices] == [f"{REPO}:Q4_K_M", f"{REPO}:Q8_0"]
        files = two_repos.root / REPO
        size = sum((files / name).stat().st_size for name in ("tiny-Q4_K_M.gguf", "mmproj-F16.gguf"))
        first = choices[0]
        assert (first["size"], first["vision"], first["fit"]["verdict"]) == (size, True, "fits")
        assert (await server.ask("GET", "/api/hub/choices?repo=acme/none")).status == 404
        assert (await server.ask("GET", "/api/hub/choices?repo=..")).status == 400


async def test_a_recommended_file_must_be_the_one_that_was_recommended(
    open_server: OpenServer, two_repos: FakeHub, tmp_path: Path
) -> None:
    async with open_server(downloads=settings_for(two_repos.url, tmp_path)) as server:
        body = {"model": f"{REPO}:Q8_0", "sha256": "0" * 64}
        await server.refuses(409, None, "POST", "/models", body, words="another file")
        listed = (await server.ask("GET", "/v1/models")).json["data"]
        assert not [entry for entry in listed if REPO in entry["id"]]


async def test_the_server_finds_out_whether_there_is_a_hub(
    open_server: OpenServer, two_repos: FakeHub, tmp_path: Path
) -> None:
    cases = ((two_repos.url, False, True), (two_repos.url, True, False), ("http://127.0.0.1:9", False, False))
    for endpoint, offline, online in cases:
        async with open_server(downloads=settings_for(endpoint, tmp_path, offline=offline)) as server:
            answer = (await server.ask("GET", "/api/recommended")).json
            assert answer["online"] is online
            assert answer["data"][0]["wish"] == "fast"
            assert answer["data"][0]["fit"]["needed"] > answer["data"][0]["model"]["size"]
