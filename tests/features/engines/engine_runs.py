"""What the tests that start engines for a trial share."""

from __future__ import annotations

from pathlib import Path

import trio

from appliance.core.builds import MANIFEST
from appliance.core.engine import Engine
from appliance.features.engines.core.listing import Device, cpu_device
from appliance.features.engines.core.standing import Proof, ProofKey
from appliance.features.engines.found import EngineFolders, find_engine, list_engines
from appliance.features.engines.proving import prove
from appliance.platform.children import open_children

KEY = ProofKey(digest="d", device="0000:01:00.0", driver="550.54", system="Test 1")
PROCESSOR = cpu_device("Test CPU", 1 << 34)
CARD = Device(name="CUDA0", description="Test Card 9000", total=8 << 30, free=8 << 30)


def engine_in(folder: Path) -> Engine:
    """The build in this folder, as the program finds it."""
    assert (folder / MANIFEST).is_file()
    return find_engine(str(folder))


def places(root: Path) -> EngineFolders:
    """A machine with the builds in this folder alone, and what is inside the program."""
    return EngineFolders(named=None, beside=None, installed=root, cache=root / "none", search_path="")


def builds_in(root: Path) -> list[Engine]:
    """The builds in this folder, as the program finds them."""
    return [engine for engine in list_engines(places(root)) if engine.folder is not None]


async def proof_of(engine: Engine, device: Device, measuring: Path, *, seconds: float = 60.0, at: float = 7.0) -> Proof:
    """One proof, with children of its own; all of them are gone afterwards."""
    with trio.fail_after(seconds + 30):
        async with open_children() as children:
            return await prove(
                engine, device, children, key=KEY, build="b", now=at, seconds=seconds, measuring=measuring
            )
