"""What tests of fleets with the fake engine share: the engine, models on disk, and a chooser of engines."""

from __future__ import annotations

import sys
from collections.abc import Collection
from pathlib import Path

import trio

from appliance.core.engine import Engine
from appliance.core.machine_look import MachineLook
from appliance.core.models.model import Model
from appliance.fleet.owner import Fleet

FAKE = Path(__file__).parent / "fakes" / "llama_server.py"


def fake_engine(seat: str = "", *flags: str, backend: str = "cpu", gpus: dict[str, str] | None = None) -> Engine:
    return Engine(
        name="fake", id=seat, backend=seat or backend, version=None, source="test", seat=seat, args=flags,
        command=(sys.executable, "-S", "-E", str(FAKE)), gpus=gpus or {},
    )  # fmt: skip


def fake_model(folder: Path, name: str, *flags: str) -> Model:
    path = folder / f"{name}.gguf"
    path.write_bytes(b"GGUF" + bytes(64))
    return Model(id=name, source="path", path=str(path), args=flags)


def pid_of(fleet: Fleet, model: str) -> int:
    pid = fleet.known(model).pid
    assert pid is not None
    return pid


class InOrder:
    """Engines in an order; one that failed goes to the end. ``damage`` is by seat, ``look`` the machine's."""

    def __init__(self, *engines: Engine, look: MachineLook | None = None) -> None:
        self.engines = list(engines)
        self.look = look
        self.damage: dict[str, str] = {}
        self.told: list[tuple[str, str, str]] = []
        self.pardons: list[str] = []

    async def lacks(self, cards: tuple[str, ...]) -> str:
        await trio.lowlevel.checkpoint()
        return ""

    def choose(
        self, model: str = "", tried: Collection[str] = (), word: str = "", cards: tuple[str, ...] = ()
    ) -> Engine | None:
        left = [engine for engine in self.engines if engine.seat not in tried]
        return next((engine for engine in left if engine.backend == word), left[0] if left else None)

    def failed(self, engine: Engine, model: str, why: str) -> None:
        self.told.append((engine.seat, model, why))
        self.engines.remove(engine)
        self.engines.append(engine)

    def pardoned(self, seat: str, model: str) -> None:
        self.pardons.append(seat)

    async def look_again(self) -> list[str]:
        await trio.lowlevel.checkpoint()
        return []

    async def check(self, engine: Engine) -> str:
        await trio.lowlevel.checkpoint()
        return self.damage.get(engine.seat, "")
