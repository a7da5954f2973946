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
from configured_harness import KILLED
from trio.testing import assert_no_checkpoints, wait_all_tasks_blocked
from waiting import SOON

from appliance.core.models.model import Model
from appliance.core.settings import FleetSettings
from appliance.engines.found import Engine
from appliance.errors import Busy, ModelFailedToStart, ModelUnloaded, ShuttingDown, UpstreamFailed
from appliance.fleet.lease import QueuePlace
from appliance.fleet.owner import Fleet, open_fleet
from appliance.fleet.status import Observer
from appliance.upstream.client import Address, HttpCall

FAKE = Path(__file__).parents[1] / "fakes" / "llama_server.py"
JSON = ((b"Content-Type", b"application/json"),)


class World:
    """Models on disk, and fleets whose engine is the fake with given flags."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def model(self, name: str, *flags: str) -> Model:
        path = self._folder / f"{name}.gguf"
        path.write_bytes(b"GGUF" + bytes(64))
        return Model(id=name, source="path", path=str(path), args=flags)

    @asynccontextmanager
    async def fleet(self, observer: Observer | None = None, **settings: float) -> AsyncGenerator[Fleet]:
        engine = Engine(
            name="fake", backend="cpu", version=None, source="test", command=(sys.executable, "-S", "-E", str(FAKE))
        )
        chosen = FleetSettings(models_max=int(settings.pop("models_max", 2)), threads=1, **settings)
        with trio.fail_after(30):
            async with open_fleet(chosen, engine, observer=observer) as fleet:
                yield fleet


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


class Waits:
    """Hears how long each lease was waited for."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def waited(self, model: str, seconds: float) -> None:
        self.seconds.append(seconds)

    def loaded(self, model: str, seconds: float) -> None: ...

    def evicted(self, model: str) -> None: ...

    def load_failed(self, model: str) -> None: ...

    def died(self, model: str) -> None: ...


async def ask(address: Address, body: bytes = b'{"messages":[]}') -> bytes:
    async with HttpCall(address, "POST", "/v1/chat/completions", JSON, body) as response:
        assert response.status == 200
        return await response.read(1 << 20)


async def ask_for_ever(address: Address) -> None:
    while True:
        await ask(address)


def pid_of(fleet: Fleet, model: str) -> int:
    status = fleet.known(model)
    assert status is not None
    assert status.pid is not None
    return status.pid


def state_of(fleet: Fleet, model: str) -> str:
    status = fleet.known(model)
    return status.state if status else "unknown"


async def test_a_loaded_model_is_lent_without_a_checkpoint_and_given_back_so(world: World) -> None:
    waits = Waits()
    async with world.fleet(observer=waits) as fleet:
        model = world.model("a")
        async with fleet.lease(model) as first:
            pass
        with assert_no_checkpoints():
            async with fleet.lease(model) as second, fleet.lease(model, QueuePlace()) as third:
                assert first is second is third
                assert [status.leases for status in fleet.status()] == [2]
                assert fleet.busy
            assert not fleet.busy
        assert waits.seconds[0] > 0
        assert waits.seconds[1:] == [0, 0]


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
            await trio.sleep(0.2)
            assert order == []
            assert state_of(fleet, "b") == "queued"
        assert order == ["b"]


async def test_many_requests_for_many_models_with_little_room(world: World) -> None:
    async with world.fleet(models_max=2) as fleet:
        answers: list[bytes] = []

        async def use(name: str) -> None:
            async with fleet.lease(world.model(name)) as address:
                answers.append(await ask(address))
                assert sum(s.pid is not None for s in fleet.status()) <= 2

        async with trio.open_nursery() as nursery:
            for number in range(60):
                nursery.start_soon(use, "abcdef"[number % 6])
        assert len(answers) == 60
        assert all(s.leases == 0 and s.waiting == 0 for s in fleet.status())


