"""A model that an engine fails, at its start or at work, goes on with the next engine: real processes of the fake."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
import trio
from fleet_harness import InOrder, fake_engine, fake_model
from waiting import until

from appliance.core.engine import Engine
from appliance.core.models.model import Model
from appliance.core.settings import FleetSettings
from appliance.errors import EngineNotFound, ModelFailedToStart, UpstreamFailed
from appliance.fleet.owner import Fleet, open_fleet
from appliance.upstream.client import Address, HttpCall

JSON = ((b"Content-Type", b"application/json"),)
ASK = b'{"messages":[],"stream":true,"max_tokens":64}'


@asynccontextmanager
async def fleet_of(*engines: Engine) -> AsyncGenerator[tuple[Fleet, InOrder]]:
    chooser = InOrder(*engines)
    with trio.fail_after(30):
        async with open_fleet(FleetSettings(threads=1), chooser) as fleet:
            yield fleet, chooser


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return fake_model(tmp_path, "m")


async def read_all(address: Address) -> bytes:
    async with HttpCall(address, "POST", "/v1/chat/completions", JSON, ASK) as response:
        return await response.read(1 << 20)


async def test_what_does_not_start_here_starts_there_and_the_first_is_blamed(model: Model) -> None:
    async with fleet_of(fake_engine("gpu", "--fail-to-load"), fake_engine("cpu")) as (fleet, chooser):
        async with fleet.lease(model) as address:
            assert b"[DONE]" in await read_all(address)
            assert fleet.seat_of("m") == "cpu"
        assert [(seat, who) for seat, who, _ in chooser.told] == [("gpu", "m")]
        assert "exit status" in chooser.told[0][2]


async def test_what_starts_nowhere_is_told_as_the_first_engine_told_it_and_nobody_is_blamed(model: Model) -> None:
    engines = fake_engine("gpu", "--fail-to-load", "--exit-code", "7"), fake_engine("cpu", "--fail-to-load")
    async with fleet_of(*engines) as (fleet, chooser):
        with pytest.raises(ModelFailedToStart, match="exit status 7"):
            await fleet.load(model)
        assert chooser.told == []


async def test_one_that_dies_at_work_is_blamed_and_the_next_load_is_on_the_other(model: Model) -> None:
    async with fleet_of(fake_engine("gpu", "--die-after-tokens", "3"), fake_engine("cpu")) as (fleet, chooser):
        async with fleet.lease(model) as address:
            assert fleet.has_fallback("m")
            with pytest.raises(UpstreamFailed):
                await read_all(address)
            assert (await fleet.broke("m", address)).following == "cpu"
        async with fleet.lease(model) as address:
            assert b"[DONE]" in await read_all(address)
        assert [(seat, who) for seat, who, _ in chooser.told] == [("gpu", "m")]


async def test_a_broken_connection_alone_is_no_fallback(model: Model) -> None:
    async with fleet_of(fake_engine("gpu"), fake_engine("cpu")) as (fleet, chooser):
        async with fleet.lease(model) as address:
            assert (await fleet.broke("m", address)).following is None
        assert chooser.told == []


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM, and no status that tells of it")
async def test_one_that_was_asked_to_end_has_not_failed(model: Model) -> None:
    async with fleet_of(fake_engine("gpu"), fake_engine("cpu")) as (fleet, chooser):
        async with fleet.lease(model) as address:
            pid = next(status.pid for status in fleet.status())
            assert pid is not None
            psutil.Process(pid).terminate()
            await until(lambda: not fleet.is_ready("m"), changed=fleet.wait_changed)
            assert (await fleet.broke("m", address)).following is None
        assert chooser.told == []


async def test_with_one_engine_there_is_nothing_to_fall_back_to(model: Model) -> None:
    only = fake_engine("gpu", "--die-after-tokens", "3")
    async with open_fleet(FleetSettings(threads=1), only) as fleet, fleet.lease(model) as address:
        assert not fleet.has_fallback("m")
        with pytest.raises(UpstreamFailed):
            await read_all(address)
        assert (await fleet.broke("m", address)).following is None


async def test_a_damaged_build_is_never_started(model: Model) -> None:
    async with fleet_of(fake_engine("gpu"), fake_engine("cpu")) as (fleet, chooser):
        chooser.damage["gpu"] = "libggml.so is missing"
        await fleet.load(model)
        assert fleet.seat_of("m") == "cpu"
        assert chooser.told == []
        await fleet.unload("m")
        chooser.damage["cpu"] = "llama-server has changed"
        with pytest.raises(ModelFailedToStart, match=r"libggml.so is missing; .*llama-server has changed"):
            await fleet.load(model)


async def test_without_any_engine_it_is_said(model: Model) -> None:
    async with fleet_of() as (fleet, _):
        with pytest.raises(EngineNotFound):
            await fleet.load(model)


async def test_an_idle_model_moves_to_the_engine_that_is_best_now_and_a_used_one_stays(model: Model) -> None:
    async with fleet_of(fake_engine("cpu"), fake_engine("gpu", "--log-lines", "1")) as (fleet, chooser):
        async with fleet.lease(model):
            chooser.engines.reverse()
            fleet.reseat()
            assert fleet.seat_of("m") == "cpu"
            assert fleet.is_ready("m")
        fleet.reseat()
        await until(lambda: fleet.is_ready("m") and fleet.seat_of("m") == "gpu", changed=fleet.wait_changed)
        fleet.reseat()
        assert fleet.is_ready("m")


async def test_a_model_stays_where_only_the_name_of_its_seat_is_another(model: Model) -> None:
    async with fleet_of(fake_engine("unasked"), fake_engine("listed")) as (fleet, chooser):
        await fleet.load(model)
        chooser.engines.reverse()
        fleet.reseat()
        assert fleet.is_ready("m")
        assert fleet.seat_of("m") == "unasked"
