"""A test run of an engine: what is known to be said, what a failure was, how fast it is, and with which file."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec
import pytest
import trio
from engine_logs import KERNEL, LOST, NO_LIBRARY, NO_MODEL, NO_ROOM
from engine_runs import PROCESSOR
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct, structs

from appliance.core.engine import EMBEDDED
from appliance.features import embedded
from appliance.features.engines.core.listing import Fault
from appliance.features.engines.core.trials import (
    ALIGNMENT,
    BUDGET,
    KNOWN,
    LAYERS,
    ROUNDS,
    SMALL,
    WARM_UP,
    WHOLE,
    EngineTimings,
    KnownCompletion,
    fault_of_death,
    fault_of_start,
    header,
    lost_its_port,
    next_request,
    only_on_processor,
    pci_of,
    size_of,
    speeds_of,
    tensors,
    weights_size,
)
from appliance.features.engines.found import find_engine
from appliance.features.engines.proving import device_args, write_ballast
from appliance.features.engines.trial import TrialServer, open_trial
from appliance.platform.children import open_children

LEAST_MARGIN = 5.0
"""Nats by which the best token leads at every step, at least; rounding and kernels differ by a hundredth."""

needs_embedded = pytest.mark.skipif(not embedded.available(), reason="the embedded engine is not installed here")
BATCH = 64
"""Prompts of more tokens than this go through the kernels for batches on every backend."""


class Candidate(Struct):
    id: int
    logprob: float


class Step(Struct):
    id: int
    top_logprobs: list[Candidate]


class Answer(Struct):
    content: str
    tokens: list[int]
    tokens_evaluated: int
    stop_type: str
    completion_probabilities: list[Step]


async def ask_for_candidates(trial: TrialServer, known: KnownCompletion) -> Answer:
    question = {
        "prompt": known.prompt, "n_predict": 64, "temperature": 0, "cache_prompt": False, "return_tokens": True,
        "n_probs": 2,
    }  # fmt: skip
    return msgspec.json.decode(await trial.ask("/completion", question, seconds=30), type=Answer)


def lead(step: Step) -> float:
    best, second = step.top_logprobs
    return best.logprob - second.logprob if step.id == best.id else -1.0


@needs_embedded
async def test_the_constants_are_what_the_starter_says_and_nothing_else_comes_near(starter_model: Path) -> None:
    engine = find_engine(EMBEDDED)
    answers: list[Answer] = []
    with trio.fail_after(60):
        async with (
            open_children() as children,
            open_trial(engine, device_args(PROCESSOR), starter_model, children, seconds=30) as trial,
        ):
            for known in KNOWN:
                answers.append(await ask_for_candidates(trial, known))
    for known, answer in zip(KNOWN, answers, strict=True):
        now = f"it now says {answer.content!r}, {tuple(answer.tokens)}"
        assert (answer.content, tuple(answer.tokens)) == (known.content, known.tokens), now
        assert answer.stop_type == "eos", now
        assert min(map(lead, answer.completion_probabilities)) >= LEAST_MARGIN, now
    lengths = [answer.tokens_evaluated for answer in answers]
    assert lengths == sorted(lengths)
    assert lengths[0] < BATCH < lengths[-2]


VULKAN_ROOM = (
    "ggml_vulkan: Device memory allocation of size 1 failed.\nvk::Device::allocateMemory: ErrorOutOfDeviceMemory"
)
ON_CARD = """
0.00.069.018 I llama_prepare_model_devices: using device CUDA0 (NVIDIA H100 (80 GB)) (0000:0A:00.0) - 80000 MiB free
0.00.069.019 I llama_prepare_model_devices: using device CUDA1 (NVIDIA H100) (0000:0b:00.0) - 80000 MiB free
0.00.101.000 I load_tensors:   CPU_Mapped model buffer size =     0.28 MiB
0.00.102.000 I load_tensors:        CUDA0 model buffer size =    48.31 MiB
"""
ON_PROCESSOR = """
0.00.069.018 I using device Vulkan0 (llvmpipe (LLVM 15.0.6, 256 bits)) (unknown id) - 2048 MiB free
0.00.101.000 I load_tensors:   CPU_Mapped model buffer size =   229.19 MiB
0.00.101.100 I load_tensors:   CPU_REPACK model buffer size =     1.00 MiB
"""


@pytest.mark.parametrize(
    ("log", "status", "executed", "fault"),
    [
        (NO_MODEL, "exit status 1", True, "load"),
        (NO_LIBRARY, "exit status 127", False, "missing"),
        ("", "0xC0000135: a DLL it needs is missing", True, "missing"),
        (NO_ROOM, "exit status 1", True, "memory"),
        (VULKAN_ROOM, "killed by SIGABRT", True, "memory"),
        ("", "killed by SIGKILL (out of memory?)", True, "memory"),
        ("exec: Exec format error", "exit status 126", False, "damaged"),
        ("", "killed by SIGSEGV", True, "load"),
    ],
)
def test_what_kind_of_failure_a_start_was(log: str, status: str, executed: bool, fault: Fault) -> None:
    assert fault_of_start(status, executed, log.splitlines()) == fault


def test_what_kind_of_failure_a_death_was() -> None:
    assert fault_of_death(KERNEL.splitlines()) == "crash"
    assert fault_of_death(LOST.splitlines()) == "crash"
    assert fault_of_death(NO_ROOM.splitlines()) == "memory"


def test_the_place_of_the_card_that_it_uses() -> None:
    lines = ON_CARD.splitlines()
    assert pci_of("CUDA0", lines) == "0000:0a:00.0"
    assert pci_of("CUDA1", lines) == "0000:0b:00.0"
    assert pci_of("CUDA2", lines) is None
    assert pci_of("Vulkan0", ON_PROCESSOR.splitlines()) is None


def test_a_device_that_got_no_weights_was_not_used() -> None:
    assert only_on_processor(ON_PROCESSOR.splitlines())
    assert not only_on_processor(ON_CARD.splitlines())
    assert not only_on_processor(NO_MODEL.splitlines()), "nothing was told"


def test_a_port_that_somebody_else_took() -> None:
    assert lost_its_port(["0.00 E srv: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 1"])
    assert not lost_its_port(NO_MODEL.splitlines())


Measured = tuple[list[EngineTimings], float]
speeds = st.floats(0.05, 1e6)


def timings(size: tuple[int, int], prompt_speed: float, token_speed: float) -> EngineTimings:
    return EngineTimings(size[0], size[0] / prompt_speed * 1000, size[1], size[1] / token_speed * 1000)


def measure(prompt_speed: float, token_speed: float, kernels: dict[int, float] | None = None) -> Measured:
    """As a machine of these speeds answers; the first prompt of a size takes so many seconds longer."""
    slow = dict(kernels or {})
    done: list[EngineTimings] = []
    spent = 0.0
    while (size := next_request(done, spent)) is not None:
        extra = slow.pop(size[0], 0.0) * 1000
        plain = timings(size, prompt_speed, token_speed)
        done.append(structs.replace(plain, prompt_ms=plain.prompt_ms + extra))
        if len(done) > 1:
            spent += (done[-1].prompt_ms + done[-1].predicted_ms) / 1000
        assert len(done) <= 2 + ROUNDS
    return done, spent


@given(speeds, speeds)
def test_the_speed_is_found_and_the_time_is_kept(prompt_speed: float, token_speed: float) -> None:
    done, spent = measure(prompt_speed, token_speed)
    found = speeds_of(done[1:])
    assert abs(found.prompt / prompt_speed - 1) < 1e-6
    assert abs(found.generation / token_speed - 1) < 1e-6
    small = timings(SMALL, prompt_speed, token_speed)
    assert spent <= max(BUDGET, (small.prompt_ms + small.predicted_ms) / 1000) * 1.01


@given(st.floats(1000.0, 1e6), st.floats(100.0, 1e6))
def test_a_fast_machine_is_measured_whole_and_more_than_once(prompt_speed: float, token_speed: float) -> None:
    done, _ = measure(prompt_speed, token_speed)
    assert [one.prompt_n for one in done] == [WARM_UP[0], SMALL[0], *[WHOLE[0]] * ROUNDS]


def test_a_slow_machine_computes_less() -> None:
    done, _ = measure(60.0, 8.0)
    assert [one.prompt_n for one in done][:2] == [WARM_UP[0], SMALL[0]]
    assert len(done) == 3
    assert SMALL[0] < done[2].prompt_n < WHOLE[0]
    done, _ = measure(5.0, 1.0)
    assert len(done) == 2


@given(st.floats(0.0, 50.0), st.floats(0.0, 4.0))
def test_kernels_that_are_built_on_the_way_make_no_card_slow(first: float, whole: float) -> None:
    done, _ = measure(10000.0, 500.0, {WARM_UP[0]: first, WHOLE[0]: whole})
    found = speeds_of(done[1:])
    assert found.prompt > 9999.0


def test_a_part_of_the_measuring_model_is_that_much_slower_as_a_whole() -> None:
    found = speeds_of([timings(WHOLE, 1000.0, 100.0)], part=0.2)
    assert abs(found.prompt - 200.0) < 1e-6
    assert abs(found.generation - 20.0) < 1e-6


def test_an_engine_that_tells_no_times_has_no_speed() -> None:
    assert speeds_of([]) is None
    assert speeds_of([EngineTimings(), EngineTimings(10, 0.0, 5, 0.0)]) is None
    assert next_request([EngineTimings(), EngineTimings()], 0.0) is None


@given(
    st.lists(
        st.builds(
            EngineTimings,
            st.integers() | st.just(10**400),
            st.floats(allow_nan=False) | st.just(1e-320),
            st.integers() | st.just(10**400),
            st.floats(allow_nan=False) | st.just(1e308),
        ),
        max_size=6,
    ),
    st.floats(0, 1e6),
)
def test_no_figures_that_an_engine_may_tell_make_it_raise_or_endless(done: list[EngineTimings], spent: float) -> None:
    size = next_request(done, spent)
    assert size is None or (0 < size[0] <= WHOLE[0] and 0 < size[1] <= WHOLE[1])
    found = speeds_of(done)
    assert found is None or (0 < found.prompt < 1e13 and 0 < found.generation < 1e13)


def test_its_header_is_aligned_and_names_every_tensor_once() -> None:
    head, shapes = header(), tensors()
    assert len(head) % ALIGNMENT == 0
    assert len(shapes) == 2 + 9 * LAYERS
    assert all(head.count(name.encode()) == 1 for name in shapes)
    assert all(size_of(shape) % ALIGNMENT == 0 for shape in shapes.values())
    assert 200e6 < weights_size() < 300e6


def test_it_is_written_once_and_takes_no_room_and_one_that_is_not_whole_is_written_again(tmp_path: Path) -> None:
    path = write_ballast(tmp_path)
    written = path.stat()
    assert written.st_size == len(header()) + weights_size()
    if sys.platform == "linux":
        assert written.st_blocks * 512 < 1 << 20
    old, theirs = tmp_path / "ballast-0-5x2048.gguf", tmp_path / "model.gguf"
    old.write_bytes(b"GGUF")
    theirs.write_bytes(b"GGUF")
    assert write_ballast(tmp_path) == path
    assert path.stat().st_ino == written.st_ino
    assert sorted(tmp_path.iterdir()) == [path, theirs], "those of other versions go"
    os.truncate(path, 1000)
    write_ballast(tmp_path)
    assert path.stat().st_size == written.st_size


@needs_embedded
async def test_a_real_engine_computes_with_it(tmp_path: Path) -> None:
    question = {"prompt": list(range(8)), "n_predict": 2, "temperature": 0, "ignore_eos": True, "return_tokens": True}
    with trio.fail_after(60):
        async with (
            open_children() as children,
            open_trial(
                find_engine(EMBEDDED), device_args(PROCESSOR), write_ballast(tmp_path), children, seconds=30
            ) as trial,
        ):
            answer = await trial.ask("/completion", question, seconds=30)
            assert b'"tokens_predicted":2' in answer.replace(b" ", b"")
            assert not [line for line in trial.lines() if "nan" in line.lower().split()]
