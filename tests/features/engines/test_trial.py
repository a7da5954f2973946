"""A trial is over when its block is left, whatever happened in it, and says what went wrong."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import psutil
import pytest
import trio
from configured_harness import KILLED
from engine_folders import Lie, make_build
from engine_runs import engine_in
from msgspec import structs
from waiting import SOON

from appliance.core.engine import Engine
from appliance.features.engines.trial import FIRST_LINES, LAST_LINES, MAX_LINE, TrialFailed, TrialServer, open_trial
from appliance.platform.children import open_children
from appliance.upstream.client import HttpCall

TryFake = Callable[..., AbstractAsyncContextManager[TrialServer]]


@pytest.fixture
def try_fake(fake_engine: Path, fake_model: Path) -> TryFake:
    """Try out the fake, with children of its own."""

    @asynccontextmanager
    async def tried(seconds: float = 10) -> AsyncGenerator[TrialServer]:
        fake = Engine(name="fake", backend="cpu", version=None, command=(str(fake_engine),), source="the tests")
        async with open_children() as children, open_trial(fake, (), fake_model, children, seconds=seconds) as trial:
            yield trial

    return tried


def running() -> set[int]:
    return {
        child.pid for child in psutil.Process().children(recursive=True) if "llama_server" in " ".join(words(child))
    }


def words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


async def test_a_trial_answers_and_ends_with_its_block(try_fake: TryFake) -> None:
    async with try_fake() as trial:
        assert b'"content"' in await trial.ask("/completion", {"prompt": "Hi", "n_predict": 2}, seconds=5)
        assert any("listening on" in line for line in trial.lines())
        assert len(running()) == 1
    assert not running()


async def test_a_machine_that_is_too_slow_for_one_look_gets_a_longer_one(
    try_fake: TryFake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_LIST_DELAY", "1.5")
    async with try_fake(20):
        pass  # it was ready


async def test_it_asks_for_a_key_that_nobody_else_has(try_fake: TryFake) -> None:
    async with try_fake() as trial, try_fake() as other:
        assert trial.address.key
        assert trial.address.key != other.address.key
        assert trial.address.port != other.address.port
        stranger = structs.replace(trial.address, key=other.address.key)
        async with HttpCall(stranger, "GET", "/v1/models") as response:
            assert response.status == 401


async def test_leaving_in_the_middle_of_an_answer_ends_it_at_once(tmp_path: Path, fake_model: Path) -> None:
    engine = engine_in(make_build(tmp_path, lie=Lie(work="hang")))
    async with open_children() as children:
        began = time.monotonic()
        with trio.move_on_after(1.0) as scope:
            async with open_trial(engine, (), fake_model, children, seconds=10) as trial:
                await trial.ask("/completion", {"prompt": "Hi"}, seconds=60)
        assert scope.cancelled_caught
        assert time.monotonic() - began < SOON
        assert not running()


async def test_another_program_takes_its_port_and_it_is_started_again(
    tmp_path: Path, try_fake: TryFake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_PORT_TAKEN_ONCE", str(tmp_path / "once"))
    async with try_fake() as trial:
        assert await trial.ask("/completion", {"prompt": "Hi"}, seconds=5)


async def test_a_port_that_is_always_taken_is_a_failure(
    tmp_path: Path, try_fake: TryFake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_PORT_TAKEN_ONCE", str(tmp_path / "no folder" / "never"))
    with pytest.raises(TrialFailed, match="exit status 1 while it loaded"):
        async with try_fake():
            pytest.fail("it cannot have been ready")


async def test_it_dies_while_it_is_not_asked_anything(try_fake: TryFake) -> None:
    async with try_fake() as trial:
        (pid,) = running()
        psutil.Process(pid).kill()
        with pytest.raises(TrialFailed) as caught:
            await trial.ask("/completion", {"prompt": "Hi"}, seconds=10)
        assert KILLED in caught.value.why


async def test_a_flood_of_lines_and_endless_lines_take_no_memory(
    try_fake: TryFake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_HUGE_LOG_LINES", "1")
    monkeypatch.setenv("FAKE_LOG_LINES", "20000")
    async with try_fake(30) as trial:
        assert await trial.ask("/completion", {"prompt": "Hi"}, seconds=5)
        assert len(trial.lines()) <= FIRST_LINES + LAST_LINES
        assert max(map(len, trial.lines())) <= MAX_LINE
        assert any("loading model" in line for line in trial.lines()), "the beginning is kept"
        assert any("listening on" in line for line in trial.lines()), "and so is the end"
