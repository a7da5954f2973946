"""The estimate that the fleet asks for, and a model process that says what it has allocated: the real engine."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from hollow_models import dense, write_hollow
from waiting import until

from appliance.catalog.headers import Headers
from appliance.core.engine import Engine
from appliance.core.memory import RAM
from appliance.core.models.model import Model
from appliance.core.settings import FleetSettings
from appliance.features.embedded import available, command
from appliance.features.fit import estimating
from appliance.features.fit.core.budget import reserve_in
from appliance.features.fit.estimating import HeaderEstimate
from appliance.fleet.child import ModelProcess
from appliance.fleet.launch import engine_launch
from appliance.platform.children import open_children
from appliance.platform.machine import total_memory

STARTER = Path(__file__).parents[3] / "appliance" / "catalog" / "starter" / "llama-appliance-starter-Q8_0.gguf"
MIB = 1 << 20
SMALL = ("--ctx-size", "4096", "-lv", "4")
estimate = HeaderEstimate()


def at(path: Path, **more: str) -> Model:
    info = Headers().read(str(path)).info
    return Model(id="m", source="path", path=str(path), size=path.stat().st_size, info=info, **more)


def starter() -> Model:
    return at(STARTER)


@pytest.mark.skipif(not available(), reason="the wheel xllamacpp is not installed")
async def test_what_a_child_has_allocated_is_known_soon_after_it_is_ready():
    """The engine writes its log in a thread of its own, which may come after the word that it is ready."""
    engine = Engine(name="e", id="e", backend="cpu", version=None, source="test", command=tuple(command()))
    lines, lost = list[str](), list[int]()
    settings = FleetSettings(threads=1, engine_args=SMALL)
    process = ModelProcess(engine_launch(starter(), engine, settings, 1), lines.append, lost.append)
    ready = trio.Event()
    with trio.fail_after(30):
        async with open_children() as children, trio.open_nursery() as nursery:
            nursery.start_soon(lambda: process.run(children, on_ready=ready.set))
            await ready.wait()
            told = await until(process.buffers.by_device)
            process.stop()
    assert set(told) == {RAM}
    assert told[RAM] == pytest.approx(estimate.expect(starter(), engine_args=SMALL)[RAM], rel=0.1)
    assert [line for line in lines if "buffer size" in line], "what tells of the start stays in the log"
    assert not lost


def test_what_is_expected_follows_the_flags_and_keeps_to_the_room():
    usual = estimate.expect(starter())[RAM]
    assert estimate.expect(starter(), engine_args=SMALL)[RAM] < usual
    assert estimate.expect(Model(id="x", source="path", size=100), engine_args=SMALL) == {RAM: 110}
    room = {RAM: 8192 * MIB, "gpu0": 8192 * MIB}
    on_gpu = estimate.expect(starter(), room)
    assert on_gpu["gpu0"] > on_gpu[RAM]
    little = estimate.expect(starter(), {RAM: 30 * MIB})[RAM]
    assert little <= 30 * MIB < usual


def test_companions_count(tmp_path: Path):
    projector, draft = tmp_path / "mmproj.gguf", write_hollow(tmp_path / "d.gguf", dense(layers=2))
    projector.write_bytes(bytes(MIB))
    path = write_hollow(tmp_path / "m.gguf", dense())
    gone, seeing, drafted = (
        at(path, mmproj=str(tmp_path / "none")),
        at(path, mmproj=str(projector)),
        at(path, draft=str(draft)),
    )
    alone, own = estimate.expect(gone)[RAM], estimate.expect(at(draft))[RAM]
    assert estimate.expect(seeing)[RAM] - alone == MIB
    assert estimate.expect(drafted)[RAM] - alone == pytest.approx(own, rel=0.1)


def test_a_plan_leaves_a_reserve():
    tight = estimate.plan(starter(), {RAM: 30 * MIB + reserve_in(total_memory())})
    assert tight.flags == ("--ctx-size", "4096", "--cache-ram", "0")
    assert estimate.plan(Model(id="x", source="path"), {RAM: MIB}) is None


def test_a_list_of_models_looks_at_the_machine_once(monkeypatch: pytest.MonkeyPatch):
    looks: list[int] = []

    def counted() -> int:
        looks.append(total_memory())
        return looks[-1]

    monkeypatch.setattr(estimating, "total_memory", counted)
    fresh, model = HeaderEstimate(), starter()
    plans = {fresh.plan(model, {RAM: 8192 * MIB}).flags for _ in range(500)}
    assert len(plans) == 1
    assert len(looks) == 1
