"""The owner of engines, with builds that do what they are told: what it finds out, remembers, and finds out again."""

from __future__ import annotations

import hashlib
import shutil
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import msgspec
import pytest
import trio
from engine_folders import Lie, Listed, make_build, tell
from msgspec import structs
from waiting import until

from appliance.core.engines.builds import MANIFEST
from appliance.core.engines.choice import Ranked
from appliance.engines.background import keeping_up
from appliance.engines.found import Engine, Places, list_engines
from appliance.engines.integrity import read_build
from appliance.engines.owner import Engines, open_engines
from appliance.platform.power import Suspends
from appliance.store.engine_book import BOOK, BookFile

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the builds are shell scripts")

CARD = Listed(name="CUDA0")
OTHER = Listed(name="CUDA1", description="Other Card 10")
FAST = Lie(devices=(CARD,), prompt_speed=9000.0, generation_speed=900.0)
GPU, CPU = "linux-x64-cuda12/b2:CUDA0", "linux-x64-cpu/b2:CPU"


class World:
    def __init__(self, root: Path, starter: Path) -> None:
        self.root, self.starter = root, starter
        self.gpu = make_build(root, "cuda12", "b2", lie=FAST)
        self.cpu = make_build(root, "cpu", "b2")

    def find(self) -> list[Engine]:
        places = Places(named=None, beside=None, installed=self.root, cache=self.root / "none", search_path="")
        return [engine for engine in list_engines(places) if engine.folder is not None]

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Engines]:
        with trio.fail_after(60):
            async with open_engines(self.find, BookFile(self.root / BOOK), starter=self.starter) as engines:
                yield engines

    @asynccontextmanager
    async def keeping_up(
        self,
        busy: Callable[[], bool] = lambda: False,
        settled: Callable[[Engines], None] = lambda engines: None,
        suspends: Suspends | None = None,
    ) -> AsyncGenerator[Engines]:
        """The background task looks often, and waits for no quiet."""
        async with (
            self.open() as engines,
            keeping_up(engines, busy, partial(settled, engines), quiet=0.05, every=0.2, suspends=suspends),
        ):
            yield engines

    @asynccontextmanager
    async def proven(self) -> AsyncGenerator[Engines]:
        async with self.open() as engines:
            await engines.probe()
            await engines.prove()
            yield engines


@pytest.fixture
def world(tmp_path: Path, starter_model: Path) -> World:
    return World(tmp_path, starter_model)


def standings(engines: Engines, model: str = "") -> dict[str, str]:
    return {one.seat.id: one.standing for one in engines.ranked(model)}


def chosen(engines: Engines, model: str = "", word: str = "") -> str:
    engine = engines.choose(model, word=word)
    return engine.seat if engine is not None else "none"


async def test_before_anything_is_known_the_processor_serves(world: World) -> None:
    async with world.open() as engines:
        assert chosen(engines) == CPU
        assert engines.look is None


async def test_what_is_learnt_holds_at_the_next_start_without_a_look(world: World) -> None:
    async with world.proven() as engines:
        assert chosen(engines) == GPU
        before = engines.ranked()
    tell(world.gpu, Lie(devices=(), list="hang", load="hang"))
    async with world.open() as engines:
        assert chosen(engines) == GPU
        after: list[Ranked] = engines.ranked()
        assert [(one.seat.id, one.standing, one.seconds) for one in after] == [
            (one.seat.id, one.standing, one.seconds) for one in before
        ]


async def test_the_chosen_engine_is_told_its_devices(world: World) -> None:
    async with world.proven() as engines:
        engine = engines.choose()
        assert engine is not None
        assert engine.args == ("--device", "CUDA0")


async def test_a_build_whose_files_change_is_tried_anew(world: World) -> None:
    async with world.proven():
        pass
    program = world.gpu / "llama-server"
    program.write_text(program.read_text() + "# another compiler\n")
    content = program.read_bytes()
    build = read_build(world.gpu)
    sums = structs.replace(build.files[0], size=len(content), sha256=hashlib.sha256(content).hexdigest())
    (world.gpu / MANIFEST).write_bytes(msgspec.json.encode(structs.replace(build, files=(sums,))))
    async with world.open() as engines:
        assert chosen(engines) == CPU


async def test_only_the_card_that_fails_is_left_out(world: World) -> None:
    both = Lie(devices=(CARD, OTHER), work="garbage", on=("CUDA1",), prompt_speed=9000.0, generation_speed=900.0)
    tell(world.gpu, both)
    async with world.proven() as engines:
        assert standings(engines)["linux-x64-cuda12/b2:CUDA1"] == "failed"
        assert chosen(engines) == GPU
        engine = engines.choose()
        assert engine is not None
        assert engine.args == ("--device", "CUDA0")


async def test_a_failure_at_work_is_on_probation_for_its_model_alone(world: World) -> None:
    async with world.proven() as engines:
        engine = engines.choose("a")
        assert engine is not None
        engines.failed(engine, "a", "killed by SIGABRT")
        assert chosen(engines, "a") == CPU
        assert standings(engines, "a")[GPU] == "probation"
        assert chosen(engines, "b") == GPU
    async with world.open() as engines:  # the book was written
        assert chosen(engines, "a") == CPU


