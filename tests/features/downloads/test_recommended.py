"""The recommended models, the speed that is told of a download, and the cache that huggingface_hub reads and locks."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import trio
from gguf_files import write_model
from hub_process import fake_hub
from huggingface_hub import scan_cache_dir, try_to_load_from_cache
from huggingface_hub.file_download import repo_folder_name
from huggingface_hub.utils import HFValidationError, validate_repo_id
from hypothesis import assume, given
from hypothesis import strategies as st

from appliance.catalog.supply import DownloadSettings
from appliance.core.models.download import RemoteFile, choose, parse_reference
from appliance.core.models.hub_address import HubAccess
from appliance.core.models.names import folder_of, repo_of, stem_of, tag_of
from appliance.features.downloads.owner import open_downloads
from appliance.features.downloads.recommended import RECOMMENDED, RESERVE, cards, judged_by_size
from appliance.features.downloads.rules import PACE_STEP, PACE_WINDOW, DownloadPace

GIB = 1 << 30
ROOM = st.dictionaries(st.sampled_from(["ram", "gpu0", "gpu1"]), st.integers(0, 200 * GIB)).map(
    lambda room: {"ram": 0, **room}
)


def test_the_list_says_what_a_download_needs() -> None:
    assert [model.size for model in RECOMMENDED] == sorted({model.size for model in RECOMMENDED})
    assert len({model.sha256 for model in RECOMMENDED}) == len(RECOMMENDED)
    for model in RECOMMENDED:
        assert re.fullmatch(r"[0-9a-f]{64}", model.sha256)
        assert model.licence in ("Apache-2.0", "MIT")
        assert set(model.purpose) == {"en", "de"}
        assert all(text.endswith(".") and len(text) < 100 for text in model.purpose.values())
        tag = tag_of(stem_of(model.file) or "")
        reference = parse_reference(f"{model.repository}:{tag}")
        file = RemoteFile(model.file, model.sha256, model.size)
        assert choose(reference, [file]).model == (file,)


@given(room=ROOM)
def test_the_cards_fit_and_the_best_is_the_largest_that_does(room: dict[str, int]) -> None:
    found = cards(room)
    sizes = [card.model.size for card in found]
    assert found[0].wish == "fast"
    assert sizes == sorted(set(sizes))
    fitting = [model for model in RECOMMENDED if judged_by_size(model.size, room).verdict != "no"]
    if fitting:
        assert all(card.fit.verdict != "no" for card in found)
        assert found[-1].model == fitting[-1]
        assert len(found) == min(3, len(fitting))
    else:
        assert [card.model for card in found] == [RECOMMENDED[0]]


@given(size=st.integers(1, 100 * GIB), room=ROOM, more=st.integers(0, 50 * GIB))
def test_more_room_is_never_worse(size: int, room: dict[str, int], more: int) -> None:
    rank = {"no": 0, "partly": 1, "fits": 2}
    before, after = judged_by_size(size, room), judged_by_size(size, {**room, "ram": room["ram"] + more})
    assert rank[after.verdict] >= rank[before.verdict]
    assert before.needed > size
    if before.verdict == "fits":
        assert sum(max(0, free - RESERVE) for free in room.values()) >= before.needed


@given(rate=st.integers(1, 10**10), before=st.integers(0, 10**10), steps=st.lists(st.floats(0.01, 3), min_size=60))
def test_the_pace_is_that_of_a_steady_download(rate: int, before: int, steps: list[float]) -> None:
    pace, start = DownloadPace(), 100.0
    now = start
    for step in steps:
        now += step
        pace.see(before + round(rate * (now - start)), now)
    found = pace.rate(before + round(rate * (now - start)), now)
    if now - start > 2 * PACE_STEP + 3:
        assert found == pytest.approx(rate, rel=0.01, abs=4)
    assert pace.rate(before + round(rate * (now - start)), now + 2 * PACE_WINDOW) == pytest.approx(0, abs=rate * 0.05)


@given(st.lists(st.tuples(st.integers(0, 10**9), st.floats(0, 20)), max_size=40))
def test_a_pace_is_never_negative_whatever_comes_and_goes(steps: list[tuple[int, float]]) -> None:
    pace, now = DownloadPace(), 0.0
    for done, idle in steps:
        now += idle
        pace.see(done, now)
        assert (pace.rate(done, now) or 0) >= 0


REPO, NAME = "acme/tiny-GGUF", "tiny-Q8_0.gguf"
PART = st.text("abcXYZ019_.-", min_size=1, max_size=20)


async def test_the_library_finds_what_was_downloaded(tmp_path: Path) -> None:
    write_model(tmp_path / "hub" / REPO / NAME, weights=1000)
    cache = tmp_path / "cache"
    with fake_hub(tmp_path / "hub") as hub, trio.fail_after(30):
        settings = DownloadSettings(cache=cache, models_dir=tmp_path / "models", hub=HubAccess(endpoint=hub.url))
        async with open_downloads(settings) as downloads:
            await (await downloads.fetch(f"{REPO}:Q8_0")).wait()

    found = scan_cache_dir(cache)
    assert not found.warnings
    (repo,) = found.repos
    assert (repo.repo_id, repo.repo_type) == (REPO, "model")
    assert set(repo.refs) == {"main"}
    (file,) = repo.refs["main"].files
    assert file.file_name == NAME
    assert file.size_on_disk == (tmp_path / "hub" / REPO / NAME).stat().st_size
    assert try_to_load_from_cache(REPO, NAME, cache_dir=cache) == str(file.file_path)
    locks = cache / ".locks" / repo_folder_name(repo_id=REPO, repo_type="model")
    if sys.platform != "win32":  # there a lock goes when it is released
        assert [path.name for path in locks.iterdir()] == [f"{Path(file.blob_path).name}.lock"]


@given(owner=PART, name=PART)
def test_every_repository_of_the_library_has_the_same_folder_here(owner: str, name: str) -> None:
    repo = f"{owner}/{name}"
    try:
        validate_repo_id(repo)
    except HFValidationError:
        assume(False)
    folder = repo_folder_name(repo_id=repo, repo_type="model")
    assert (folder_of(repo), repo_of(folder)) == (folder, repo)
    assert parse_reference(repo).repo == repo
