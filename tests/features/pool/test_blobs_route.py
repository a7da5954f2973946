"""Files of models for other boxes: who gets them, which parts, and what names nothing."""

from __future__ import annotations

import hashlib
import tracemalloc
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import trio.testing
from gguf_files import write_model
from http_harness import Answer, Appliance, OpenServer
from links import needs_links
from pool_seat import seat_of
from waiting import until

from appliance.catalog.supply import DownloadSettings

KEY = [("Authorization", "Bearer sesame")]
CACHED = "models--acme--tiny-GGUF"
HEX = "0123456789abcdef" * 4


@pytest.fixture
def box(tmp_path: Path) -> DownloadSettings:
    """A models folder with one model on its own and one with a projector, and a hub cache with one."""
    folder, cache = tmp_path / "models", tmp_path / "cache"
    write_model(folder / "alone.gguf", weights=1 << 18)
    write_model(folder / "seer" / "seer-Q8_0.gguf", weights=1 << 10)
    write_model(folder / "seer" / "mmproj-seer.gguf", architecture="clip", clip__has_vision_encoder=True)
    blob = write_model(tmp_path / "tiny-Q8_0.gguf", weights=1 << 12)
    place = cache / CACHED / "blobs" / sha256(blob)
    place.parent.mkdir(parents=True)
    blob.rename(place)
    entry = cache / CACHED / "snapshots" / HEX[:40] / "tiny-Q8_0.gguf"
    entry.parent.mkdir(parents=True)
    entry.symlink_to(Path("../../blobs") / place.name)
    (cache / CACHED / "refs").mkdir()
    (cache / CACHED / "refs" / "main").write_text(HEX[:40])
    return DownloadSettings(cache=cache, models_dir=folder)


@pytest.fixture
async def server(open_server: OpenServer, box: DownloadSettings, tmp_path: Path) -> AsyncGenerator[Appliance]:
    async with open_server(downloads=box, pool=tmp_path / "pool.json", api_keys=("sesame",)) as running:
        await seat_of(running).require()
        yield running


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


async def get(server: Appliance, path: str, *headers: tuple[str, str], method: str = "GET") -> Answer:
    return await server.ask(method, path, headers=[*KEY, *headers])


async def files(server: Appliance, model: str) -> list[dict[str, object]]:
    """The files of a model as soon as their hashes are known."""
    found = await until(
        lambda: get(server, f"/api/blobs?model={model}"), lambda found: found.status != 200 or found.json["files"]
    )
    assert found.status == 200, found.body
    assert found.json["read"] == found.json["size"] == sum(file["size"] for file in found.json["files"])
    return found.json["files"]


pytestmark = needs_links


async def test_each_model_lists_its_files_with_their_hashes(server: Appliance, box: DownloadSettings, tmp_path: Path):
    for model, root, names in (
        ("alone", box.models_dir, ["alone.gguf"]),
        ("seer", box.models_dir, ["seer/seer-Q8_0.gguf", "seer/mmproj-seer.gguf"]),
        ("acme/tiny-GGUF:Q8_0", box.cache / CACHED / "snapshots" / HEX[:40], ["tiny-Q8_0.gguf"]),
    ):
        expected = [{"name": n, "size": (root / n).stat().st_size, "sha256": sha256(root / n)} for n in names]
        assert await files(server, model) == expected
    assert (await get(server, "/api/blobs?model=nobody")).status == 404
    assert (await get(server, "/api/blobs")).status == 400
    changed = write_model(box.models_dir / "alone.gguf", weights=1 << 17)
    assert (await files(server, "alone"))[0]["sha256"] == sha256(changed), "a hash belongs to the file that was read"


async def test_a_file_comes_whole_and_in_parts(server: Appliance, box: DownloadSettings) -> None:
    """`tests/core/models/test_blobs.py` has every range."""
    content = (box.models_dir / "alone.gguf").read_bytes()
    ((file),) = await files(server, "alone")
    path, tag, size = f"/api/blobs/sha256:{file['sha256']}", f'"{file["sha256"]}"', len(content)
    whole = await get(server, path)
    assert (whole.status, whole.body, whole.header("etag")) == (200, content, tag)
    head = await get(server, path, ("Range", "bytes=5-6"), method="HEAD")
    assert (head.status, head.body, head.header("content-length")) == (200, b"", str(size))
    part = await get(server, path, ("Range", f"bytes=300000-{size}"), ("If-Range", tag))
    assert (part.status, part.body) == (206, content[300000:])
    assert part.header("content-range") == f"bytes 300000-{size - 1}/{size}"
    beyond = await get(server, path, ("Range", f"bytes={size}-"))
    assert (beyond.status, beyond.header("content-range")) == (416, f"bytes */{size}")


async def test_without_the_key_there_is_nothing(server: Appliance) -> None:
    for path in ("/api/blobs", f"/api/blobs/sha256:{HEX}", "/api/blobs/x"):
        assert (await server.ask("GET", path)).status == 401


async def test_garbage_names_nothing_and_a_blob_that_no_model_has_stays_here(
    server: Appliance, box: DownloadSettings
) -> None:
    (box.cache / CACHED / "blobs" / HEX).write_bytes(b"secret")
    wrong = [("sha256:../../etc/passwd", 400), (f"sha256:{HEX}%0A", 400)]
    for name, status in (*wrong, (f"sha256:{HEX}", 404), (f"sha256:{HEX[::-1]}", 404)):
        found = await get(server, f"/api/blobs/{name}")
        assert found.status == status, found.body
        uploads = await get(server, f"/api/blobs/{name}", method="POST")
        assert uploads.status == 501, "as clients of Ollama know"


async def test_a_program_in_no_pool_has_no_such_route(open_server: OpenServer, box: DownloadSettings) -> None:
    async with open_server(downloads=box) as server:
        assert (await server.ask("GET", f"/api/blobs/sha256:{HEX}")).status == 404
        assert (await server.ask("GET", "/api/blobs?model=alone")).status == 404


async def test_a_client_that_reads_nothing_holds_little_and_its_leaving_ends_the_request(
    server: Appliance, box: DownloadSettings
) -> None:
    with (box.models_dir / "alone.gguf").open("r+b") as file:
        file.truncate(64 << 20)
    ((listed,),) = [await files(server, "alone")]
    tracemalloc.start()
    try:
        async with server.connect() as client:
            await client.send("GET", f"/api/blobs/sha256:{listed['sha256']}", headers=KEY)
            assert (await client.head()).status_code == 200
            await trio.testing.wait_all_tasks_blocked(0.2)
            assert server.traffic.metrics.under_way == 1
            assert tracemalloc.get_traced_memory()[0] < 8 << 20
        await until(lambda: server.traffic.metrics.under_way == 0)
    finally:
        tracemalloc.stop()
