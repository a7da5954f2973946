"""The folder of kept contexts: nothing comes back but what was written, whatever happened to it in between."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from full_disk import full_disk, posix_only
from kept_files import DATA, context, kept_one, opened
from msgspec import structs

from appliance.core.llama import flags
from appliance.core.sizes import GIB, MIB
from appliance.errors import Conflict
from appliance.features.contexts.core.kept import PIECE, KeptContext, manifest_of, pieces_of
from appliance.features.contexts.files import ContextPlace, clear_kept, context_places, find_origin, open_kept_contexts
from appliance.platform.home import users_data

KILLED = Path(__file__).parents[1] / "e2e"
WRITER = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = sys.argv[3:]
from killed_at import changed_path
import trio
from kept_files import DATA, context, opened

folder, last, count = Path(sys.argv[1]), int(sys.argv[2]), 0

def watch(event, args):
    global count
    if (path := changed_path(event, args)) is not None and path.startswith(str(folder)):
        count += 1
        if count == last:
            os.kill(os.getpid(), signal.SIGKILL)

async def main():
    async with opened(folder) as kept:
        (old,) = kept.entries()
        sys.addaudithook(watch)
        new = context()
        await kept.make_room(len(DATA))
        for part in (DATA[:100], DATA[100:]):
            with kept.part(new.name).open("ab") as file:
                file.write(part)
        assert await kept.keep(new)
        await kept.used(new.name, 7)
        await kept.forget(old.name, "another one took its place")

trio.run(main)
print(count)
"""


