"""The owner of engines, with builds that do what they are told: what it finds out, remembers, and finds out again."""

from __future__ import annotations

import shutil
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from engine_folders import HERE, Lie, Listed, make_build, tell
from engine_runs import builds_in
from fleet_harness import fake_model
from msgspec import structs
from waiting import until

from appliance.core.engine import Engine
from appliance.core.records.history import Happening
from appliance.core.settings import FleetSettings
from appliance.core.versions import StepDone, UpdateBegun
from appliance.engines.builds import EXECUTABLE
from appliance.errors import EngineNotFound
from appliance.features.engines import probing
from appliance.features.engines.background import EngineUpkeep
from appliance.features.engines.core.state import EngineChosen
from appliance.features.engines.owner import Engines, open_engines
from appliance.features.engines.shelf import StateFile
from appliance.features.engines.source import FoundHere
from appliance.fleet.owner import open_fleet
from appliance.main import usual_port
from appliance.platform.machine import Suspends
from appliance.store.version_file import FILE

CARD = Listed(name="CUDA0")
OTHER = Listed(name="CUDA1", description="Other Card 10")
FAST = Lie(devices=(CARD,), prompt_speed=9000.0, generation_speed=900.0)
GPU, CPU = f"{HERE}-cuda12/b2:CUDA0", f"{HERE}-cpu/b2:CPU"


class World:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.told: list[Happening] = []
        self.gpu = make_build(root, "cuda12", "b2", lie=FAST)
        self.cpu = make_build(root, "cpu", "b2")

    def find(self) -> list[Engine]:
        return builds_in(self.root)

    @asynccontextmanager
    async def open(self, *, only: bool = False) -> AsyncGenerator[Engines]:
        with trio.fail_after(60):
            file, tell = StateFile(self.root), self.told.append
            async with open_engines(self.find, file, only=only, tell=tell) as engines:
                yield engines

    @asynccontextmanager
    async def keeping_up(
        self,
        busy: Callable[[], bool] = lambda: False,
        settled: Callable[[Engines], None] = lambda engines: None,
        suspends: Suspends | None = None,
        *,
        only: bool = False,
    ) -> AsyncGenerator[Engines]:
        """The background task looks often, and waits for no quiet."""
        async with (
            self.open(only=only) as engines,
            EngineUpkeep(engines, busy, partial(settled, engines), 0.05, 0.2, suspends or Suspends()).open(),
        ):
            yield engines

    @asynccontextmanager
    async def proven(self) -> AsyncGenerator[Engines]:
        async with self.open() as engines:
            await engines.probe()
            await engines.prove()
            yield engines


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def standings(engines: Engines, model: str = "") -> dict[str, str]:
    return {one.seat.id: one.standing for one in engines.ranked(model)}


def chosen(engines: Engines, model: str = "", word: str = "") -> str:
    engine = engines.choose(model, word=word)
    return engine.seat if engine is not None else "none"


async def test_before_anything_is_known_the_processor_serves(world: World) -> None:
    async with world.open() as engines:
        assert chosen(engines) == CPU
        assert engines.look is None


async def test_what_is_learnt_is_told_once_and_holds_at_the_next_start_without_a_look(world: World) -> None:
    async with world.proven() as engines:
        assert chosen(engines) == GPU
        before = engines.ranked()
    [entry] = world.told
    assert (entry.kind, entry.engine, entry.following) == ("engine", CPU, GPU)
    assert entry.error.startswith("proven at ")
    tell(world.gpu, Lie(devices=(), list="hang", load="hang"))
    async with world.open() as engines:
        assert chosen(engines) == GPU
        for after, one in zip(engines.ranked(), before, strict=True):
            assert (after.seat.id, after.standing, after.seconds) == (one.seat.id, one.standing, one.seconds)
    assert world.told == [entry], "what was chosen before is no news"


async def test_a_model_gets_the_card_that_it_names_and_no_other(world: World) -> None:
    tell(world.gpu, Lie(devices=(CARD, OTHER)))
    async with world.open() as engines:
        assert engines.choose(cards=("Other Card",)) is None
        assert await engines.lacks(("Card 10",)) == ""
        engine = engines.choose(cards=("Card 10",))
        assert (engine.seat, engine.args) == (f"{HERE}-cuda12/b2:CUDA1", ("--device", "CUDA1"))
        assert engines.choose("m", (engine.seat,), cards=("Card 10",)) is None
        assert engines.choose(cards=("Card 10", "test card 9000")).args == ("--device", "CUDA0,CUDA1")
        assert await engines.lacks(("Card 11",)) == (
            "there is no graphics card 'Card 11': the engines list Test Card 9000 (CUDA0), Other Card 10 (CUDA1)"
        )
        await engines.prove()
        proven = {one.seat.id: one.standing for one in engines.ranked(cards=("Card 10",))}
        assert proven == {f"{HERE}-cuda12/b2:CUDA1": "proven"}
        engines.failed(engine, "m", "killed by SIGABRT")
        assert [one.standing for one in engines.ranked("m", cards=("Card 10",))] == ["probation"]


