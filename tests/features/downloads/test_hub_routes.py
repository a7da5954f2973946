"""What could be downloaded: a search of a hub of its own, a repository's quantisations, the recommended models."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
from gguf_files import write_model
from http_harness import OpenServer
from hub_process import FakeHub, fake_hub

from appliance.catalog.supply import DownloadSettings
from appliance.core.models.hub_address import HubAccess

REPO = "acme/tiny-GGUF"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[FakeHub]:
    monkeypatch.setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")
    for name, weights in (("tiny-Q8_0", 2000), ("tiny-Q4_K_M", 1000), ("mmproj-F16", 10)):
        write_model(tmp_path / "hub" / REPO / f"{name}.gguf", weights=weights)
    write_model(tmp_path / "hub" / "acme" / "other-GGUF" / "other-Q4_0.gguf")
    with fake_hub(tmp_path / "hub") as running:
        yield running


def settings_for(endpoint: str, folder: Path, *, offline: bool = False) -> DownloadSettings:
    return DownloadSettings(cache=folder / "cache", hub=HubAccess(endpoint=endpoint, offline=offline), spare=0)


async def test_the_hub_is_searched_and_its_quantisations_are_judged(
    open_server: OpenServer, hub: FakeHub, tmp_path: Path
) -> None:
    async with open_server(downloads=settings_for(hub.url, tmp_path)) as server:
        found = (await server.ask("GET", "/api/hub/search?q=tiny")).json["data"]
        assert found == [{"id": REPO, "downloads": 7, "likes": 1, "gated": False, "tags": []}]
        assert (await server.ask("GET", "/api/hub/search?q=nothing")).json["data"] == []
        assert (await server.ask("GET", "/api/hub/search")).status == 400
        choices = (await server.ask("GET", f"/api/hub/choices?repo={REPO}")).json["data"]
        assert [choice["model"] for choice in choices] == [f"{REPO}:Q4_K_M", f"{REPO}:Q8_0"]
        files = hub.root / REPO
        size = sum((files / name).stat().st_size for name in ("tiny-Q4_K_M.gguf", "mmproj-F16.gguf"))
        first = choices[0]
        assert (first["size"], first["vision"], first["fit"]["verdict"]) == (size, True, "fits")
        assert (await server.ask("GET", "/api/hub/choices?repo=acme/none")).status == 404
        assert (await server.ask("GET", "/api/hub/choices?repo=..")).status == 400


async def test_a_recommended_file_must_be_the_one_that_was_recommended(
    open_server: OpenServer, hub: FakeHub, tmp_path: Path
) -> None:
    async with open_server(downloads=settings_for(hub.url, tmp_path)) as server:
        body = {"model": f"{REPO}:Q8_0", "sha256": "0" * 64}
        await server.refuses(409, None, "POST", "/models", body, words="another file")
        listed = (await server.ask("GET", "/v1/models")).json["data"]
        assert not [entry for entry in listed if REPO in entry["id"]]


async def test_the_server_finds_out_whether_there_is_a_hub(
    open_server: OpenServer, hub: FakeHub, tmp_path: Path
) -> None:
    cases = ((hub.url, False, True), (hub.url, True, False), ("http://127.0.0.1:9", False, False))
    for endpoint, offline, online in cases:
        async with open_server(downloads=settings_for(endpoint, tmp_path, offline=offline)) as server:
            answer = (await server.ask("GET", "/api/recommended")).json
            assert answer["online"] is online
            assert answer["data"][0]["wish"] == "fast"
            assert answer["data"][0]["fit"]["needed"] > answer["data"][0]["model"]["size"]
