"""The fleet with real processes: the fake server misbehaves, the fleet must not."""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
import trio
from fleet_harness import fake_engine, fake_model, pid_of
from trio.testing import assert_no_checkpoints, wait_all_tasks_blocked
from waiting import SOON, until

from appliance.core.models.model import Model
from appliance.core.records.flood import LINES, WINDOW
from appliance.core.settings import FleetSettings
from appliance.errors import Busy, ModelFailedToStart, ShuttingDown, UpstreamFailed
from appliance.fleet.lease import QueuePlace
from appliance.fleet.owner import Fleet, open_fleet
from appliance.upstream.client import Address, HttpCall

JSON = ((b"Content-Type", b"application/json"),)


class World:
    """Models on disk, and fleets whose engine is the fake with given flags."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def model(self, name: str, *flags: str) -> Model:
        return fake_model(self._folder, name, *flags)

    @asynccontextmanager
    async def fleet(self, **settings: float) -> AsyncGenerator[Fleet]:
        chosen = FleetSettings(models_max=int(settings.pop("models_max", 2)), threads=1, **settings)
        with trio.fail_after(30):
            async with open_fleet(chosen, fake_engine()) as fleet:
                yield fleet


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def ask(address: Address, body: bytes = b'{"messages":[]}') -> bytes:
    async with HttpCall(address, "POST", "/v1/chat/completions", JSON, body) as response:
        assert response.status == 200
        return await response.read(1 << 20)


def state_of(fleet: Fleet, model: str) -> str:
    status = fleet.known(model)
    return status.state if status else "unknown"


async def test_a_loaded_model_is_lent_without_a_checkpoint_and_given_back_so(world: World) -> None:
    waits: list[float] = []
    async with world.fleet() as fleet:
        model = world.model("a")
        with fleet.follow_waits(lambda _, seconds: waits.append(seconds)):
            async with fleet.lease(model) as first:
                pass
            with assert_no_checkpoints():
                async with fleet.lease(model) as second, fleet.lease(model, QueuePlace()) as third:
                    assert first is second is third
                    assert [status.leases for status in fleet.status()] == [2]
                    assert fleet.busy
                assert not fleet.busy
        async with fleet.lease(model):
            pass  # after the block nobody is told
        assert waits[0] > 0
        assert waits[1:] == [0, 0]


async def test_a_lease_loads_and_the_model_stays(world: World) -> None:
    async with world.fleet() as fleet:
        async with fleet.lease(world.model("a")) as address:
            assert b"chat.completion" in await ask(address)
            assert fleet.status()[0].leases == 1
        pid = pid_of(fleet, "a")
        async with fleet.lease(world.model("a")):
            assert pid_of(fleet, "a") == pid
        assert fleet.address("b") is None
    assert not psutil.pid_exists(pid)


async def test_a_model_whose_time_is_cut_short_goes_in_time(world: World) -> None:
    """Nothing else happens meanwhile: the alarm that was set for later has to be set anew."""
    async with world.fleet() as fleet:
        model = world.model("m")
        async with fleet.lease(model):
            pass
        fleet.keep(model, 3600)
        await wait_all_tasks_blocked()
        fleet.keep(model, 0.1)
        with trio.fail_after(SOON):
            await fleet.wait_gone("m")


async def test_the_end_of_a_process_is_waited_for_however_often_it_is_used(world: World) -> None:
    async with world.fleet() as fleet, trio.open_nursery() as nursery:
        await fleet.wait_gone("a")  # it has none
        model = world.model("a")
        await fleet.load(model)
        pid, gone = pid_of(fleet, "a"), trio.Event()

        async def wait_gone() -> None:
            await fleet.wait_gone("a")
            gone.set()

        nursery.start_soon(wait_gone)
        for _ in range(3):
            async with fleet.lease(model):
                await wait_all_tasks_blocked(0.01)
        assert not gone.is_set()
        psutil.Process(pid).kill()
        await gone.wait()
        assert state_of(fleet, "a") == "unloaded"


async def test_a_child_lets_nobody_else_in(world: World) -> None:
    async with world.fleet() as fleet, fleet.lease(world.model("a")) as address:
        stranger = Address(address.host, address.port, "wrong", "a")
        async with HttpCall(stranger, "POST", "/v1/chat/completions", JSON, b"{}") as response:
            assert response.status == 401
        assert address.key not in fleet.status()[0].argv


async def test_the_least_recently_used_makes_room(world: World) -> None:
    async with world.fleet() as fleet:
        for name in ("a", "b", "a", "c"):
            async with fleet.lease(world.model(name)) as address:
                await ask(address)
        assert {s.model: s.state for s in fleet.status()} == {"a": "loaded", "b": "unloaded", "c": "loaded"}


async def test_a_busy_model_is_waited_for(world: World) -> None:
    async with world.fleet(models_max=1) as fleet:
        order: list[str] = []

        async def use(name: str) -> None:
            async with fleet.lease(world.model(name)):
                order.append(name)

        async with trio.open_nursery() as nursery, fleet.lease(world.model("a")):
            nursery.start_soon(use, "b")
            await until(lambda: state_of(fleet, "b") == "queued")
            assert order == []
        assert order == ["b"]


async def test_a_failed_start_says_why_at_once_and_the_next_request_tries_again(world: World) -> None:
    async with world.fleet() as fleet:
        began = time.monotonic()
        with pytest.raises(ModelFailedToStart) as failure:
            async with fleet.lease(world.model("a", "--fail-to-load", "--exit-code", "7")):
                pass
        assert time.monotonic() - began < SOON
        assert "exit status 7" in str(failure.value)
        assert failure.value.log_tail
        assert fleet.known("a").exit_code == 7
        async with fleet.lease(world.model("a")) as address:
            await ask(address)


async def test_a_lost_port_race_is_run_again(world: World, tmp_path: Path) -> None:
    async with world.fleet() as fleet, fleet.lease(world.model("a", "--port-taken-once", str(tmp_path / "mark"))) as a:
        await ask(a)


async def test_unload_lets_requests_finish_and_then_gives_up_on_them(world: World) -> None:
    async with world.fleet(stop_timeout=0.4) as fleet:
        async with fleet.lease(world.model("a")) as address:
            with trio.move_on_after(0.2):
                await fleet.unload("a")
            assert state_of(fleet, "a") == "stopping"
            assert await ask(address)
            began = time.monotonic()
            await fleet.unload("a")
            assert time.monotonic() - began < SOON
            with pytest.raises(UpstreamFailed):
                await ask(address)
        assert await fleet.unload("a") is False


@pytest.mark.parametrize("flags", [("--ignore-exit-line",), ("--ignore-exit-line", "--ignore-sigterm")])
async def test_a_stubborn_child_is_ended_within_the_stop_timeout(world: World, flags: tuple[str, ...]) -> None:
    async with world.fleet(stop_timeout=0.6) as fleet:
        await fleet.load(world.model("a", *flags))
        began = time.monotonic()
        await fleet.unload("a")
        assert time.monotonic() - began < SOON


async def test_a_follower_sees_history_then_news(world: World) -> None:
    async with world.fleet() as fleet:
        await fleet.load(world.model("a"))
        lines: list[str] = []
        async for line in fleet.logs.follow("a"):
            lines.append(line)
            if "listening" in line:
                break
        assert len(lines) >= 2


async def test_a_place_in_the_queue_has_a_limit(world: World) -> None:
    async with world.fleet(models_max=1, queue_timeout=2) as fleet, fleet.lease(world.model("a")):
        with pytest.raises(Busy):
            async with fleet.lease(world.model("b")):
                pass


async def test_the_end_of_the_fleet_refuses_and_stops_everything(world: World) -> None:
    pids: list[int] = []
    refused: list[ShuttingDown] = []

    async def use(fleet: Fleet) -> None:
        try:
            async with fleet.lease(world.model("b", "--load-delay", "20")):
                pass
        except ShuttingDown as error:
            refused.append(error)

    async with trio.open_nursery() as nursery, world.fleet(stop_timeout=0.5) as fleet:
        await fleet.load(world.model("a", "--ignore-exit-line", "--ignore-sigterm"))
        nursery.start_soon(use, fleet)
        pids += await until(lambda: [s.pid for s in fleet.status() if s.pid], lambda pids: len(pids) == 2)
    assert refused
    assert not any(psutil.pid_exists(pid) for pid in pids)


HANG = b'{"messages":[],"stream":true,"fake":{"stall_after_tokens":2}}'


async def test_users_of_a_process_that_hangs_are_cut_off_and_who_comes_next_is_served(world: World) -> None:
    model = world.model("a", "--ignore-sigterm", "--ignore-exit-line")
    cut = trio.Event()

    async def hang(fleet: Fleet, *, task_status: trio.TaskStatus[int]) -> None:
        async with fleet.lease(model) as address:
            async with HttpCall(address, "POST", "/v1/chat/completions", (), HANG) as response:
                await response.receive()
                task_status.started(pid_of(fleet, "a"))
                with pytest.raises(UpstreamFailed):
                    await response.read(1 << 20)
            cut.set()

    async with world.fleet(stop_timeout=30) as fleet:
        assert not fleet.condemn("a", "it does not exist")
        async with trio.open_nursery() as nursery:
            first = await nursery.start(hang, fleet)
            assert fleet.condemn("a", "no byte for 2 s")
            assert not fleet.condemn("a", "twice")
            await cut.wait()
            async with fleet.lease(model):
                assert pid_of(fleet, "a") != first
        status = fleet.known("a")
        assert (status.state, status.leases, status.waiting) == ("loaded", 0, 0)
        assert sys.platform == "win32" or not psutil.pid_exists(first)
        psutil.Process(pid_of(fleet, "a")).kill()  # the end of the fleet would give it its time


async def test_who_waits_while_it_dies_gets_the_next_one_and_the_reason_is_kept(world: World) -> None:
    model = world.model("a", "--load-delay", "0.3")
    async with world.fleet(stop_timeout=2) as fleet:
        await fleet.load(model)
        assert fleet.condemn("a", "no byte for 2 s")
        async with fleet.lease(model):
            pass
        assert fleet.condemn("a", "no byte for 3 s")
        while (status := fleet.known("a")) is None or status.pid is not None:
            await fleet.wait_changed()
        assert status.error == "it was stopped: no byte for 3 s"


async def test_of_a_flood_of_lines_the_newest_are_kept_and_the_others_counted(world: World) -> None:
    """To take every line cost nine tenths of a core, which the relay needs."""
    async with world.fleet() as fleet:
        model = world.model("a", "--log-flood", "--huge-log-lines")
        async with fleet.lease(model) as address:
            for _ in range(20):
                await ask(address)
        assert sum(map(len, fleet.logs.tail("a", 1_000_000))) < 300_000
        began, kept, lost = trio.current_time(), 0, 0
        async for line in fleet.logs.follow(None, history=False):
            if line.endswith(" lines lost ..."):
                lost += int(line.split()[1])
            else:
                kept += 1
            if trio.current_time() > began + 2:
                break
        windows = (trio.current_time() - began) / WINDOW
        assert kept < LINES * (windows + 2) + (1 << 16) / 100
        assert lost > kept
        await fleet.unload("a")
        assert "cleaning up before exit" in "".join(fleet.logs.tail("a", 50))