async def test_a_failure_at_work_is_on_probation_for_its_model_alone(world: World) -> None:
    async with world.proven() as engines:
        engine = engines.choose("a")
        engines.failed(engine, "a", "killed by SIGABRT")
        assert chosen(engines, "a") == CPU
        assert standings(engines, "a")[GPU] == "probation"
        assert chosen(engines, "b") == GPU
    async with world.open() as engines:  # it was written down
        assert chosen(engines, "a") == CPU


async def test_a_seat_that_works_is_not_kept_from_a_model_for_long_by_what_one_client_sends(world: World) -> None:
    async with world.proven() as engines:
        engine = engines.choose("a")
        for _ in range(6):
            engines.failed(engine, "a", "killed by SIGABRT")
        (waiting,) = engines.state.probations
        assert waiting.until - waiting.since > 3600
        await engines.prove([seat for seat in engines.seats if seat.id == GPU])
        (waiting,) = engines.state.probations
        assert waiting.until - waiting.since <= 300


async def test_what_fails_at_work_is_proven_again_and_out_when_that_fails(world: World) -> None:
    async with world.proven():
        pass
    async with world.keeping_up() as engines:
        engine = engines.choose("a")
        tell(world.gpu, Lie(devices=(CARD,), work="crash", on=("CUDA0",)))
        engines.failed(engine, "a", "killed by SIGABRT")
        await until(lambda: standings(engines, "b").get(GPU) == "failed")
        assert chosen(engines, "b") == CPU


async def test_what_somebody_tries_meanwhile_is_not_tried_again(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "appliance.features.engines.owner")
    settled: list[str] = []
    async with world.keeping_up(settled=lambda engines: settled.append(chosen(engines))) as engines:
        await until(lambda: engines.trying)
        await engines.prove()
        await until(lambda: settled)
    assert sum("is proven" in record.getMessage() for record in caplog.records) == 2


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


async def test_builds_are_asked_for_their_options_also_after_a_version_that_did_not_ask(world: World) -> None:
    """The file of results stays readable both ways: the key is new, and a build without it is asked once more."""
    tell(world.gpu, structs.replace(FAST, help="--kv-unified-per-slot N    a limit\n--port PORT    (default: 9931)"))
    async with world.proven() as engines:
        assert not engines.unlisted
    content = msgspec.json.decode((world.root / FILE).read_bytes())
    for listed in content["state"]["listed"]:
        assert listed.pop("manual")
    (world.root / FILE).write_bytes(msgspec.json.encode(content))
    async with world.open() as engines:
        engine = engines.choose()
        assert (engine.seat, engine.manual, engines.unlisted) == (GPU, None, True)
    found = FoundHere(world.find, world.root)
    assert await usual_port(found) == 9931
    async with world.keeping_up() as engines:
        await until(lambda: not engines.unlisted)
        assert engines.choose().manual.names("--kv-unified-per-slot")
    tell(world.gpu, structs.replace(FAST, help="nothing"))
    assert await usual_port(found) == 9931, "as it is remembered"


async def test_after_a_sleep_the_devices_are_asked_again(world: World) -> None:
    asleep = [0.0]
    suspends = Suspends(running=trio.current_time, always=lambda: trio.current_time() + asleep[0])
    async with world.keeping_up(suspends=suspends) as engines:
        await until(lambda: chosen(engines) == GPU)
        tell(world.gpu, Lie(devices=()))
        asleep[0] = 3600.0
        await until(lambda: chosen(engines) == CPU)


async def test_a_damaged_build_that_is_installed_again_is_used_again(world: World) -> None:
    async with world.proven() as engines:
        engine = engines.choose()
        program = world.gpu / EXECUTABLE
        whole = program.read_bytes()
        program.write_text("#!/bin/sh\nexit 0\n")
        assert await engines.check(engine)
        await engines.refresh()
        assert chosen(engines) == CPU
        program.write_bytes(whole)
        await engines.refresh()
        assert chosen(engines) == GPU


