"""A lease that is cancelled at any of its steps leaves no trace in the fleet; a cancelled fleet leaves no process."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
import trio
from configured_harness import Fleets
from fleet_harness import fake_engine, fake_model

from appliance.core.models.model import Model
from appliance.core.settings import FleetSettings
from appliance.errors import UpstreamFailed
from appliance.fleet.owner import Fleet, open_fleet
from appliance.fleet.performer import Performer
from appliance.upstream.client import HttpCall

STREAM = b'{"prompt":"x","stream":true,"fake":{"tokens":12,"token_delay":0.003}}'
STEPS, ENOUGH = 12, 3
"""Steps at which to cancel at least, and then requests in a row that end before theirs: on a busy machine some take few
steps."""
OWNER_TASK = f"{Performer.__module__}.Performer._own"


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


async def use(fleet: Fleet, model: Model, path: str, scope: trio.CancelScope) -> None:
    with scope:
        async with fleet.lease(model) as address:
            try:
                async with HttpCall(address, "POST", path, (), STREAM) as response:
                    await response.read(1 << 20)
            except UpstreamFailed:
                raise AssertionError("the model went away under a lease") from None


@asynccontextmanager
async def engines(folder: Path) -> AsyncGenerator[tuple[Fleet, list[Model], str]]:
    models = [fake_model(folder, name) for name in ("a", "b")]
    async with open_fleet(FleetSettings(models_max=1, threads=1), fake_engine()) as fleet:
        yield fleet, models, "/completion"


@asynccontextmanager
async def configured(folder: Path) -> AsyncGenerator[tuple[Fleet, list[Model], str]]:
    fleets = Fleets(folder)
    stopped = {} if sys.platform == "win32" else {"cmdStop": "sh -c 'kill ${PID}'"}  # Windows has a way of its own
    servers = {name: fleets.server(name, stopped, before="closed") for name in ("a", "b")}
    async with fleets.open(servers) as world:
        yield world.fleet, list(world.models.values()), "/drip"


@pytest.mark.parametrize("kind", [engines, configured])
async def test_cancelled_at_every_step(kind, tmp_path: Path) -> None:
    with trio.fail_after(60):
        async with kind(tmp_path) as (fleet, models, path):
            cancelled = in_a_row = 0
            for step in range(1, 200):
                model = models[step % 2]  # each one evicts the other: queue, stop, start, grant
                instrument = CancelAtStep("cancelled-user", step)
                trio.lowlevel.add_instrument(instrument)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(use, fleet, model, path, instrument.scope, name="cancelled-user")
                trio.lowlevel.remove_instrument(instrument)
                assert all(status.leases == 0 and status.waiting == 0 for status in fleet.status()), f"step {step}"
                cancelled += instrument.scope.cancelled_caught
                in_a_row = 0 if instrument.scope.cancelled_caught else in_a_row + 1
                if step >= STEPS and in_a_row >= ENOUGH:
                    break
            assert cancelled >= 5, "the instrument reached too few steps to prove anything"
            async with fleet.lease(models[0]):
                assert sum(status.pid is not None for status in fleet.status()) == 1


@pytest.mark.slow
async def test_a_fleet_cancelled_at_every_step_of_a_models_owner_leaves_no_process(tmp_path: Path) -> None:
    cancelled = 0
    for step in range(1, 200):
        instrument = CancelAtStep(OWNER_TASK, step)
        trio.lowlevel.add_instrument(instrument)
        with trio.fail_after(20), instrument.scope:
            async with configured(tmp_path) as (fleet, models, _):
                for model in models:
                    await fleet.load(model)
        trio.lowlevel.remove_instrument(instrument)
        assert running_servers(tmp_path) == [], f"step {step}"
        if not instrument.scope.cancelled_caught:
            break
        cancelled += 1
    assert cancelled >= 5, "the instrument reached too few steps to prove anything"


def running_servers(folder: Path) -> list[int]:
    told = [line.split() for path in folder.glob("*.events") for line in path.read_text("utf-8").splitlines()]
    pids = {int(pid) for what, pid, _ in told if what == "begun" and int(pid) != os.getpid()}
    return [pid for pid in pids if psutil.pid_exists(pid)]
