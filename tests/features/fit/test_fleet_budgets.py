"""Memory in the running fleet: budgets of the machine, flags that make a model fit, and other programs on the GPU."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from fleet_harness import InOrder, fake_engine
from hollow_models import dense, write_hollow
from waiting import until

from appliance.catalog.headers import Headers
from appliance.core.machine_look import Gpu, MachineLook
from appliance.core.memory import GpuMemory
from appliance.core.models.model import Model
from appliance.core.settings import FleetSettings
from appliance.features.fit.estimating import HeaderEstimate
from appliance.features.fit.routes import show_memory
from appliance.fleet.owner import Fleet, open_fleet

GIB, MIB = 1 << 30, 1 << 20
ON_GPU = fake_engine("gpu", gpus={"CUDA0": "gpu0"})


def machine(*, ram: int, gpu: int) -> InOrder:
    """One engine on a machine that somebody has looked at."""
    card = Gpu(vendor="NVIDIA", name="Card", driver="nvidia", total=gpu, free=gpu)
    look = MachineLook(
        platform="linux-x64", system="s", environment="native", cpu="c", memory_total=ram, memory_available=ram,
        gpus=(card,),
    )  # fmt: skip
    return InOrder(ON_GPU, look=look)


@asynccontextmanager
async def fleet_on(chooser: InOrder, *, fit: bool = True) -> AsyncGenerator[Fleet]:
    with trio.fail_after(30):
        async with open_fleet(FleetSettings(threads=1, fit=fit), chooser, estimate=HeaderEstimate()) as fleet:
            fleet.see_machine()
            yield fleet
    assert chooser.told == []


@pytest.fixture
def models(tmp_path: Path) -> list[Model]:
    """Three models of 295 MiB each on a GPU with 4096 tokens."""
    found: list[Model] = []
    for name in ("a", "b", "c"):
        path = write_hollow(tmp_path / f"{name}.gguf", dense())
        info = Headers().read(str(path)).info
        args = ("--ctx-size", "4096")
        found.append(Model(id=name, source="path", path=str(path), size=path.stat().st_size, info=info, args=args))
    return found


def argv_of(fleet: Fleet, model: str) -> tuple[str, ...]:
    return fleet.known(model).argv


async def test_a_gpu_holds_what_fits_and_the_longest_unused_makes_room(models: list[Model]) -> None:
    async with fleet_on(machine(ram=64 * GIB, gpu=1700 * MIB)) as fleet:  # a budget of 850 MiB: two of them
        for model in models[:2]:
            await fleet.load(model)
        assert [fleet.is_ready(name) for name in "ab"] == [True, True]
        await fleet.load(models[2])
        assert [fleet.is_ready(name) for name in "abc"] == [False, True, True]


async def test_before_the_machine_is_looked_at_nothing_is_unloaded(models: list[Model]) -> None:
    chooser = machine(ram=64 * GIB, gpu=2 * GIB)
    look, chooser.look = chooser.look, None
    async with fleet_on(chooser) as fleet:
        for model in models:
            await fleet.load(model)
        assert [fleet.is_ready(name) for name in "abc"] == [True, True, True]
        chooser.look = look
        fleet.see_machine()
        assert [fleet.is_ready(name) for name in "abc"] == [True, True, True]


async def test_one_that_takes_more_than_there_is_may_try_it_alone(models: list[Model]) -> None:
    async with fleet_on(machine(ram=64 * GIB, gpu=300 * MIB)) as fleet:
        for model in models[:2]:
            await fleet.load(model)
        assert [fleet.is_ready(name) for name in "ab"] == [False, True]


async def test_another_program_on_the_gpu_has_idle_models_unloaded_and_busy_ones_stay(models: list[Model]) -> None:
    async with fleet_on(machine(ram=64 * GIB, gpu=2 * GIB)) as fleet:
        await fleet.load(models[0])
        async with fleet.lease(models[1]):
            fleet.see_gpus({"gpu0": GpuMemory(used=2 * GIB, total=2 * GIB)})  # a game has started
            await until(lambda: not fleet.is_ready("a"), changed=fleet.wait_changed)
            assert fleet.is_ready("b")
            _, card = show_memory(fleet)
            assert (card.device, card.name, card.total, card.free, card.budget) == ("gpu0", "Card", 2 * GIB, 0, 0)
            assert "b" in [share.model for share in card.models]
            assert card.other == 2 * GIB - sum(share.total for share in card.models)
        fleet.see_gpus({"gpu0": GpuMemory(used=2 * GIB, total=2 * GIB)})
        fleet.see_gpus({"gpu0": GpuMemory(used=100 * MIB, total=2 * GIB)})  # and has ended
        for model in models[:2]:
            await fleet.load(model)
        assert [fleet.is_ready(name) for name in "ab"] == [True, True]


@pytest.mark.parametrize("fit", [True, False])
async def test_on_a_gpu_the_engine_is_asked_for_its_buffers_and_told_the_reserve(
    models: list[Model], fit: bool
) -> None:
    """But not where the user's own flags decide."""
    async with fleet_on(machine(ram=64 * GIB, gpu=8 * GIB), fit=fit) as fleet:
        await fleet.load(models[0])
        argv = " ".join(argv_of(fleet, "a"))
        assert ("--log-verbosity 4" in argv) == ("--fit-target 1024" in argv) == fit
        assert argv.find("--fit-target") < argv.index("--ctx-size 4096")  # what the model says comes later, and wins


async def test_the_caches_of_prompts_share_the_budget(models: list[Model]) -> None:
    async with fleet_on(machine(ram=8 * GIB, gpu=32 * GIB)) as fleet:  # a budget of 6 GiB
        sizes: list[int] = []
        for model in models:
            await fleet.load(model)
            argv = argv_of(fleet, model.id)
            sizes.append(int(argv[argv.index("--cache-ram") + 1]))
        assert 6 * 1024 > 2 * sizes[0] > 2 * sizes[1] > 2 * sizes[2]
        taken = sum(fleet.memory(model.id)["ram"] for model in models)
        assert sum(sizes) * MIB + taken <= 6 * GIB
        await fleet.unload("b")
        engine = fleet.launches.engine_for(models[1])
        assert fleet.outlook.plan(models[1], engine).prompt_cache > sizes[1] * MIB - GIB
