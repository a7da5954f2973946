"""``GET /api/disk`` of a server with a models folder and a cache, and the verb that shows it."""

from __future__ import annotations

import shutil
from typing import Any

from gguf_files import write_model
from http_harness import Appliance, OpenServer
from hub_process import FakeHub
from waiting import until

from appliance.catalog.supply import DownloadSettings

MODEL = "acme/tiny-GGUF:Q8_0"
SIZE = 1 << 20


async def disk(server: Appliance) -> dict[str, list[dict[str, Any]]]:
    return (await server.good("GET", "/api/disk")).json


async def test_it_says_what_is_taken_and_what_a_removal_frees(
    open_server: OpenServer, downloads: DownloadSettings, hub: FakeHub
) -> None:
    """`test_disk_spaces.py` has where each byte belongs."""
    write_model(downloads.models_dir / "mine.gguf", weights=5000)

    async def begin_download(server: Appliance) -> None:
        assert (await server.good("POST", "/models", {"model": MODEL})).json == {"success": True}

    async with open_server(downloads=downloads) as server:
        await begin_download(server)
        await until(lambda: server.owners.catalog.snapshot.find(MODEL))
        table = await disk(server)
        ours = {one["kind"]: one["bytes"] for one in table["folders"]}
        assert ours["models"] >= 5000
        assert ours["cache"] >= SIZE
        (space,) = table["disks"]
        assert space["total"] == shutil.disk_usage(downloads.cache).total
        mine, model = sorted(table["models"], key=lambda one: one["source"] == "cache")
        assert "llama-appliance rm mine" in mine["why"]
        assert (model["model"], model["why"], model["last_used"]) == (MODEL, "", None)
        assert model["frees"] >= SIZE
        assert (await server.ask("DELETE", f"/models?model={MODEL}")).json["size"] == model["frees"]
        assert [one["model"] for one in (await disk(server))["models"]] == ["mine"]
        hub.behave(stall_after=SIZE // 2)
        await begin_download(server)
        await until(lambda: next((each for each in server.owners.supply.snapshot() if each.done), None))
        (coming,) = (await disk(server))["downloads"]
        assert (coming["model"], coming["state"]) == (MODEL, "downloading")
    async with open_server(downloads=downloads) as server:
        (left,) = (await disk(server))["unfinished"]
        assert (left["model"], left["total"]) == (MODEL, next(iter(coming["files"].values()))["total"])
        assert (await server.ask("DELETE", f"/models?model={MODEL}")).json["size"] == left["frees"]
