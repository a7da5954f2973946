"""A lease that is cancelled at any of its steps leaves no trace in the fleet."""

from __future__ import annotations

import sys
from pathlib import Path

import trio

from appliance.core.model import Model
from appliance.core.settings import FleetSettings
from appliance.engines.found import Engine
from appliance.errors import UpstreamFailed
from appliance.fleet.owner import Fleet, open_fleet
from appliance.upstream.client import exchange

FAKE = Path(__file__).parents[1] / "fakes" / "llama_server.py"
STREAM = b'{"prompt":"x","stream":true,"fake":{"tokens":12,"token_delay":0.003}}'


class CancelAtStep(trio.abc.Instrument):
    """Cancels a scope just before the ``step``-th step of the task that is named so."""

    def __init__(self, name: str, step: int) -> None:
        self._name = name
        self._left = step
        self.scope = trio.CancelScope()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if task.name == self._name:
            self._left -= 1
            if self._left == 0:
                self.scope.cancel()


async def use(fleet: Fleet, model: Model, scope: trio.CancelScope) -> None:
    with scope:
        async with fleet.lease(model) as address:
            try:
                async with exchange(address, "POST", "/completion", (), STREAM) as response:
                    await response.read(1 << 20)
            except UpstreamFailed:
                raise AssertionError("the model went away under a lease") from None


async def test_cancelled_at_every_step(tmp_path: Path) -> None:
    engine = Engine(
        name="fake", backend="cpu", version=None, source="test", command=(sys.executable, "-S", "-E", str(FAKE))
    )
    models: list[Model] = []
    for name in ("a", "b"):
        path = tmp_path / f"{name}.gguf"
        path.write_bytes(b"GGUF" + bytes(64))
        models.append(Model(id=name, source="path", path=str(path)))

    with trio.fail_after(60):
        async with open_fleet(FleetSettings(models_max=1, threads=1), engine) as fleet:
            cancelled = 0
            for step in range(1, 200):
                model = models[step % 2]  # each one evicts the other: queue, stop, start, grant
                instrument = CancelAtStep("cancelled-user", step)
                trio.lowlevel.add_instrument(instrument)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(use, fleet, model, instrument.scope, name="cancelled-user")
                trio.lowlevel.remove_instrument(instrument)
                assert all(status.leases == 0 and status.waiting == 0 for status in fleet.status()), f"step {step}"
                if not instrument.scope.cancelled_caught:
                    break
                cancelled += 1
            assert cancelled >= 10, "the instrument reached too few steps to prove anything"
            async with fleet.lease(models[0]):
                assert sum(status.pid is not None for status in fleet.status()) == 1
