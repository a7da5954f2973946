"""Files of models for other boxes: ranges, the choice among boxes that may lie, names, and the route to them."""

from __future__ import annotations

import hashlib
import tracemalloc
from collections.abc import AsyncGenerator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import trio.testing
from gguf_files import write_model
from http_harness import Answer, Appliance, OpenServer
from hypothesis import example, given
from hypothesis import strategies as st
from links import needs_links
from pool_seat import SNAPSHOT, seat_of, write_cached
from waiting import until

from appliance.catalog.found import scan_cache, scan_folder
from appliance.catalog.supply import DownloadSettings
from appliance.core.models.names import folder_of
from appliance.errors import BadRequest
from appliance.features.pool.core.blobs import (
    FileSources,
    asks_for_blob,
    blob_path,
    cached_repo,
    check_names,
    names_in_folder,
    sha256_in,
    wanted_range,
)

POSITIONS = st.integers(0, 40)
HEX = "0123456789abcdef" * 4


@given(POSITIONS, POSITIONS, POSITIONS)
def test_a_range_is_the_part_that_it_names(size: int, first: int, last: int) -> None:
    content = bytes(range(size))

    def part(value: str) -> bytes | None:
        found = wanted_range(value, size)
        return found and content[found.start : found.stop]

    if first < size:
        assert part(f"bytes={first}-") == content[first:]
        assert part(f"bytes={first}-{last}") == (content[first : last + 1] if first <= last else content)
    elif first <= last:
        assert part(f"bytes={first}-{last}") is None, "416"
    assert part(f"bytes=-{last}") == (content[-last:] if last and size else None)


@given(st.text("bytes=0123456789-, \t\u0663", max_size=30) | st.none(), POSITIONS)
def test_any_other_range_is_the_whole_file_or_none_of_it(value: str | None, size: int) -> None:
    found = wanted_range(value, size)
    assert found is None or 0 <= found.start <= found.stop <= size
    if value is None or "," in value:
        assert found == range(size)


@given(st.text("abcdefABCDEF0123456789:/.%sh", max_size=80))
def test_only_a_hash_names_a_file(text: str) -> None:
    for path in (blob_path(text), f"/api/blobs/{text}", blob_path(HEX + text), blob_path(HEX[:-1] + text)):
        assert asks_for_blob("GET", path)
        try:
            found = sha256_in(path)
        except BadRequest:
            continue
        assert len(found) == 64
        assert path == blob_path(found)
    assert sha256_in(blob_path(HEX)) == HEX


@given(st.data(), st.integers(1, 5), st.integers(1, 6), st.booleans())
def test_the_file_comes_right_while_one_honest_box_has_it(data: st.DataObject, boxes: int, spans: int, kept: bool):
    """The others may lie or lack it, and an earlier run may have left a wrong part; no liar is asked for ever."""
    kinds = data.draw(st.lists(st.sampled_from(["honest", "liar", "lacks"]), min_size=boxes, max_size=boxes))
    kinds[data.draw(st.integers(0, boxes - 1))] = "honest"
    sources = FileSources(boxes)
    have, right, rounds = data.draw(st.integers(0, spans - 1)) if kept else 0, not kept, 0
    lacking = set[int]()
    while True:
        while have < spans:
            box = sources.choose(have)
            assert box is not None
            broken = rounds < 8 and data.draw(st.booleans())
            if kinds[box] == "lacks":
                assert box not in lacking, "it is asked once"
                lacking.add(box)
                sources.lacks(box)
                sources.ended(box, well=False)
                continue
            if not broken:
                have, right = have + 1, (right or have == 0) and kinds[box] == "honest"
                sources.gave(box, 1, 1.0 + box)
            sources.ended(box, well=not broken)
        if right:
            return
        sources.came_wrong()
        assert sources.left, "the honest box is never given up"
        have, right, rounds = 0, True, rounds + 1
        assert rounds <= 2 * boxes + 2


