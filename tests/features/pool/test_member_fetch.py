"""Models that come from other boxes: real servers of ours, and relays in between that count bytes and cut."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
import trio
from gguf_files import write_model
from http_harness import Appliance, OpenServer
from links import needs_links
from msgspec import structs
from pool_seat import SNAPSHOT, seat_of, write_cached
from waiting import until

from appliance.catalog.catalog import Catalog
from appliance.catalog.sources import ModelFolders
from appliance.catalog.supply import DownloadSettings
from appliance.core.models.download_status import DownloadStatus
from appliance.errors import BadRequest, Conflict
from appliance.features.downloads.owner import open_downloads
from appliance.features.pool.core.blobs import HashedFile
from appliance.features.pool.member_source import MemberFailed, Members
from appliance.upstream.address import Address, address_of

CACHED = "acme/tiny-GGUF:Q8_0"
Cut = Callable[[int], bool]


class Relay:
    """A line to one box. It counts the bytes that come from the box, and breaks where ``cut`` says so."""

    def __init__(self, port: int, cut: Cut) -> None:
        self.count = 0
        self._port = port
        self._cut = cut

    async def serve(self, stream: trio.SocketStream) -> None:
        with suppress(OSError, trio.BrokenResourceError):
            async with stream, await trio.open_tcp_stream("127.0.0.1", self._port) as box:
                await box.send_all(await stream.receive_some(1 << 16))
                while data := await box.receive_some(1 << 16):
                    self.count += len(data)
                    await stream.send_all(data)
                    if self._cut(len(data)):
                        return


@asynccontextmanager
async def relayed(port: int, cut: Cut = lambda _: False) -> AsyncGenerator[tuple[Relay, Address]]:
    relay = Relay(port, cut)
    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, relay.serve, 0, host="127.0.0.1"))
        there = listener.socket.getsockname()[1]
        yield relay, address_of(f"http://127.0.0.1:{there}", f"box-{there}", api_key="sesame")
        nursery.cancel_scope.cancel()


def write_random(path: Path, size: int) -> str:
    """A model of this size whose bytes repeat nowhere; its hash."""
    write_model(path)
    source = random.Random(size)
    with path.open("r+b") as file:
        file.seek(0, os.SEEK_END)
        while (left := size - file.tell()) > 0:
            file.write(source.randbytes(min(left, 1 << 24)))
        file.seek(0)
        return hashlib.file_digest(file, "sha256").hexdigest()


@asynccontextmanager
async def boxes(open_server: OpenServer, folder: Path, *places: DownloadSettings) -> AsyncGenerator[list[Appliance]]:
    async with AsyncExitStack() as stack:
        found: list[Appliance] = []
        for number, place in enumerate(places):
            file = folder / f"box-{number}" / "pool.json"
            box = await stack.enter_async_context(open_server(downloads=place, pool=file, api_keys=("sesame",)))
            await seat_of(box).require()
            found.append(box)
        yield found


def address(server: Appliance, key: str = "sesame") -> Address:
    return address_of(f"http://127.0.0.1:{server.port}", f"box-{server.port}", api_key=key)


async def files_of(server: Appliance, model: str) -> list[HashedFile]:
    blobs = (await seat_of(server).require()).files
    found = await until(lambda: blobs.files(model), lambda found: found.files is not None, within=300)
    return list(found.files or ())


@pytest.fixture
def mine(tmp_path: Path) -> DownloadSettings:
    places = {"cache": tmp_path / "mine" / "cache", "models_dir": tmp_path / "mine" / "models"}
    return DownloadSettings(**places, spare=0, retry_delay=lambda attempt, asked: 0.01)


async def fetched(
    settings: DownloadSettings, members: Sequence[Address], files: Sequence[HashedFile], model: str
) -> DownloadStatus:
    with trio.fail_after(1200):
        async with open_downloads(settings) as downloads:
            download = await downloads.fetch_from(Members(members, files, model))
            assert [status.model for status in downloads.snapshot()] == [model]
            return await download.wait()


def listed(settings: DownloadSettings) -> dict[str, str | None]:
    sources = ModelFolders(cache=settings.cache, models_dir=settings.models_dir, starter=None)
    return {model.id: model.error for model in Catalog(sources).scan().models}


async def test_a_file_crosses_lines_that_break_and_no_byte_twice(
    open_server: OpenServer, tmp_path: Path, mine: DownloadSettings, request: pytest.FixtureRequest
) -> None:
    """8 GiB with ``--deep``."""
    option = request.config.getoption
    size, cuts = (8 << 30, 50) if option("--deep") else (256 << 20, 20) if option("--all") else (32 << 20, 8)
    theirs = DownloadSettings(cache=tmp_path / "none", models_dir=tmp_path / "theirs")
    sha256 = write_random(tmp_path / "theirs" / "large.gguf", size)
    passed, at = 0, [size * (number + 1) // (cuts + 1) for number in range(cuts)]

    def cut(count: int) -> bool:
        nonlocal passed
        passed += count
        due = bool(at) and passed >= at[0]
        if due:
            del at[0]
        return due

    async with boxes(open_server, tmp_path, theirs, theirs) as (one, two):
        files = await files_of(one, "large")
        assert await files_of(two, "large") == files
        assert files == [HashedFile(name="large.gguf", size=size, sha256=sha256)]
        async with relayed(one.port, cut) as (first, to_one), relayed(two.port, cut) as (second, to_two):
            status = await fetched(mine, [to_one, to_two], files, "large")
    assert (status.state, status.done, status.error) == ("finished", size, None)
    assert not at, "every cut was made"
    with (mine.models_dir / "large.gguf").open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == sha256
    assert first.count > size // 10, "both have given a part"
    assert second.count > size // 10
    assert first.count + second.count < 1.1 * size
    assert listed(mine) == {"large": None}


@needs_links
async def test_a_box_that_lies_or_lacks_the_file_is_left_out(
    open_server: OpenServer, tmp_path: Path, mine: DownloadSettings
) -> None:
    """The model is the hub's: it gets its place in the cache, where another file of the repository stays."""
    sha256 = write_random(tmp_path / "tiny.gguf", 3 << 20)
    content = (tmp_path / "tiny.gguf").read_bytes()
    honest, liar, empty = (DownloadSettings(cache=tmp_path / name) for name in ("honest", "liar", "empty"))
    write_cached(honest.cache, content, sha256)
    write_cached(liar.cache, content[:-1] + bytes([content[-1] ^ 1]), sha256)
    write_model(write_cached(mine.cache, b"", 64 * "a").with_name("other-Q4_0.gguf"))
    async with boxes(open_server, tmp_path, honest, liar, empty) as (good, bad, none):
        files = await files_of(good, CACHED)
        async with relayed(bad.port) as (line, lying):
            members = [address(none), lying, address(good, "wrong key"), address(good)]
            there = mine.cache / SNAPSHOT / "tiny-Q8_0.gguf"
            there.unlink()
            status = await fetched(mine, members, files, CACHED)
            assert (status.state, status.error) == ("finished", None)
            assert line.count < 1.1 * len(content), "it is asked once"
            assert there.read_bytes() == content
            assert listed(mine) == {CACHED: None, "acme/tiny-GGUF:Q4_0": None}
            other = structs.replace(mine, cache=tmp_path / "other")
            failed = await fetched(other, [lying], files, CACHED)
            assert (failed.state, failed.reason) == ("failed", "download_failed")
            failed = await fetched(other, [address(none), address(good, "wrong key")], files, CACHED)
            assert (failed.state, failed.reason) == ("failed", MemberFailed.reason)
    assert not list(other.cache.rglob("tiny*")), "nothing wrong gets a name"