async def test_a_seat_that_works_is_not_kept_from_a_model_for_long_by_what_one_client_sends(world: World) -> None:
    async with world.proven() as engines:
        engine = engines.choose("a")
        assert engine is not None
        for _ in range(6):
            engines.failed(engine, "a", "killed by SIGABRT")
        (waiting,) = engines.book.probations
        assert waiting.until - waiting.since > 3600
        await engines.prove([seat for seat in engines.seats if seat.id == GPU])
        (waiting,) = engines.book.probations
        assert waiting.until - waiting.since <= 300


async def test_what_fails_at_work_is_proven_again_and_out_when_that_fails(world: World) -> None:
    async with world.proven():
        pass
    async with world.keeping_up() as engines:
        engine = engines.choose("a")
        assert engine is not None
        tell(world.gpu, Lie(devices=(CARD,), work="crash", on=("CUDA0",)))
        engines.failed(engine, "a", "killed by SIGABRT")
        await until(lambda: standings(engines, "b").get(GPU) == "failed")
        assert chosen(engines, "b") == CPU


async def test_nothing_is_tried_while_requests_are_under_way(world: World) -> None:
    busy, looks = True, 0

    def is_busy() -> bool:
        nonlocal looks
        looks += 1
        return busy

    async with world.keeping_up(busy=is_busy) as engines:
        await until(lambda: looks == 5)
        assert engines.look is None
        busy = False
        await until(lambda: chosen(engines) == GPU)


async def test_a_change_of_what_is_visible_has_the_devices_asked_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    settled: list[str] = []
    async with world.keeping_up(settled=lambda engines: settled.append(chosen(engines))) as engines:
        await until(lambda: GPU in settled)
        tell(world.gpu, Lie(devices=()))
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        await until(lambda: chosen(engines) == CPU and engines.look is not None)


async def test_after_a_sleep_the_devices_are_asked_again(world: World) -> None:
    asleep = [0.0]
    suspends = Suspends(running=trio.current_time, always=lambda: trio.current_time() + asleep[0])
    async with world.keeping_up(suspends=suspends) as engines:
        await until(lambda: chosen(engines) == GPU)
        tell(world.gpu, Lie(devices=()))
        asleep[0] = 3600.0
        await until(lambda: chosen(engines) == CPU)


async def test_a_card_that_is_damaged_on_disk_is_not_started(world: World) -> None:
    async with world.proven() as engines:
        engine = engines.choose()
        assert engine is not None
        (world.gpu / "llama-server").write_text("#!/bin/sh\nexit 0\n")
        assert "llama-server" in await engines.check(engine)
        assert chosen(engines) == CPU


async def test_a_damaged_build_that_is_installed_again_is_used_again(world: World) -> None:
    async with world.proven() as engines:
        engine = engines.choose()
        assert engine is not None
        program = world.gpu / "llama-server"
        whole = program.read_bytes()
        program.write_text("#!/bin/sh\nexit 0\n")
        assert await engines.check(engine)
        await engines.refresh()
        assert chosen(engines) == CPU
        program.write_bytes(whole)
        await engines.refresh()
        assert chosen(engines) == GPU


async def test_whether_a_change_has_reached_the_disk_is_known(world: World) -> None:
    book = world.root / BOOK
    async with world.open() as engines:
        engines.change(lambda book: structs.replace(book, use="cpu"))
        assert not engines.is_saved
        await engines.write_down()
        assert engines.is_saved
        blocked = book.with_name(f"{BOOK}.new")
        blocked.mkdir()  # where a folder is, no file can be written
        engines.change(lambda book: structs.replace(book, use="cuda12"))
        await engines.write_down()
        assert not engines.is_saved
        blocked.rmdir()
        engines.change(lambda book: structs.replace(book, pinned=True))
        await engines.write_down()
        assert engines.is_saved
    assert BookFile(book).read().use == "cuda12"


async def test_what_somebody_asked_for_goes_first_and_pinned_it_goes_alone(world: World) -> None:
    async with world.proven() as engines:
        engines.change(lambda book: structs.replace(book, use="cpu"))
        assert chosen(engines) == CPU
        assert chosen(engines, word="cuda12") == GPU
        engines.change(lambda book: structs.replace(book, use="cuda", pinned=True))
        assert {one.seat.backend for one in engines.ranked()} == {"cuda12"}


async def test_what_another_program_chooses_is_followed(world: World) -> None:
    async with world.proven():
        pass
    async with world.keeping_up() as engines, world.open() as other:
        assert chosen(engines) == GPU
        other.change(lambda book: structs.replace(book, use="cpu"))
        await until(lambda: chosen(engines) == CPU)


async def test_a_build_may_go_at_any_moment(world: World) -> None:
    """Who asks while engines are looked for again gets one that is there; a seat that has gone is not proven."""
    async with world.proven() as engines:
        gone = [seat for seat in engines.seats if seat.backend == "cuda12"]
        shutil.rmtree(world.gpu)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(engines.refresh)
            while chosen(engines) != CPU:
                await trio.lowlevel.checkpoint()
        assert await engines.prove(gone) == []
