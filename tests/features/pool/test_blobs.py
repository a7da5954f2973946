"""Ranges against bytes, the choice among boxes against a model of who lies, names against the folder's own scan."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from appliance.catalog.found import scan_cache, scan_folder
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
