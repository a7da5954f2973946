"""Proof is given by engines that compute correctly, and by no other; every lie is called by its name."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from engine_folders import ABORTED, CRASHED, Lie, Listed, make_build
from engine_runs import CARD, KEY, PROCESSOR, engine_in, proof_of

from appliance.core.engine import EMBEDDED, Engine
from appliance.features import embedded
from appliance.features.engines.core.listing import Device, Fault
from appliance.features.engines.core.standing import Proof
from appliance.features.engines.found import find_engine, list_engines
from appliance.features.engines.proving import alone_on_machine

HANG = 3.0
"""Seconds that a proof gets which is to end by the limit; an honest start of the lying engine takes 0.2."""
GPU = (Listed(name="CUDA0", pci="0000:01:00.0"),)
Prove = Callable[..., Awaitable[Proof]]


@pytest.fixture(scope="session")
def measuring(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The measuring model takes no room, and is the same for every test."""
    return tmp_path_factory.mktemp("measuring")


@pytest.fixture
def prove(tmp_path: Path, measuring: Path) -> Prove:
    """Try out a build for CUDA that lies so, on its card."""

    async def tried(lie: Lie, **more: float) -> Proof:
        folder = make_build(tmp_path, "cuda12", devices=GPU, lie=lie)
        return await proof_of(engine_in(folder), CARD, measuring, **more)

    return tried


def built() -> list[Engine]:
    """The real builds of this machine that are whole."""
    return [engine for engine in list_engines() if engine.folder and not engine.damage]


def build_for(backend: str) -> Engine:
    return next(engine for engine in built() if engine.backend == backend)


def spoiled(engine: Engine) -> Engine:
    """As when half a file was copied."""
    program = Path(engine.command[0])
    program.write_bytes(b"\x7fELF but no more")
    program.chmod(0o755)
    return engine


@pytest.mark.slow
@pytest.mark.parametrize(
    "found",
    [
        pytest.param(
            lambda: find_engine(EMBEDDED),
            marks=pytest.mark.skipif(not embedded.available(), reason="the embedded engine is not installed here"),
        ),
        pytest.param(lambda: build_for("cpu"), marks=pytest.mark.needs("cpu-build")),
    ],
    ids=["embedded", "built"],
)
async def test_a_real_engine_is_proven_on_the_processor(found: Callable[[], Engine], measuring: Path) -> None:
    proof = await proof_of(found(), PROCESSOR, measuring)
    assert (proof.fault, proof.why) == (None, "")
    assert proof.key == KEY
    assert proof.at == 7.0
    assert min(proof.prompt_speed, proof.generation_speed) > 0.1  # in any order where others take the processor
    assert 0 < proof.seconds < 60


async def test_an_honest_one_is_proven_with_its_speed_and_its_cards_place(prove: Prove) -> None:
    proof = await prove(Lie(prompt_speed=2000.0, generation_speed=80.0))
    assert (proof.fault, proof.why) == (None, "")
    assert proof.pci == "0000:01:00.0"
    assert proof.device == "CUDA0: Test Card 9000 (0000:01:00.0)"
    assert proof.prompt_speed == pytest.approx(2000.0)
    assert proof.generation_speed == pytest.approx(80.0)
    assert proof.nominal_seconds == pytest.approx(512 / 2000 + 128 / 80)


@pytest.mark.parametrize(
    ("lie", "fault", "words"),
    [
        (Lie(load="fail"), "load", "exit status 1 while it loaded: srv  fake_llama: error loading model: told to fail"),
        (Lie(load="crash"), "load", f"{CRASHED} while it loaded"),
        (Lie(load="abort"), "load", f"{ABORTED} while it loaded: ggml-cuda.cu:103: CUDA error: no kernel image"),
        (Lie(load="memory"), "memory", "unable to allocate CUDA0 buffer"),
        (Lie(load="missing"), "missing", "libcudart.so.13"),
        (Lie(work="crash"), "crash", f"{ABORTED} at work"),
        (Lie(work="crash", after_requests=2), "crash", f"{ABORTED} at work"),
        (Lie(work="garbage"), "garbage", "it said 'GGGGGGGG' instead of 'GGUF is a file format"),
        (Lie(work="garbage", after_requests=3), "garbage", "instead of 'Goodbye!"),
        (Lie(work="refuse"), "garbage", "it answered with status 500"),
        (Lie(heavy="crash"), "crash", "at work"),
    ],
    ids=lambda value: (
        f"{value.load}-{value.work}-{value.heavy}-{value.after_requests}" if isinstance(value, Lie) else None
    ),
)
async def test_a_lie_is_called_by_its_name(lie: Lie, fault: Fault, words: str, prove: Prove) -> None:
    proof = await prove(lie)
    assert proof.fault == fault
    assert words in proof.why
    assert "\n" not in proof.why
    assert proof.prompt_speed is proof.generation_speed is proof.nominal_seconds is None