def put(folder: Path, new: KeptContext, size: int) -> None:
    """A context of an earlier program, whose file has holes."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = structs.replace(new, size=size, pieces=(0,) * pieces_of(size))
    (folder / f"{new.name}.json").write_bytes(manifest_of(whole))
    with (folder / f"{new.name}.kv").open("wb") as file:
        file.truncate(size)


def modes(folder: Path) -> set[int]:
    return {(folder / name).stat().st_mode & 0o777 for name in names(folder)}


def names(folder: Path) -> set[str]:
    return {each.name for each in folder.iterdir()} - {"lock"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "contexts"


async def test_a_context_is_there_for_the_next_program(folder: Path) -> None:
    async with opened(folder) as kept:
        assert names(folder.parent) == set(), "a program that keeps nothing writes nothing"
        one = await kept_one(kept)
        assert one.made == one.used > 0
        assert await kept.check(one.name)
        await kept.used(one.name, 4)
        await kept.used(one.name, 5)
    async with opened(folder) as kept:
        (found,) = kept.entries("k")
        assert (found.saved_tokens, found.used > one.used) == (9, True)
        assert structs.replace(found, used=one.used, saved_tokens=0) == one
        assert kept.entries("another key") == []
        assert await kept.check(one.name)
        assert kept.whole(one.name).read_bytes() == DATA
    if sys.platform != "win32":
        assert (modes(folder.parent), modes(folder)) == ({0o700}, {0o600})


async def test_a_file_of_several_pieces_is_checked_in_each(folder: Path) -> None:
    data = bytes(2 * PIECE + 1)
    async with opened(folder) as kept:
        one = await kept_one(kept, data)
        assert len(one.pieces) == 3
        assert await kept.check(one.name)
        for at in (2 * PIECE, PIECE, 0):
            two = await kept_one(kept, data)
            with kept.whole(two.name).open("r+b") as file:
                file.seek(at)
                file.write(b"x")
            assert not await kept.check(two.name)
        assert [each.name for each in kept.entries()] == [one.name]


@pytest.mark.parametrize("size", [0, 1, len(DATA) - 1, len(DATA) + 1])
async def test_a_file_of_another_size_than_the_engine_said_is_not_kept(folder: Path, size: int) -> None:
    async with opened(folder) as kept:
        assert await kept.make_room(1)
        new = context()
        kept.part(new.name).write_bytes(bytes(size))
        assert not await kept.keep(new)
        assert not await kept.keep(structs.replace(new, size=0)), "an engine that has written nothing"
        assert (kept.entries(), names(folder)) == ([], set())


async def test_a_file_that_has_changed_or_gone_does_not_come_back(folder: Path) -> None:
    async with opened(folder) as kept:
        for spoil in (
            lambda path: path.write_bytes(DATA[:-1]),
            lambda path: path.write_bytes(DATA[:-1] + b"x"),
            lambda path: path.unlink(),
        ):
            one = await kept_one(kept)
            spoil(kept.whole(one.name))
            assert not await kept.check(one.name)
            assert not await kept.check(one.name), "it is not there any more"
        assert (kept.entries(), names(folder)) == ([], set())


async def test_what_does_not_belong_together_goes_at_the_next_start(folder: Path) -> None:
    async with opened(folder) as kept:
        good, cut, alone, bare = [await kept_one(kept) for _ in range(4)]
        other = await kept_one(kept)
    (folder / f"{cut.name}.kv").write_bytes(DATA[:-1])
    (folder / f"{alone.name}.json").unlink()
    (folder / f"{bare.name}.kv").unlink()
    (folder / f"{other.name}.json").write_bytes(manifest_of(structs.replace(other, name=good.name)))
    (folder / f"{good.name}.part").write_bytes(b"x")
    (folder / f".{good.name}.json.new").write_bytes(b"x")
    (folder / "of the user").write_bytes(b"x")
    put(folder, structs.replace(context(), used=time.time() - 8 * 24 * 3600), 5)
    put(folder, recent := structs.replace(context(), used=time.time() - 6 * 24 * 3600), 5)
    async with opened(folder) as kept:
        assert {each.name for each in kept.entries()} == {good.name, recent.name}
        kept_files = {f"{name}{end}" for name in (good.name, recent.name) for end in (".kv", ".json")}
        assert names(folder) == kept_files | {"of the user"}


async def test_the_least_recently_used_make_room(folder: Path) -> None:
    old, new = (structs.replace(context(), used=time.time() - age) for age in (100, 50))
    put(folder, old, 8 * GIB)
    put(folder, new, 8 * GIB)
    async with opened(folder) as kept:
        if shutil.disk_usage(folder).free < shutil.disk_usage(folder).total // 10 + 2 * MIB:
            pytest.skip("the disk is nearly full")
        assert len(kept.entries()) == 2
        one = await kept_one(kept)
        assert {each.name for each in kept.entries()} == {new.name, one.name}
        assert not await kept.make_room(17 * GIB)
        assert len(kept.entries()) == 2, "others do not go for one that cannot fit"


async def test_contexts_are_cleared_by_model_and_all(folder: Path) -> None:
    async with opened(folder) as kept:
        one, two = [await kept_one(kept, model=model) for model in ("a", "b")]
        assert [each.name for each in await kept.clear("a")] == [one.name]
        assert await kept.clear("a") == []
        assert [each.name for each in await kept.clear()] == [two.name]
        assert names(folder) == set()


async def test_a_folder_has_one_program(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with opened(folder) as first:
        one = await kept_one(first)
        async with opened(folder) as second:
            assert second.entries() == []
            assert not await second.make_room(1)
            assert not await second.open()
            (record,) = caplog.records
            assert record.levelno == logging.WARNING
            assert "another llama-appliance keeps its contexts there" in record.message
        assert await first.check(one.name)


@posix_only
@pytest.mark.parametrize("kind", ["file", "link", "open to others"])
async def test_a_folder_that_cannot_be_used_is_one_line_in_the_log(
    folder: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    elsewhere = folder.with_name("elsewhere")
    elsewhere.mkdir()
    (elsewhere / f"{'a' * 32}.kv").write_bytes(b"not ours")
    spoil: dict[str, Callable[[], object]] = {
        "file": lambda: folder.write_bytes(b""),
        "link": lambda: folder.symlink_to(elsewhere),
        "open to others": lambda: folder.parent.chmod(0o777),
    }
    spoil[kind]()
    async with opened(folder) as kept:
        assert not await kept.open()
        assert not await kept.make_room(1)
    assert len(caplog.records) == 1
    assert names(elsewhere) == {f"{'a' * 32}.kv"}


@posix_only
async def test_a_full_disk_is_one_line_in_the_log_and_keeping_goes_on_when_there_is_room(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(folder) as kept:
        one = await kept_one(kept)
        parts = [context(), context()]
        for part in parts:
            kept.part(part.name).write_bytes(DATA)
        with full_disk():
            assert [await kept.keep(part) for part in parts] == [False, False]
            await kept.used(one.name, 3)
            assert await kept.check(one.name)
        assert [record.levelno for record in caplog.records] == [logging.WARNING]
        assert [each.name for each in kept.entries()] == [one.name]
        assert names(folder) == {f"{one.name}.kv", f"{one.name}.json"}
        two = await kept_one(kept)
    async with opened(folder) as kept:
        assert {each.name for each in kept.entries()} == {one.name, two.name}


async def test_another_setting_removes_what_the_last_one_has_kept(tmp_path: Path) -> None:
    places = {tier: ContextPlace(tmp_path / tier, in_memory=False) for tier in ("ram", "disk")}
    for keep, left in (("disk", "disk"), ("ram", "ram"), ("off", None)):
        async with open_kept_contexts(keep, places) as kept:
            assert (kept is None) == (keep == "off")
            if kept is not None:
                await kept_one(kept)
        found = {tier for tier, place in places.items() if place.folder.exists() and names(place.folder)}
        assert found == ({left} if left else set())
    async with open_kept_contexts("ram", {}) as kept:
        assert kept is None


@posix_only
async def test_contexts_of_this_home_are_cleared_while_no_server_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("XDG_DATA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    places = context_places(users_data())
    assert len({place.folder for place in places.values()}) == len(places)
    tier = "ram" if "ram" in places else "disk"  # a container's memory has no room for files
    try:
        async with open_kept_contexts(tier, places) as kept:
            one = await kept_one(kept)
            with pytest.raises(Conflict, match="another llama-appliance"):
                await clear_kept(None)
        assert await clear_kept("other") == []
        assert [each.name for each in await clear_kept("m")] == [one.name]
        assert not places[tier].folder.exists()
    finally:
        shutil.rmtree(places[tier].folder, ignore_errors=True)


def test_the_key_needs_every_file_of_the_model(tmp_path: Path) -> None:
    model, adapter = tmp_path / "m.gguf", tmp_path / "l.gguf"
    model.write_bytes(b"1")
    options = flags.split(("-m", str(model), "--control-vector", str(adapter)))
    assert find_origin(options, "e") is None
    adapter.write_bytes(b"1")
    before = find_origin(options, "e")
    assert before is not None
    assert before == find_origin(options, "e")
    os.utime(adapter, ns=(1, 1))
    assert find_origin(options, "e") not in (None, before)
    assert find_origin(flags.split(("--hf-repo", "o/r")), "e") is None


@posix_only
@pytest.mark.slow
def test_a_kill_between_any_two_steps_leaves_nothing_wrong(folder: Path) -> None:
    async def prepare() -> KeptContext:
        async with opened(folder) as kept:
            return await kept_one(kept)

    async def look(killed: Path) -> list[KeptContext]:
        async with opened(killed) as kept:
            for each in kept.entries():
                assert await kept.check(each.name)
                assert kept.whole(each.name).read_bytes() == DATA
            found = kept.entries()
            assert names(killed) == {f"{each.name}{end}" for each in found for end in (".kv", ".json")}
            return found

    old = trio.run(prepare)
    seen: list[tuple[bool, bool]] = []
    for last in range(1, 100):
        killed = shutil.copytree(folder, folder.with_name(f"killed-{last}"))
        argv = [sys.executable, "-c", WRITER, str(killed), str(last), str(KILLED), *sys.path]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        found = trio.run(look, killed)
        is_old = [each.name == old.name for each in found]
        seen.append((any(is_old), not all(is_old)))
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
    assert seen == sorted(seen, key=[(True, False), (True, True), (False, True)].index), "old, both, new"
    assert (set(seen), len(seen) > 8) == ({(True, False), (True, True), (False, True)}, True)
