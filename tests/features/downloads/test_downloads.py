"""Downloads against a hub that misbehaves in every known way."""

from __future__ import annotations

import errno
import itertools
import random
import shutil
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from gguf_files import write_big, write_model
from hub_process import FakeHub, fake_hub
from huggingface_hub import scan_cache_dir
from links import needs_links
from msgspec import structs
from waiting import until

from appliance.catalog.catalog import Catalog, Snapshot
from appliance.catalog.sources import ModelFolders
from appliance.catalog.supply import DownloadSettings
from appliance.core.models.download import Location, RegistryImage, Remote, WantedModel, parse_reference
from appliance.core.models.download_status import DownloadStatus, is_for
from appliance.core.models.hub_address import HubAccess
from appliance.errors import ApplianceError, BadRequest, Forbidden, NotFound, UsageError
from appliance.features.downloads.download import ModelDownload, disk_failed
from appliance.features.downloads.hub_api import ModelHub
from appliance.features.downloads.owner import Downloads, open_downloads
from appliance.features.downloads.plan import NotEnoughSpace, unfinished_in
from appliance.features.downloads.removal import plan_removal
from appliance.store import partial_file
from appliance.store.partial_file import claim, journaled
from appliance.upstream.file_transfer import UnderWay
from appliance.upstream.hub import DownloadsOff, GatedRepo, HubFailed, RepoNotFound, TokenRefused, hub_access

REPO = "acme/tiny-GGUF"
MODEL = f"{REPO}:Q8_0"
NAME = "tiny-Q8_0.gguf"
BIG = 3 << 20
SHARED_MEMORY = Path("/dev/shm")
CHUNK = 1 << 18
SLACK = 1 << 20
"""What may lie in sockets and in memory when a connection breaks."""


@pytest.fixture(autouse=True)
def _surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HF_TOKEN", "HF_ENDPOINT", "MODEL_ENDPOINT", "HF_HUB_OFFLINE", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")
    monkeypatch.setattr(partial_file, "CHUNK", CHUNK)


@pytest.fixture
def hub(tmp_path: Path) -> Generator[FakeHub]:
    write_big(tmp_path / "hub" / REPO / NAME, BIG)
    (tmp_path / "hub" / REPO / "README.md").write_text("# tiny")
    with fake_hub(tmp_path / "hub") as running:
        yield running


@pytest.fixture
def settings(hub: FakeHub, tmp_path: Path) -> DownloadSettings:
    return DownloadSettings(
        cache=tmp_path / "cache",
        models_dir=tmp_path / "models",
        hub=HubAccess(endpoint=hub.url),
        spare=0,
        retry_delay=lambda attempt, asked: 0.01,
    )


def folder(settings: DownloadSettings) -> Path:
    return settings.cache / "models--acme--tiny-GGUF"


def catalog_of(settings: DownloadSettings) -> Snapshot:
    return Catalog(ModelFolders(cache=settings.cache, models_dir=settings.models_dir, starter=None)).scan()


def listed(settings: DownloadSettings) -> dict[str, str | None]:
    """Every model that the catalog finds, with what is wrong with it."""
    return {model.id: model.error for model in catalog_of(settings).models}