@pytest.mark.slow
@pytest.mark.parametrize("lie", [Lie(load="hang"), Lie(work="hang"), Lie(work="hang", after_requests=1)])
async def test_what_does_not_answer_is_given_up_in_time(lie: Lie, prove: Prove) -> None:
    proof = await prove(lie, seconds=HANG)
    assert proof.fault == "hang"
    assert HANG - 0.5 < proof.seconds < HANG + 3


async def test_a_card_that_is_too_slow_for_the_measuring_model_is_proven_with_what_the_starter_showed(
    prove: Prove,
) -> None:
    proof = await prove(Lie(heavy="hang", prompt_speed=2000.0, generation_speed=80.0), seconds=HANG)
    assert proof.ok
    assert 0 < proof.generation_speed < 80.0 / 20


async def test_one_device_of_two_lies(tmp_path: Path, measuring: Path) -> None:
    cards = (Listed(name="CUDA0"), Listed(name="CUDA1"))
    folder = make_build(tmp_path, "cuda12", devices=cards, lie=Lie(work="garbage", on=("CUDA1",)))
    engine = engine_in(folder)
    second = Device(name="CUDA1", description="Test Card 9000", total=8 << 30, free=8 << 30)
    assert (await proof_of(engine, CARD, measuring)).ok
    assert (await proof_of(engine, second, measuring)).fault == "garbage"
    assert (await proof_of(engine, PROCESSOR, measuring)).ok


async def test_a_device_that_is_gone_is_not_proven(tmp_path: Path, measuring: Path) -> None:
    folder = make_build(tmp_path, "cuda12")
    proof = await proof_of(engine_in(folder), CARD, measuring)
    assert proof.fault == "load"
    assert "invalid device: CUDA0" in proof.why


async def test_a_program_that_cannot_be_executed(tmp_path: Path, measuring: Path) -> None:
    folder = make_build(tmp_path)
    proof = await proof_of(spoiled(engine_in(folder)), PROCESSOR, measuring)
    assert proof.fault == "damaged"
    if sys.platform == "win32":
        assert "cannot be started: [WinError 193]" in proof.why
        return
    # A shell that cannot execute a program says 126, and 127 where it took the program for a script of its own.
    assert "exit status 126" in proof.why or "exit status 127" in proof.why


async def test_without_room_for_the_measuring_model_it_is_still_proven(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if sys.platform == "win32" or os.geteuid() == 0:
        blocked = tmp_path / "a-file"
        blocked.write_bytes(b"")
    else:
        blocked = tmp_path / "locked"
        blocked.mkdir(mode=0o500)
    folder = make_build(tmp_path / "engines")
    proof = await proof_of(engine_in(folder), PROCESSOR, blocked / "measuring")
    assert proof.ok
    assert proof.nominal_seconds is not None, "what the starter's speed lets one expect"
    assert "was not measured" in caplog.text


async def test_a_program_that_stands_still_holds_nobody_up_for_ever(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with alone_on_machine(tmp_path) as waited:
        assert not waited
        async with alone_on_machine(tmp_path, longest=0.5) as waited:
            assert waited
    assert "this one waits" in caplog.text
    assert "goes on beside it" in caplog.text
    async with alone_on_machine(tmp_path) as waited:
        assert not waited


async def test_where_no_lock_can_be_had_engines_are_tried_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    async with alone_on_machine(tmp_path / "file" / "below") as waited:
        assert not waited