@given(st.integers(1, 5))
def test_when_all_lie_it_ends(boxes: int) -> None:
    sources, rounds = FileSources(boxes), 0
    while sources.left:
        for have in range(4):
            box = sources.choose(have)
            assert box is not None
            sources.gave(box, 1, 1.0)
            sources.ended(box, well=True)
        sources.came_wrong()
        rounds += 1
        assert rounds <= boxes + 1
    assert sources.choose(0) is None


@given(st.lists(st.floats(0.01, 100), min_size=2, max_size=5, unique=True), st.integers(0, 3))
def test_the_fastest_box_gives_most_and_a_break_moves_on(seconds: list[float], broken: int) -> None:
    sources, asked = FileSources(len(seconds)), list[int]()
    for have in range(len(seconds) + 6):
        box = sources.choose(have)
        assert box is not None
        asked.append(box)
        sources.gave(box, 100, seconds[box])
        sources.ended(box, well=True)
    assert set(asked[: len(seconds)]) == set(range(len(seconds))), "each has one trial"
    if sorted(seconds)[1] > 2 * min(seconds):
        assert set(asked[len(seconds) :]) == {seconds.index(min(seconds))}
    box = sources.choose(99)
    assert box is not None
    sources.ended(box, well=False)
    assert sources.choose(99) != box


@pytest.mark.parametrize(
    ("model_id", "names"),
    [
        ("tiny", ["tiny.gguf"]),
        ("tiny", ["tiny-Q8_0.gguf"]),
        ("big", ["big-00001-of-00002.gguf", "big-00002-of-00002.gguf"]),
        ("seer", ["seer-Q8_0.gguf", "mmproj-seer.gguf"]),
    ],
)
def test_files_in_the_models_folder_are_found_under_the_same_id(model_id: str, names: list[str], tmp_path: Path):
    placed = names_in_folder(model_id, names)
    check_names(model_id, placed)
    for name in placed:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (found,) = scan_folder(tmp_path, [])
    assert found.id == model_id
    assert [*found.files, *filter(None, [found.mmproj])] == [str(tmp_path / name) for name in placed]


NAMES = st.lists(
    st.text("abQ8_0.-/:\\\0\n", max_size=12).map(lambda text: text + ".gguf")
    | st.sampled_from(["../x.gguf", "a/b.gguf"]),
    max_size=3,
)


@example("acme/tiny:Q8_0", ["tiny-Q4_0.gguf"])
@example(".a", [".a/b.gguf"])
@example("tiny", ["a/tiny.gguf"])
@given(st.sampled_from(["tiny", "a", "acme/tiny:Q8_0", "..", "", ".a", "a/b"]) | st.text(max_size=8), NAMES)
def test_no_name_leads_elsewhere_or_to_another_id(model_id: str, names: list[str]) -> None:
    """The scan of a real folder finds names that pass under this id."""
    try:
        check_names(model_id, names)
    except BadRequest:
        return
    with TemporaryDirectory() as folder:
        repo = cached_repo(model_id)
        root = Path(folder) / folder_of(repo) / "snapshots" / HEX[:40] if repo else Path(folder)
        for name in names:
            path = root.joinpath(*name.split("/"))
            assert ".." not in path.parts
            if "\\" in name or ":" in name:
                return  # `join_inside` refuses it
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        if repo:
            (root.parent.parent / "refs").mkdir()
            (root.parent.parent / "refs" / "main").write_text(HEX[:40])
        found = [model.id for model in (scan_cache(Path(folder)) if repo else scan_folder(Path(folder), []))]
        assert model_id in found


KEY = [("Authorization", "Bearer sesame")]


@pytest.fixture
def box(tmp_path: Path) -> DownloadSettings:
    """A models folder with one model on its own and one with a projector, and a hub cache with one."""
    folder, cache = tmp_path / "models", tmp_path / "cache"
    write_model(folder / "alone.gguf", weights=1 << 18)
    write_model(folder / "seer" / "seer-Q8_0.gguf", weights=1 << 10)
    write_model(folder / "seer" / "mmproj-seer.gguf", architecture="clip", clip__has_vision_encoder=True)
    blob = write_model(tmp_path / "tiny-Q8_0.gguf", weights=1 << 12)
    write_cached(cache, blob.read_bytes(), sha256(blob))
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