@asynccontextmanager
async def stalled(hub: FakeHub, settings: DownloadSettings) -> AsyncGenerator[tuple[Downloads, ModelDownload]]:
    """A download of which a third has come, and of which no more than a half will."""
    hub.behave(stall_after=BIG // 2)
    async with open_downloads(settings) as downloads:
        download = await downloads.fetch(REPO)
        await until(lambda: download.status.done >= BIG // 3, changed=downloads.wait_changed)
        yield downloads, download


async def fetched(settings: DownloadSettings, tag: str | None = "Q8_0") -> ModelDownload:
    """A download that has ended, however."""
    with trio.fail_after(30):
        async with open_downloads(settings) as downloads:
            download = await downloads.fetch(f"{REPO}:{tag}" if tag else REPO)
            await download.wait()
    return download


async def refused(settings: DownloadSettings, repo: str = REPO, tag: str | None = "Q8_0") -> Exception:
    """What `start` raises."""
    with trio.fail_after(30):
        async with open_downloads(settings) as downloads:
            try:
                await downloads.fetch(repo if tag is None else f"{repo}:{tag}")
            except ApplianceError as error:
                return error
    raise AssertionError("it was begun")


def assert_whole(hub: FakeHub, settings: DownloadSettings, name: str = NAME) -> None:
    """The file is there under its name, and nothing of its making is left."""
    snapshot = next((folder(settings) / "snapshots").iterdir())
    assert (snapshot / name).read_bytes() == (hub.root / REPO / name).read_bytes()
    assert not [path for path in (folder(settings) / "blobs").iterdir() if ".part" in path.name]


# ---- the good way ----------------------------------------------------------------------------------------------------


async def test_a_download_is_a_model_of_the_catalog(hub: FakeHub, settings: DownloadSettings) -> None:
    download = await fetched(settings, None)
    assert download.model == MODEL
    assert download.status.state == "finished"
    assert download.status.done == download.status.total == (hub.root / REPO / NAME).stat().st_size
    assert_whole(hub, settings)
    assert listed(settings) == {MODEL: None}
    entry = next((folder(settings) / "snapshots").iterdir()) / NAME
    if sys.platform == "win32" and not entry.is_symlink():
        return  # most users may make no links there, and the content itself has the name
    assert entry.readlink().as_posix().startswith("../../blobs/")


@pytest.mark.parametrize(
    "mood",
    [
        {"page": 2, "no_sizes": True},
        {"stall_after": 2_000_000},
        {"cdn_status": 403, "cdn_times": 2},
        {"corrupt": 1},
        {"drop_after": 700_001},
    ],
)
async def test_a_difficult_hub_gives_the_whole_file_too(
    hub: FakeHub, settings: DownloadSettings, mood: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lists of several pages, silence, a content server that refuses an address, a damaged answer, cut connections."""
    monkeypatch.setattr("appliance.upstream.hub.STALL", 0.3)
    for number in range(7):
        (hub.root / REPO / f"a{number}.txt").write_text("x")
    hub.behave(**mood)
    assert (await fetched(settings)).status.state == "finished"
    assert_whole(hub, settings)
    before, size = hub.sent(), (hub.root / REPO / NAME).stat().st_size
    assert before == size or mood.keys() & {"stall_after", "corrupt"}, "a cut connection costs not a single byte"
    assert (await fetched(settings)).status.state == "finished"
    assert hub.sent() == before, "the second time nothing travels"


async def test_shards_and_projector_come_together_two_at_a_time(hub: FakeHub, settings: DownloadSettings) -> None:
    shards = [f"deep/big-Q4_K_M-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    for number, name in enumerate(shards):
        write_model(hub.root / REPO / name, weights=600_000, split__count=3, split__no=number)
    write_model(
        hub.root / REPO / "mmproj-tiny-F16.gguf", architecture="clip", weights=300_000, clip__has_vision_encoder=True
    )
    hub.behave(rate=3_000_000)
    most = 0
    with trio.fail_after(30):
        async with open_downloads(settings) as downloads:
            download = await downloads.fetch(REPO)
            while not download.status.ended:
                moving = [file for file in download.status.files.values() if 0 < file.done < file.total]
                most = max(most, len(moving))
                await downloads.wait_changed()
    assert download.status.state == "finished", download.status.error
    assert download.model == f"{REPO}:Q4_K_M"
    assert len(download.status.files) == 4
    assert most == 2
    model = catalog_of(settings).require(f"{REPO}:Q4_K_M")
    assert model.error is None
    assert model.mmproj is not None


async def test_two_models_that_share_a_projector_fetch_it_once(hub: FakeHub, settings: DownloadSettings) -> None:
    write_model(hub.root / REPO / "tiny-F16.gguf", weights=1000)
    projector = write_model(hub.root / REPO / "mmproj-tiny-F16.gguf", architecture="clip", weights=300_000)
    hub.behave(rate=3_000_000)
    with trio.fail_after(30):
        async with open_downloads(structs.replace(settings, parallel=4)) as downloads:
            both = [await downloads.fetch(f"{REPO}:{tag}" if tag else REPO) for tag in ("Q8_0", "F16")]
            assert [(await download.wait()).state for download in both] == ["finished", "finished"]
    asked = [entry for entry in hub.requests("cdn") if projector.name in entry["path"] and entry["method"] == "GET"]
    assert len(asked) == 1


async def test_other_models_of_a_repository_stay_when_it_moves_on(hub: FakeHub, settings: DownloadSettings) -> None:
    await fetched(settings)
    write_model(hub.root / REPO / "tiny-F16.gguf", weights=1000)
    assert (await fetched(settings, "F16")).status.state == "finished"
    assert listed(settings) == {MODEL: None, f"{REPO}:F16": None}


async def test_without_links_other_models_stay_unless_they_changed(hub: FakeHub, settings: DownloadSettings) -> None:
    """The first snapshot is as it is where links cannot be made. Nothing travels again, and nothing is copied."""
    stays, changes = hub.root / REPO / NAME, write_big(hub.root / REPO / "tiny-Q4_0.gguf", BIG)
    for tag in ("Q8_0", "Q4_0"):
        await fetched(settings, tag)
    (old,) = (folder(settings) / "snapshots").iterdir()
    for entry in old.iterdir():
        if entry.is_symlink():
            entry.resolve().replace(entry)
    write_big(changes, BIG)
    write_model(hub.root / REPO / "tiny-F16.gguf", weights=1000)
    assert changes.stat().st_size == (old / changes.name).stat().st_size
    before = hub.sent()
    assert (await fetched(settings, "F16")).status.state == "finished"
    assert listed(settings) == {MODEL: None, f"{REPO}:F16": None}
    assert hub.sent() - before == (hub.root / REPO / "tiny-F16.gguf").stat().st_size
    (new,) = set((folder(settings) / "snapshots").iterdir()) - {old}
    assert (new / NAME).samefile(old / NAME)
    assert (new / NAME).read_bytes() == stays.read_bytes()
    assert (old / changes.name).exists()
    assert not scan_cache_dir(settings.cache).warnings


async def test_the_token_goes_to_the_endpoint_and_nowhere_else(hub: FakeHub, settings: DownloadSettings) -> None:
    hub.behave(gated=True)
    access = HubAccess(endpoint=hub.url, token="hf_right")
    assert (await fetched(structs.replace(settings, hub=access))).status.state == "finished"
    assert {entry["authorization"] for entry in hub.requests("hub")} == {"Bearer hf_right"}
    assert {entry["authorization"] for entry in hub.requests("cdn")} == {None}


async def test_the_rate_is_kept(hub: FakeHub, settings: DownloadSettings) -> None:
    begun = trio.current_time()
    await fetched(structs.replace(settings, rate=4 * BIG))
    assert 0.2 < trio.current_time() - begun < 5


# ---- interruptions ---------------------------------------------------------------------------------------------------


async def test_speed_time_left_and_places_in_the_queue_are_told(hub: FakeHub, settings: DownloadSettings) -> None:
    for repo in ("acme/second-GGUF", "acme/third-GGUF"):
        write_big(hub.root / repo / f"{repo[5:-5]}-Q8_0.gguf", BIG)
    hub.behave(rate=BIG // 4)
    async with open_downloads(structs.replace(settings, parallel=1)) as downloads:
        first = await downloads.fetch(REPO)
        await until(lambda: first.status.speed is not None)
        second, third = await downloads.fetch("acme/second-GGUF"), await downloads.fetch("acme/third-GGUF")
        assert [status.place for status in downloads.snapshot()] == [None, 1, 2]
        status = first.status
        assert BIG / 16 < status.speed < BIG
        assert status.left == pytest.approx((status.total - status.done) / status.speed, rel=0.2)
        second.pause()
        second.resume()
        assert [status.place for status in downloads.snapshot()] == [None, 2, 1]
        first.pause()
        assert (first.status.speed, first.status.left) == (None, None)
        third.pause()
        second.pause()


async def test_cancelled_failed_and_begun_again_it_goes_on(hub: FakeHub, settings: DownloadSettings) -> None:
    hub.behave(stall_after=BIG // 2)
    async with open_downloads(settings) as downloads:
        download = await downloads.fetch(REPO)
        await until(lambda: download.status.done >= BIG // 2, changed=downloads.wait_changed)
        download.cancel()
        status = await download.wait()
        assert status.state == "cancelled"
        kept = journaled(download.plan.files[0].blob)
        assert kept[1] == status.done == BIG // 2
        hub.behave(drop_after=1, cdn_status=500, cdn_times=1000)
        away = await downloads.fetch(REPO)
        with trio.fail_after(20):
            assert (await away.wait()).state == "failed"
        assert isinstance(away.error, HubFailed)
        assert "500" in str(away.error)
        hub.behave()
        again = await downloads.fetch(REPO)
        assert again is not download
        assert again.status.done == status.done
        assert (await again.wait()).state == "finished"
    assert hub.requests("cdn")[-1]["range"] == f"bytes={status.done}-"
    assert_whole(hub, settings)
    assert hub.sent() <= (hub.root / REPO / NAME).stat().st_size + SLACK


async def test_ending_the_program_keeps_what_came(hub: FakeHub, settings: DownloadSettings) -> None:
    async with stalled(hub, settings) as (_, download):
        pass
    async with open_downloads(settings) as later:
        (unfinished,) = unfinished_in(settings.cache)
        assert (unfinished.model, unfinished.total) == (MODEL, download.status.total)
        assert unfinished.done >= BIG // 3
        assert listed(settings) == {}
        hub.behave()
        await (await later.fetch(unfinished.model)).wait()
        assert unfinished_in(settings.cache) == []
    assert listed(settings) == {MODEL: None}


async def test_the_catalog_has_the_model_when_its_download_has_ended(hub: FakeHub, settings: DownloadSettings) -> None:
    catalog = Catalog(ModelFolders(cache=settings.cache, starter=None))
    async with open_downloads(settings, catalog.scan) as downloads:
        assert (await (await downloads.fetch(REPO)).wait()).state == "finished"
        model = catalog.snapshot.require(MODEL)
        await downloads.delete(model)
        assert catalog.snapshot.find(MODEL) is None


@pytest.mark.parametrize("seed", range(3))
async def test_cancelled_at_any_moment_it_loses_nothing_and_hangs_nowhere(
    hub: FakeHub, settings: DownloadSettings, seed: int
) -> None:
    """Also while it asks the hub, checks what is there, gives the file its name."""
    moments = random.Random(seed)
    hub.behave(rate=60_000_000, drop_after=900_000)
    with trio.fail_after(60):
        for _ in range(25):
            async with open_downloads(settings) as downloads:
                with trio.move_on_after(moments.uniform(0, 0.08)):
                    await (await downloads.fetch(REPO)).wait()
        assert (await fetched(settings)).status.state == "finished"
    assert_whole(hub, settings)
    assert listed(settings) == {MODEL: None}


async def test_a_pause_closes_the_connection_and_costs_nothing(hub: FakeHub, settings: DownloadSettings) -> None:
    async with stalled(hub, settings) as (_, download):
        download.pause()
        assert download.status.state == "paused"
        await trio.sleep(0.2)
        at = download.status.done
        await trio.sleep(0.2)
        assert download.status.done == at < download.status.total
        hub.behave()
        download.resume()
        with trio.fail_after(20):
            assert (await download.wait()).state == "finished"
    assert_whole(hub, settings)
    assert hub.sent() <= (hub.root / REPO / NAME).stat().st_size + SLACK


async def test_a_server_that_ignores_ranges_costs_bytes_but_no_correctness(
    hub: FakeHub, settings: DownloadSettings
) -> None:
    hub.behave(drop_after=BIG // 2)
    patient = structs.replace(settings, retry_delay=lambda attempt, asked: 0.5)
    async with open_downloads(patient) as downloads:
        download = await downloads.fetch(REPO)
        await until(lambda: download.status.done >= BIG // 2, changed=downloads.wait_changed)
        hub.behave(ignore_range=True)
        with trio.fail_after(20):
            assert (await download.wait()).state == "finished"
    assert_whole(hub, settings)
    size = (hub.root / REPO / NAME).stat().st_size
    assert hub.sent() <= size + BIG // 2 + SLACK, "it was read over again once, and kept"


@pytest.mark.parametrize("mood", [{"unsatisfiable": True}, {"wrong_range": True}, {"etag": "-2"}])
async def test_a_file_that_changed_under_its_name_is_begun_again(
    hub: FakeHub, settings: DownloadSettings, mood: dict[str, object]
) -> None:
    async with stalled(hub, settings):
        pass
    hub.behave(**mood)
    assert (await fetched(settings)).status.state == "finished"
    assert_whole(hub, settings)
    assert hub.requests("cdn")[-1]["range"] is None


async def test_a_repository_that_changes_under_a_download_is_nobodys_mistake_and_begun_again(
    hub: FakeHub, settings: DownloadSettings
) -> None:
    async with stalled(hub, settings) as (_, download):
        download.pause()
        write_big(hub.root / REPO / NAME, BIG)
        download.resume()
        status = await download.wait()
    assert (status.state, status.reason, status.callers_fault) == ("failed", "repository_changed", False)
    assert status.error == f"{REPO} has changed since its files were listed by 127.0.0.1; download it again"
    hub.behave()
    assert (await fetched(settings)).status.state == "finished"
    assert_whole(hub, settings)


async def test_a_version_under_way_is_finished_although_there_is_a_newer_one(
    hub: FakeHub, settings: DownloadSettings
) -> None:
    async with stalled(hub, settings) as (downloads, download):
        (hub.root / REPO / "README.md").write_text("a newer commit")
        write_big(hub.root / REPO / NAME, BIG)
        assert await downloads.fetch(REPO) is download
        part = download.plan.files[0].blob.with_name(download.plan.files[0].oid + ".part")
        assert part.stat().st_size >= BIG // 3


async def test_a_busy_hub_is_asked_again(hub: FakeHub, settings: DownloadSettings) -> None:
    async with open_downloads(settings) as downloads:
        hub.behave(rate=2_000_000)
        download = await downloads.fetch(REPO)
        await until(lambda: download.status.done > 0, changed=downloads.wait_changed)
        hub.behave(drop_after=BIG // 2, fail_status=503, fail_times=2, retry_after="1")
        with trio.fail_after(20):
            assert (await download.wait()).state == "finished"


@pytest.mark.parametrize("status", [500, 502, 503, 429])
async def test_a_hub_that_is_busy_when_it_is_asked_for_its_files_is_asked_again(
    hub: FakeHub, settings: DownloadSettings, status: int
) -> None:
    waits: list[float | None] = []

    def delay(attempt: int, asked: float | None) -> float:
        waits.append(asked)
        return 0.01

    hub.behave(fail_status=status, fail_times=2, retry_after="7")
    patient = structs.replace(settings, retry_delay=delay)
    assert (await fetched(patient)).status.state == "finished"
    assert waits == [7.0, 7.0]


# ---- failures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mood", "why"),
    [
        ({"drop_after": BIG // 2, "unsatisfiable": True}, "begins the file anew each time"),
        ({"drop_after": BIG // 2, "wrong_range": True}, "begins the file anew each time"),
        ({"corrupt": 5}, "wrong contents"),
        ({"lie_size": -100}, "bytes, not"),
        ({"redirect_to": "gopher://x/"}, "not an address"),
        ({"redirect_to": "?again"}, "more than"),
    ],
)
async def test_a_hub_that_never_gives_the_file_is_given_up(
    hub: FakeHub, settings: DownloadSettings, mood: dict[str, object], why: str
) -> None:
    """Bytes that came before are not progress, however many come again; a damaged copy is never a model."""
    hub.behave(**mood)
    download = await fetched(settings)
    assert download.status.state == "failed"
    assert why in str(download.error)
    assert len(hub.requests("cdn")) < 20
    assert not list((folder(settings) / "snapshots").glob("*/*"))
    assert listed(settings) == {}


async def test_a_hub_that_dies_at_any_byte_costs_neither_time_nor_what_came(
    hub: FakeHub, settings: DownloadSettings, request: pytest.FixtureRequest
) -> None:
    """Cut in heads, listings and contents alike: the download ends by itself, and the next one makes it whole."""
    write_model(hub.root / REPO / NAME, weights=64)
    hub.behave()
    assert (await fetched(settings)).status.state == "finished"
    total = sum(entry["sent"] for entry in hub.requests()) + 4096  # with the heads and listings around it
    step = 5 if request.config.getoption("--deep") else 97
    died = 0
    for byte in range(1, total, step):
        shutil.rmtree(settings.cache)
        hub.behave(die_after=byte)
        with trio.fail_after(20):
            async with open_downloads(settings) as downloads:
                try:
                    status = await (await downloads.fetch(f"{REPO}:Q8_0")).wait()
                except HubFailed:
                    status = None
        died += status is None or status.state == "failed"
        assert status is None or status.state in ("failed", "finished"), byte
        assert status is None or status.state == "finished" or listed(settings) == {}, "half a model is none"
        hub.behave()
        assert (await fetched(settings)).status.state == "finished", byte
        assert_whole(hub, settings)
    assert died > 5


async def test_one_failure_is_no_other_downloads_failure(hub: FakeHub, settings: DownloadSettings) -> None:
    write_model(hub.root / "acme/other-GGUF/other-Q8_0.gguf", weights=200_000)
    hub.behave(corrupt=2, rate=3_000_000)
    with trio.fail_after(30):
        async with open_downloads(structs.replace(settings, parallel=1)) as downloads:
            bad = await downloads.fetch("acme/other-GGUF")
            good = await downloads.fetch(REPO)
            assert good.status.state == "queued"
            assert (await bad.wait()).state == "failed"
            assert (await good.wait()).state == "finished"
            assert [status.state for status in downloads.snapshot()] == ["failed", "finished"]
            downloads.forget(bad.model)
            assert [status.model for status in downloads.snapshot()] == [MODEL]


async def test_missing_gated_private_and_mistyped_are_told_apart(hub: FakeHub, settings: DownloadSettings) -> None:
    missing = await refused(settings, "acme/nothing")
    assert isinstance(missing, RepoNotFound)
    assert "HF_TOKEN" in str(missing)
    tag = await refused(settings, REPO, "Q2_K")
    assert isinstance(tag, NotFound)
    assert "it has Q8_0" in str(tag)
    hub.behave(private=True)
    assert isinstance(await refused(settings), RepoNotFound)
    hub.behave(gated=True)
    gated = await refused(settings)
    assert isinstance(gated, GatedRepo)
    assert f"{hub.url}/{REPO}" in str(gated)
    wrong = structs.replace(settings, hub=HubAccess(endpoint=hub.url, token="hf_wrong"))
    assert isinstance(await refused(wrong), TokenRefused)
    assert "hf_wrong" not in str(await refused(wrong))
    assert not settings.cache.exists()


async def test_a_pasted_address_brings_that_file_of_that_revision_or_nothing(
    hub: FakeHub, settings: DownloadSettings
) -> None:
    write_big(hub.root / REPO / "deep" / "big-F16.gguf", BIG + 32)
    hub.behave(branches={"same": {"new-Q2_K.gguf": NAME}, "v/2": {NAME: "deep/big-F16.gguf"}})
    commit = await ModelHub(settings.hub).commit_of(REPO, "same")
    async with open_downloads(settings) as downloads:
        for at in ("main", "same", commit):
            download = await downloads.fetch(f"{hub.url}/{REPO}/blob/{at}/deep/big-F16.gguf?download=true#x")
            assert [file.path for file in download.plan.files] == ["deep/big-F16.gguf"]
            assert (await download.wait()).state == "finished"
        assert [file.path for file in (await downloads.fetch(f"{hub.url}/{REPO}/tree/same/deep")).plan.files] == [
            "deep/big-F16.gguf"
        ]
        for path, why in [
            (f"blob/v%2F2/{NAME}", "another file than on its main branch"),
            ("tree/v%2F2", "another file than on its main branch"),
            ("blob/same/new-Q2_K.gguf", "another file than on its main branch"),
            (f"blob/{'0' * 40}/{NAME}", "no branch, tag or commit"),
            ("blob/main/other-Q8_0.gguf", "has no file other-Q8_0.gguf"),
        ]:
            with pytest.raises(NotFound, match=why):
                await downloads.fetch(f"{hub.url}/{REPO}/{path}")
    snapshots = folder(settings) / "snapshots"
    assert [path.name for path in snapshots.rglob("*.gguf")] == ["big-F16.gguf"]


async def test_no_room_is_said_before_the_first_byte(hub: FakeHub, settings: DownloadSettings) -> None:
    error = await refused(structs.replace(settings, spare=1 << 60))
    assert isinstance(error, NotEnoughSpace)
    assert hub.sent() == 0
    assert str(settings.cache) in str(error)
    assert "'llama-appliance disk'" in str(error)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no disk that is always full")
def test_a_disk_that_became_full_meanwhile_is_no_riddle() -> None:
    with pytest.raises(OSError, match="No space left") as refused, Path("/dev/full").open("wb", buffering=0) as disk:
        disk.write(b"x")
    said = str(disk_failed(NAME, refused.value))
    assert "the part so far is kept; make room ('llama-appliance disk'" in said
    assert "make room" not in str(disk_failed(NAME, PermissionError(errno.EACCES, "Permission denied")))


@pytest.mark.skipif(not SHARED_MEMORY.is_dir(), reason="nowhere else does the free space stand still")
async def test_room_is_kept_for_what_is_under_way(hub: FakeHub, settings: DownloadSettings) -> None:
    write_big(hub.root / "acme/other-GGUF/other-Q8_0.gguf", BIG)
    hub.behave(rate=1_000_000)
    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY) as cache:
        spare = shutil.disk_usage(cache).free - int(1.5 * BIG)
        async with open_downloads(structs.replace(settings, cache=Path(cache), spare=spare)) as downloads:
            first = await downloads.fetch(REPO)
            with pytest.raises(NotEnoughSpace):
                await downloads.fetch("acme/other-GGUF")
            first.cancel()
            await first.wait()
            await downloads.fetch("acme/other-GGUF")


@pytest.mark.parametrize("path", ["../../../../evil-Q4_K_M.gguf", "a/../../evil-Q4_K_M.gguf", "C:\\evil-Q4_K_M.gguf"])
async def test_no_name_leads_out_of_the_cache_or_to_another_request(
    hub: FakeHub, settings: DownloadSettings, path: str
) -> None:
    for repo in ("..", "a/b/c", "o/r?x=", "o/r\r\nX: y"):
        assert isinstance(await refused(settings, repo), BadRequest)
    access = hub_access({"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "1"})
    assert isinstance(await refused(structs.replace(settings, hub=access)), DownloadsOff)
    assert hub.requests() == []
    hub.behave(evil_path=path, no_sizes=False)
    assert isinstance(await refused(settings, REPO, None), HubFailed)
    assert not settings.cache.exists()


async def test_nobody_answers(settings: DownloadSettings, free_port: Callable[[], int]) -> None:
    access = hub_access({"HF_ENDPOINT": f"http://127.0.0.1:{free_port()}"})
    error = await refused(structs.replace(settings, hub=access))
    assert isinstance(error, HubFailed)
    with pytest.raises(UsageError):
        hub_access({"HF_ENDPOINT": "huggingface.co"})


async def test_another_program_that_downloads_the_same_is_told(hub: FakeHub, settings: DownloadSettings) -> None:
    async with open_downloads(settings) as downloads:
        hub.behave(rate=3_000_000)
        plan = (await downloads.fetch(REPO)).plan
    lock = claim(plan.files[0].lock)
    download = await fetched(settings)
    assert isinstance(download.error, UnderWay)
    assert "another program is downloading" in str(download.error)
    lock.release()
    assert (await fetched(settings)).status.state == "finished"


# ---- removal ---------------------------------------------------------------------------------------------------------


async def removed(settings: DownloadSettings, model_id: str) -> list[str]:
    """Remove a model, and tell the names of its files."""
    async with open_downloads(settings) as downloads:
        model = catalog_of(settings).require(model_id)
        return [Path(path).name for path in (await downloads.delete(model)).paths]


@needs_links
async def test_a_model_goes_with_its_blobs_and_the_last_one_with_everything(
    hub: FakeHub, settings: DownloadSettings
) -> None:
    write_model(hub.root / REPO / "tiny-F16.gguf", weights=1000)
    write_model(hub.root / REPO / "mmproj-tiny-F16.gguf", architecture="clip", weights=1000)
    await fetched(settings, "Q8_0")
    await fetched(settings, "F16")
    assert await removed(settings, MODEL) == [NAME]
    assert listed(settings) == {f"{REPO}:F16": None}
    assert len(list((folder(settings) / "blobs").iterdir())) == 2
    assert sorted(await removed(settings, f"{REPO}:F16")) == ["mmproj-tiny-F16.gguf", "tiny-F16.gguf"]
    assert not folder(settings).exists()


@pytest.mark.parametrize("seed", range(3))
async def test_files_with_like_names_are_pulled_listed_and_removed_each_by_its_own(
    hub: FakeHub, settings: DownloadSettings, seed: int
) -> None:
    """In any order, and the name that a model has does not change with another one's coming."""
    repo, weights = "like/names-GGUF", itertools.count(1000)
    paths = {
        "like/names-GGUF:Q4_K_M": "x-Q4_K_M.gguf",
        "like/names-GGUF:UD-Q4_K_M": "x-UD-Q4_K_M.gguf",
        "like/names-GGUF:I1-Q4_K_M": "x.i1-Q4_K_M.gguf",
        "like/names-GGUF:MODEL": "model.gguf",
        "like/names-GGUF/deep/model.gguf": "deep/model.gguf",
        "like/names-GGUF:Q8_0": "Q8_0.gguf",
    }
    for path in paths.values():
        write_model(hub.root / repo / path, weights=next(weights))
    order = random.Random(seed).sample(sorted(paths), len(paths))
    here: set[str] = set()
    for model in order:
        async with open_downloads(settings) as downloads:
            download = await downloads.fetch(model)
            assert (download.model, [file.path for file in download.plan.files]) == (model, [paths[model]])
            assert (await download.wait()).state == "finished"
        here.add(model)
        assert listed(settings) == dict.fromkeys(here)
    for model in sorted(here):
        assert await removed(settings, model) == [Path(paths[model]).name]
        here.remove(model)
        assert listed(settings) == dict.fromkeys(here)
    assert not list(settings.cache.glob("models--like*"))


async def test_a_download_is_discarded_under_way_and_in_a_later_run(hub: FakeHub, settings: DownloadSettings) -> None:
    async with stalled(hub, settings) as (downloads, download):
        assert (await downloads.discard(MODEL)).size >= BIG // 3
        assert download.status.state == "cancelled"
        assert downloads.snapshot() == []
        assert await downloads.discard(MODEL) is None
    assert not folder(settings).exists()
    async with stalled(hub, settings):
        pass
    async with open_downloads(settings) as later:
        assert await later.discard(f"{REPO}:F16") is None
        assert (await later.discard(MODEL)).size >= BIG // 3
        assert await later.discard(MODEL) is None
    assert not folder(settings).exists()


@needs_links
async def test_a_whole_shard_goes_with_its_download_and_stays_for_another(
    hub: FakeHub, settings: DownloadSettings
) -> None:
    """No name leads to it before all others are there."""
    for number in (1, 2):
        write_big(hub.root / REPO / f"s-Q4_0-0000{number}-of-00002.gguf", BIG * number)
    hub.behave(rate=BIG)
    blobs = folder(settings) / "blobs"
    async with open_downloads(settings) as downloads:
        await downloads.fetch(f"{REPO}:Q4_0")
        await until(lambda: [blob for blob in blobs.glob("*") if blob.suffix == ""])
        hub.behave(stall_after=0)
        assert (await downloads.discard(f"{REPO}:Q4_0")).size >= BIG
    assert not folder(settings).exists()


@pytest.mark.skipif(not SHARED_MEMORY.is_dir(), reason="nowhere else does the free space stand still")
@needs_links
async def test_what_a_removal_frees_is_known_before_it(hub: FakeHub, settings: DownloadSettings) -> None:
    """Two models share their contents: the first one's removal frees nothing but its name, the second one's all."""
    (hub.root / REPO / "tiny-F16.gguf").write_bytes((hub.root / REPO / NAME).read_bytes())
    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY) as cache:
        there = structs.replace(settings, cache=Path(cache))
        await fetched(there, "Q8_0")
        before = hub.sent()
        await fetched(there, "F16")
        assert hub.sent() == before
        for tag, least in (("Q8_0", 0), ("F16", BIG)):
            removal = plan_removal(catalog_of(there).require(f"{REPO}:{tag}"), there.cache, None)
            foretold, free = removal.frees(), shutil.disk_usage(cache).free
            assert removal.carry_out().size == foretold
            assert least <= foretold <= least + SLACK
            assert abs(shutil.disk_usage(cache).free - free - foretold) < SLACK


@needs_links
async def test_the_models_folder_loses_the_model_and_other_programs_nothing(
    settings: DownloadSettings, tmp_path: Path
) -> None:
    assert settings.models_dir
    single = write_model(settings.models_dir / "single.gguf")
    store = write_model(tmp_path / "store" / "theirs.gguf")
    (settings.models_dir / "linked.gguf").symlink_to(store)
    for number in (1, 2):
        write_model(settings.models_dir / f"s-0000{number}-of-00002.gguf", split__count=2, split__no=number - 1)
    write_model(settings.models_dir / "D" / "d-Q8_0.gguf")
    write_model(settings.models_dir / "D" / "mmproj-d.gguf", architecture="clip")
    assert await removed(settings, "single") == ["single.gguf"]
    assert await removed(settings, "linked") == ["linked.gguf"]
    assert len(await removed(settings, "s")) == 2
    assert len(await removed(settings, "D")) == 2
    assert not single.exists()
    assert store.exists()
    assert list(settings.models_dir.iterdir()) == []
    elsewhere = catalog_of(structs.replace(settings, models_dir=store.parent))
    async with open_downloads(settings) as downloads:
        with pytest.raises(Forbidden, match="cannot be removed"):
            await downloads.delete(elsewhere.require("theirs"))
    assert store.exists()


@pytest.mark.parametrize(
    ("model", "repo", "wanted", "same"),
    [
        ("o/r:Q4_K_M", "o/r", WantedModel(reference=parse_reference("o/r")), True),
        ("o/r:Q4_K_M", "o/r", WantedModel(reference=parse_reference("o/r:Q4_K_M")), True),
        ("o/r:Q4_K_M", "o/r", WantedModel(reference=parse_reference("o/r:Q8_0")), False),
        ("o/r:Q4_K_M", "o/r", WantedModel(reference=parse_reference("o/other")), False),
        ("o/r/a.gguf", "o/r", WantedModel(reference=parse_reference("o/r"), file="a.gguf"), True),
        ("o/r/a.gguf", "o/r", WantedModel(reference=parse_reference("o/r"), file="b.gguf"), False),
        ("ai/smol:1", "ai/smol", RegistryImage(repo="ai/smol", tag="1"), True),
        ("ai/smol:1", "ai/smol", RegistryImage(repo="ai/smol", tag="2"), False),
        ("m.gguf", "https://h/m.gguf", Location(url="https://h/m.gguf"), True),
        ("m.gguf", "https://h/m.gguf", Location(url="https://other/m.gguf"), False),
    ],
)
def test_a_download_is_for_what_it_brings(model: str, repo: str, wanted: Remote, same: bool) -> None:
    assert is_for(DownloadStatus(model=model, repo=repo, state="downloading", files={}), wanted) is same