async def test_whether_a_change_has_reached_the_disk_is_known(world: World, caplog: pytest.LogCaptureFixture) -> None:
    async with world.open() as engines:
        engines.apply(EngineChosen(word="cpu"))
        assert await engines.sync()
        blocked = world.root / f".{FILE}.new"
        blocked.mkdir()  # where a folder is, no file can be written
        for word in ("cuda", "cuda12"):
            engines.apply(EngineChosen(word=word))
            assert not await engines.sync()
            assert engines.state.use == word
        assert [record.message.count("cannot be used") for record in caplog.records] == [1]
        blocked.rmdir()
        engines.apply(EngineChosen(word="x", model="m"))
        assert await engines.sync()
    state = StateFile(world.root).read()
    assert (state.use, state.models) == ("cuda12", {"m": "x"})


async def test_an_updated_build_that_fails_gives_way_also_when_the_disk_takes_nothing(world: World) -> None:
    new, old = f"{HERE}-cpu/b2", f"{HERE}-cpu/b1"
    file = StateFile(world.root)
    file.apply([UpdateBegun(build=new, old=old, at=time.time()), *[StepDone(time.time())] * 5])
    async with world.proven() as engines:
        engine = engines.choose(word="cpu")
        assert engines.state.role(new) == "current"
        await engines.sync()
        blocked = world.root / f".{FILE}.new"
        blocked.mkdir()
        engines.failed(engine, "a", "killed by SIGABRT")
        file_before = file.read()
        await engines.sync()
        assert engines.state.role(new) == "withdrawn"
        assert file.read() == file_before
        blocked.rmdir()
        StateFile(world.root).apply([EngineChosen(word="cuda12")])  # by another program
        engines.failed(engine, "a", "killed by SIGABRT")
        await engines.sync()
    assert (file.read().role(new), file.read().role(old), file.read().use) == ("withdrawn", "current", "cuda12")


async def test_what_another_program_chooses_is_followed(world: World) -> None:
    async with world.proven():
        pass
    async with world.keeping_up() as engines, world.open() as other:
        assert chosen(engines) == GPU
        other.apply(EngineChosen(word="cpu"))
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


@pytest.mark.parametrize("only", [True, False])
async def test_a_look_that_took_too_long_is_no_answer_and_is_taken_again(
    world: World, monkeypatch: pytest.MonkeyPatch, only: bool
) -> None:
    """The build answers slowly at first, as on a busy machine, and then well. Meanwhile it goes behind others."""
    shutil.rmtree(world.cpu)
    tell(world.gpu, structs.replace(FAST, list_delay=5.0))
    monkeypatch.setattr(probing, "LIMIT", 0.5)
    async with world.keeping_up(only=only) as engines:
        await until(lambda: "probation" in standings(engines).values())
        (late,) = engines.ranked()
        assert "did not list its devices within 0.5 s" in late.why
        assert chosen(engines) == late.seat.id
        assert "within 0.5 s" in await engines.lacks(("Card 9000",))
        other = make_build(world.root, "cpu", "b3")
        await engines.refresh()
        assert chosen(engines) == f"{HERE}-cpu/b3:CPU"
        shutil.rmtree(other)
        monkeypatch.setattr(probing, "LIMIT", 30.0)
        tell(world.gpu, FAST)
        await until(lambda: GPU in standings(engines) and not engines.unlisted)
    tell(world.gpu, structs.replace(FAST, list_delay=5.0))
    monkeypatch.setattr(probing, "LIMIT", 0.5)
    async with world.open(only=only) as engines:
        await engines.probe()
        assert GPU in standings(engines), "what it has said before holds"


@pytest.mark.parametrize("lie", ["crash", "absurd", "flood", "garbage", "fail"])
async def test_a_named_engine_is_used_whatever_looks_at_it_have_found(world: World, lie: Any, tmp_path: Path) -> None:
    """Without a name it is left out, the error says why, and the next request looks again."""
    shutil.rmtree(world.cpu)
    tell(world.gpu, Lie(devices=(CARD,), list=lie))
    model = fake_model(tmp_path, "m")
    async with world.open(only=True) as engines:
        await engines.probe()
        (seat,) = engines.ranked()
        assert (seat.standing, chosen(engines)) == ("failed", seat.seat.id)
        assert engines.choose("", (seat.seat.id,)) is None
    async with world.open() as engines, open_fleet(FleetSettings(threads=1), engines) as fleet:
        for _ in range(2):
            with pytest.raises(EngineNotFound) as told:
                await fleet.load(model)
            assert seat.why in str(told.value)
        tell(world.gpu, FAST)
        await fleet.load(model)
        assert fleet.is_ready("m")
