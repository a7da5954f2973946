"""A process that hangs is ended at once, under its leases, and the next request gets another one."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest
import trio

from appliance.core.models.model import Model
from appliance.core.settings import FleetSettings
from appliance.engines.found import Engine
from appliance.errors import UpstreamFailed
from appliance.fleet.owner import Fleet, open_fleet
from appliance.upstream.client import HttpCall

HANG = b'{"messages":[],"stream":true,"fake":{"stall_after_tokens":2}}'


@pytest.fixture
def engine(fake_llama_server: tuple[str, ...]) -> Engine:
    return Engine(name="fake", backend="cpu", version=None, source="test", command=fake_llama_server)


def pid_of(fleet: Fleet) -> int:
    status = fleet.known("a")
    assert status is not None
    assert status.pid is not None
    return status.pid


async def test_its_users_are_cut_off_and_who_comes_next_is_served(engine: Engine, fake_model: Path) -> None:
    model = Model(id="a", source="path", path=str(fake_model), args=("--ignore-sigterm", "--ignore-exit-line"))
    cut = trio.Event()

    async def hang(fleet: Fleet, *, task_status: trio.TaskStatus[int]) -> None:
        async with fleet.lease(model) as address:
            async with HttpCall(address, "POST", "/v1/chat/completions", (), HANG) as response:
                await response.receive()
                task_status.started(pid_of(fleet))
                with pytest.raises(UpstreamFailed):
                    await response.read(1 << 20)
            cut.set()

    with trio.fail_after(30):
        async with open_fleet(FleetSettings(stop_timeout=30, threads=1), engine) as fleet:
            assert not fleet.condemn("a", "it does not exist")
            async with trio.open_nursery() as nursery:
                first = await nursery.start(hang, fleet)
                assert fleet.condemn("a", "no byte for 2 s")
                assert not fleet.condemn("a", "twice")
                await cut.wait()
                async with fleet.lease(model):
                    assert pid_of(fleet) != first
            status = fleet.known("a")
            assert status is not None
            assert (status.state, status.leases, status.waiting) == ("loaded", 0, 0)
            if sys.platform != "win32":
                assert not psutil.pid_exists(first)


async def test_who_waits_while_it_dies_gets_the_next_one_and_the_reason_is_kept(
    engine: Engine, fake_model: Path
) -> None:
    model = Model(id="a", source="path", path=str(fake_model), args=("--load-delay", "0.3"))
    with trio.fail_after(30):
        async with open_fleet(FleetSettings(stop_timeout=2, threads=1), engine) as fleet:
            await fleet.load(model)
            assert fleet.condemn("a", "no byte for 2 s")
            async with fleet.lease(model):
                pass
            assert fleet.condemn("a", "no byte for 3 s")
            while (status := fleet.known("a")) is None or status.pid is not None:
                await fleet.wait_changed()
            assert status.error == "it was stopped: no byte for 3 s"