@needs_links
async def test_each_model_lists_its_files_with_their_hashes(server: Appliance, box: DownloadSettings, tmp_path: Path):
    for model, root, names in (
        ("alone", box.models_dir, ["alone.gguf"]),
        ("seer", box.models_dir, ["seer/seer-Q8_0.gguf", "seer/mmproj-seer.gguf"]),
        ("acme/tiny-GGUF:Q8_0", box.cache / SNAPSHOT, ["tiny-Q8_0.gguf"]),
    ):
        expected = [{"name": n, "size": (root / n).stat().st_size, "sha256": sha256(root / n)} for n in names]
        assert await files(server, model) == expected
    assert (await get(server, "/api/blobs?model=nobody")).status == 404
    assert (await get(server, "/api/blobs")).status == 400
    changed = write_model(box.models_dir / "alone.gguf", weights=1 << 17)
    assert (await files(server, "alone"))[0]["sha256"] == sha256(changed), "a hash belongs to the file that was read"


@needs_links
async def test_a_file_comes_whole_and_in_parts(server: Appliance, box: DownloadSettings) -> None:
    """Every range is above, without HTTP."""
    content = (box.models_dir / "alone.gguf").read_bytes()
    ((file),) = await files(server, "alone")
    path, tag, size = f"/api/blobs/sha256:{file['sha256']}", f'"{file["sha256"]}"', len(content)
    whole = await get(server, path)
    assert (whole.status, whole.body, whole.header("etag")) == (200, content, tag)
    head = await get(server, path, ("Range", "bytes=5-6"), method="HEAD")
    assert (head.status, head.body, head.cut, head.header("content-length")) == (200, b"", False, str(size))
    async with server.connect() as client:
        for method, body in (("HEAD", b""), ("GET", content)):
            await client.send(method, path, headers=KEY)
            assert (await client.answer()).body == body
            client.h11.start_next_cycle()
    part = await get(server, path, ("Range", f"bytes=300000-{size}"), ("If-Range", tag))
    assert (part.status, part.body) == (206, content[300000:])
    assert part.header("content-range") == f"bytes 300000-{size - 1}/{size}"
    beyond = await get(server, path, ("Range", f"bytes={size}-"))
    assert (beyond.status, beyond.header("content-range")) == (416, f"bytes */{size}")


@needs_links
async def test_without_the_key_there_is_nothing(server: Appliance) -> None:
    for path in ("/api/blobs", f"/api/blobs/sha256:{HEX}", "/api/blobs/x"):
        assert (await server.ask("GET", path)).status == 401


@needs_links
async def test_garbage_names_nothing_and_a_blob_that_no_model_has_stays_here(
    server: Appliance, box: DownloadSettings
) -> None:
    (box.cache / SNAPSHOT / "../../blobs" / HEX).write_bytes(b"secret")
    wrong = [("sha256:../../etc/passwd", 400), (f"sha256:{HEX}%0A", 400)]
    for name, status in (*wrong, (f"sha256:{HEX}", 404), (f"sha256:{HEX[::-1]}", 404)):
        found = await get(server, f"/api/blobs/{name}")
        assert found.status == status, found.body
        uploads = await get(server, f"/api/blobs/{name}", method="POST")
        assert uploads.status == 501, "as clients of Ollama know"


@needs_links
async def test_a_program_in_no_pool_has_no_such_route(open_server: OpenServer, box: DownloadSettings) -> None:
    async with open_server(downloads=box) as server:
        assert (await server.ask("GET", f"/api/blobs/sha256:{HEX}")).status == 404
        assert (await server.ask("GET", "/api/blobs?model=alone")).status == 404


@needs_links
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