async def test_a_failed_start_says_why_at_once_and_the_next_request_tries_again(world: World) -> None:
    async with world.fleet() as fleet:
        began = time.monotonic()
        with pytest.raises(ModelFailedToStart) as failure:
            async with fleet.lease(world.model("a", "--fail-to-load", "--exit-code", "7")):
                pass
        assert time.monotonic() - began < SOON
        assert "exit status 7" in str(failure.value)
        assert failure.value.log_tail
        status = fleet.known("a")
        assert status is not None
        assert status.exit_code == 7
        async with fleet.lease(world.model("a")) as address:
            await ask(address)


async def test_a_model_that_never_gets_ready_is_given_up(world: World) -> None:
    async with world.fleet(load_timeout=0.5) as fleet:
        with pytest.raises(ModelFailedToStart, match=r"not ready within 0\.5 s"):
            async with fleet.lease(world.model("a", "--never-ready")):
                pass


async def test_an_engine_that_cannot_be_executed(world: World) -> None:
    engine = Engine(name="none", backend="cpu", version=None, source="test", command=("/nonexistent/llama-server",))
    async with open_fleet(FleetSettings(threads=1), engine) as fleet:
        with pytest.raises(ModelFailedToStart, match="/nonexistent/llama-server"):
            async with fleet.lease(world.model("a")):
                pass


async def test_a_lost_port_race_is_run_again(world: World, tmp_path: Path) -> None:
    async with world.fleet() as fleet, fleet.lease(world.model("a", "--port-taken-once", str(tmp_path / "mark"))) as a:
        await ask(a)


async def test_a_dead_child_is_replaced_by_the_next_request(world: World) -> None:
    async with world.fleet() as fleet:
        async with fleet.lease(world.model("a")) as address:
            first = pid_of(fleet, "a")
            psutil.Process(first).kill()
            with pytest.raises(UpstreamFailed):
                await ask_for_ever(address)
        while state_of(fleet, "a") != "unloaded":
            await fleet.wait_changed()
        status = fleet.known("a")
        assert status is not None
        assert KILLED in str(status.error)
        async with fleet.lease(world.model("a")) as address:
            await ask(address)
            assert pid_of(fleet, "a") != first


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


async def test_unload_while_loading(world: World) -> None:
    async with world.fleet() as fleet:
        refused: list[ModelUnloaded] = []

        async def use() -> None:
            try:
                async with fleet.lease(world.model("a", "--load-delay", "20")):
                    pass
            except ModelUnloaded as error:
                refused.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(use)
            await trio.sleep(0.1)
            began = time.monotonic()
            assert await fleet.unload("a")
        assert refused
        assert time.monotonic() - began < SOON
        status = fleet.known("a")
        assert status is not None
        assert status.exit_code is None, "a deliberate end is not a failure"


@pytest.mark.parametrize("flags", [("--ignore-exit-line",), ("--ignore-exit-line", "--ignore-sigterm")])
async def test_a_stubborn_child_is_ended_within_the_stop_timeout(world: World, flags: tuple[str, ...]) -> None:
    async with world.fleet(stop_timeout=0.6) as fleet:
        await fleet.load(world.model("a", *flags))
        began = time.monotonic()
        await fleet.unload("a")
        assert time.monotonic() - began < SOON


async def test_a_pipe_held_by_a_stranger_does_not_hold_the_fleet(world: World) -> None:
    async with world.fleet() as fleet:
        await fleet.load(world.model("a", "--hold-pipe-in-grandchild", "8"))
        began = time.monotonic()
        await fleet.unload("a")
        assert time.monotonic() - began < SOON


async def test_log_floods_and_huge_lines_are_bounded(world: World) -> None:
    async with world.fleet() as fleet:
        async with fleet.lease(world.model("a", "--log-flood", "--huge-log-lines")) as address:
            for _ in range(20):
                await ask(address)
        assert sum(map(len, fleet.logs.tail("a", 1_000_000))) < 300_000


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
        await trio.sleep(0.2)
        pids += [s.pid for s in fleet.status() if s.pid]
    assert len(pids) == 2
    assert refused
    assert not any(psutil.pid_exists(pid) for pid in pids)
