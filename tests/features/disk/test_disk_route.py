"""Every byte of a file system is free, in one of the folders, or other: the sums, ``GET /api/disk`` and its verb."""

from __future__ import annotations

import shutil
from typing import Any

from gguf_files import write_model
from http_harness import Appliance, OpenServer
from hub_process import FakeHub
from hypothesis import given
from hypothesis import strategies as st
from waiting import until

from appliance.catalog.supply import DownloadSettings
from appliance.features.disk.rules import FolderUse, disk_spaces

MODEL = "acme/tiny-GGUF:Q8_0"
SIZE = 1 << 20


async def disk(server: Appliance) -> dict[str, list[dict[str, Any]]]:
    return (await server.good("GET", "/api/disk")).json


async def test_it_says_what_is_taken_and_what_a_removal_frees(
    open_server: OpenServer, downloads: DownloadSettings, hub: FakeHub
) -> None:
    """`test_disk_route.py` has where each byte belongs."""
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


FOLDERS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 10**12)), max_size=8)


@given(FOLDERS, st.integers(0, 10**13), st.integers(0, 10**13))
def test_every_byte_has_one_place(found: list[tuple[int, int]], free: int, other: int) -> None:
    folders = [
        FolderUse(kind=str(number), path=f"/{number}", disk=disk, bytes=size, files=1)
        for number, (disk, size) in enumerate(found)
    ]
    ours = {disk: sum(size for each, size in found if each == disk) for disk, _ in found}
    spaces = disk_spaces(folders, {disk: (ours[disk] + free + other, free) for disk in ours})
    assert [space.disk for space in spaces] == list(dict.fromkeys(disk for disk, _ in found))
    for space in spaces:
        assert space.total == space.free + space.other + ours[space.disk]


def test_a_folder_that_grows_meanwhile_takes_no_more_than_there_is() -> None:
    folder = FolderUse(kind="cache", path="/cache", disk=0, bytes=120, files=1)
    (space,) = disk_spaces([folder], {0: (100, 10)})
    assert space.other == 0
