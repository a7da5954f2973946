"""The cache is the one that huggingface_hub reads and locks, and the names are its names."""

from __future__ import annotations

import sys
from pathlib import Path

import trio
from gguf_files import write_model
from hub_process import fake_hub
from huggingface_hub import scan_cache_dir, try_to_load_from_cache
from huggingface_hub.file_download import repo_folder_name
from huggingface_hub.utils import HFValidationError, validate_repo_id
from hypothesis import assume, given
from hypothesis import strategies as st

from appliance.catalog.supply import DownloadSettings
from appliance.core.models.download import parse_reference
from appliance.core.models.hub_address import HubAccess
from appliance.core.models.names import folder_of, repo_of
from appliance.features.downloads.owner import open_downloads

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
