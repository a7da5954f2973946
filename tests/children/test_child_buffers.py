"""A model process that says what it has allocated: the real engine, as the fleet starts it."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from hollow_models import dense, write_hollow
from msgspec import structs
from waiting import until

from appliance.catalog.headers import Headers
from appliance.core.config.types import ModelConfig
from appliance.core.engine import Engine
from appliance.core.models.gguf import read_gguf
from appliance.core.models.model import Model
from appliance.core.settings import FleetSettings
from appliance.features.embedded import available, command
from appliance.fleet.budgets import RAM, corrected, expected_of, plan_of
from appliance.fleet.child import ModelProcess
from appliance.fleet.launch import engine_launch
from appliance.platform.children import open_children

STARTER = Path(__file__).parents[2] / "appliance" / "catalog" / "starter" / "llama-appliance-starter-Q8_0.gguf"
MIB = 1 << 20
SETTINGS = FleetSettings(threads=1, engine_args=("--ctx-size", "4096", "-lv", "4"))


def starter() -> Model:
    data = STARTER.read_bytes()
    info = read_gguf(lambda offset, n: data[offset : offset + n], len(data))
    return Model(id="starter", source="starter", path=str(STARTER), size=len(data), info=info)


@pytest.mark.skipif(not available(), reason="the wheel xllamacpp is not installed")
async def test_what_a_child_has_allocated_is_known_soon_after_it_is_ready():
    """The engine writes its log in a thread of its own, which may come after the word that it is ready."""
    engine = Engine(name="e", id="e", backend="cpu", version=None, source="test", command=tuple(command()))
    lines, lost = list[str](), list[int]()
    process = ModelProcess(engine_launch(starter(), engine, SETTINGS, 1), lines.append, lost.append)
    ready = trio.Event()
    with trio.fail_after(30):
        async with open_children() as children, trio.open_nursery() as nursery:
            nursery.start_soon(lambda: process.run(children, on_ready=ready.set))
            await ready.wait()
            told = await until(process.buffers.by_device)
            process.stop()
    assert set(told) == {RAM}
    assert told[RAM] == pytest.approx(expected_of(starter(), SETTINGS)[RAM], rel=0.1)
    assert [line for line in lines if "buffer size" in line], "what tells of the start stays in the log"
    assert not lost


def test_what_is_expected_follows_the_flags_and_keeps_to_the_room():
    usual = expected_of(starter(), FleetSettings())[RAM]
    assert expected_of(starter(), SETTINGS)[RAM] < usual
    assert expected_of(Model(id="x", source="path", size=100), SETTINGS) == {RAM: 110}
    room = {RAM: 8192 * MIB, "gpu0": 8192 * MIB}
    on_gpu = expected_of(starter(), FleetSettings(), room)
    assert on_gpu["gpu0"] > on_gpu[RAM]
    little = expected_of(starter(), FleetSettings(), {RAM: 30 * MIB})[RAM]
    assert little <= 30 * MIB < usual


def test_companions_count(tmp_path: Path):
    projector = tmp_path / "mmproj.gguf"
    projector.write_bytes(bytes(MIB))
    model = Model(id="x", source="path", path=str(STARTER), info=starter().info, mmproj=str(projector))
    gone = Model(id="x", source="path", path=str(STARTER), info=starter().info, mmproj=str(tmp_path / "none"))
    assert expected_of(model, SETTINGS)[RAM] - expected_of(gone, SETTINGS)[RAM] == MIB


def test_a_plan_leaves_a_reserve():
    tight = plan_of(starter(), FleetSettings(), {RAM: 1054 * MIB}, reserve=1024 * MIB)
    assert tight.flags == ("--ctx-size", "4096", "--cache-ram", "0")
    assert plan_of(Model(id="x", source="path"), FleetSettings(), {RAM: MIB}) is None


def test_buffers_count_in_place_of_an_estimate_and_what_the_configuration_says_is_the_least():
    assert corrected({"ram": 9, "gpu0": 9}, None, {}) == {"ram": 9, "gpu0": 9}
    assert corrected({"ram": 9, "gpu0": 9}, None, {"ram": 4}) == {"ram": 9, "gpu0": 9}
    assert corrected({"ram": 9, "gpu0": 9}, None, {"ram": 12}) == {"ram": 12, "gpu0": 9}
    assert corrected({"ram": 9}, None, {"ram": 4}, {"ram": 5, "gpu1": 7}) == {"ram": 5, "gpu1": 7}
    assert corrected({"ram": 9, "gpu0": 9}, None, {"ram": 6}, {"ram": 5}) == {"ram": 6}
    told = ModelConfig(memory={"ram": 8, "gpu0": 3})
    assert corrected({"ram": 8, "gpu0": 3}, told, {"ram": 4}, {"gpu0": 5}) == {"ram": 8, "gpu0": 5}


def test_a_draft_model_counts_as_a_model_of_its_own(tmp_path: Path):
    path, draft = write_hollow(tmp_path / "m.gguf", dense()), write_hollow(tmp_path / "d.gguf", dense(layers=2))
    info = Headers().read(str(path)).info
    alone = Model(id="m", source="path", path=str(path), info=info)
    both = structs.replace(alone, draft=str(draft))
    own = expected_of(
        Model(id="d", source="path", path=str(draft), info=Headers().read(str(draft)).info), FleetSettings()
    )
    with_draft, without = (expected_of(model, FleetSettings())[RAM] for model in (both, alone))
    assert with_draft - without == pytest.approx(own[RAM], rel=0.1)