async def test_a_model_of_several_files_gets_its_names_together(
    open_server: OpenServer, tmp_path: Path, mine: DownloadSettings
) -> None:
    folder = tmp_path / "theirs" / "seer"
    for number in (1, 2):
        name = f"big-0000{number}-of-00002.gguf"
        write_model(folder / name, weights=1 << 18, split__count=2, split__no=number - 1)
    write_model(folder / "mmproj-big.gguf", architecture="clip", clip__has_vision_encoder=True)
    theirs = DownloadSettings(cache=tmp_path / "none", models_dir=tmp_path / "theirs")
    async with boxes(open_server, tmp_path, theirs) as (box,), relayed(box.port) as (line, member):
        files = await files_of(box, "seer")
        names = ["big-00001-of-00002.gguf", "big-00002-of-00002.gguf", "mmproj-big.gguf"]
        assert [file.name for file in files] == [f"seer/{name}" for name in names]
        seen: list[dict[str, str | None]] = []
        async with open_downloads(mine) as downloads:
            download = await downloads.fetch_from(Members([member], files, "seer"))
            while not download.status.ended:
                seen.append(listed(mine))
                await downloads.wait_changed()
        assert download.status.state == "finished", download.status.error
        assert all(found in ({}, {"seer": None}) for found in seen), "not a part of a model is listed"
        assert listed(mine) == {"seer": None}
        before = line.count
        assert (await fetched(mine, [member], files, "seer")).state == "finished"
        assert line.count == before, "the second time nothing travels"
    assert sorted(path.name for path in mine.models_dir.iterdir()) == ["seer"]


async def test_what_cannot_be_fetched_is_refused_and_nothing_here_changes(mine: DownloadSettings) -> None:
    here = write_model(mine.models_dir / "tiny.gguf")
    write_model(mine.models_dir / "refs" / "refs.gguf")
    before = here.read_bytes()
    nobody = address_of("http://127.0.0.1:9", "nobody")
    good = HashedFile(name="tiny.gguf", size=len(before), sha256=64 * "a")

    async def refused(
        error: type[Exception],
        file: HashedFile,
        *,
        model: str = "tiny",
        members: Sequence[Address] = (nobody,),
        **changes,
    ) -> str:
        async with open_downloads(structs.replace(mine, **changes)) as downloads:
            with pytest.raises(error) as caught:
                await downloads.fetch_from(Members(members, [file], model))
        return str(caught.value)

    assert str(here) in await refused(Conflict, good)
    other = structs.replace(good, name="other.gguf")
    assert "--models-dir" in await refused(Conflict, other, model="other", models_dir=None)
    await refused(BadRequest, other, model="other", members=[])
    for wrong in ({"name": "../tiny.gguf"}, {"sha256": "../x"}, {"size": 0}, {"name": "another.gguf"}):
        await refused(BadRequest, structs.replace(good, **wrong))
    async with open_downloads(mine) as downloads:
        await downloads.fetch_from(Members([nobody], [other], "other"))
        assert await downloads.discard("other") is not None
    assert here.read_bytes() == before
    assert listed(mine) == {"tiny": None, "refs": None}
    assert not list(mine.models_dir.rglob("*.part*"))
