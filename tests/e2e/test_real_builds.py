"""Real builds through the installed command: for processors, for Vulkan on Mesa's software renderer, and embedded.

Each is proven and ranked, serves when it is its turn, and is replaced in the middle of an answer. Answers are held to
what the starter model is known to say, token for token.
"""

from __future__ import annotations

import platform
import re
import signal
import sys
import time
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from program import Server, http, run_command
from real_machine import PROOFS_TIME, Machine, assert_knows, copy_without, seat_of, seats_of, streamed
from waiting import wait

X64 = platform.machine() in ("x86_64", "AMD64")

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the renderer and the builds are those of Linux"),
]

STORY = {"prompt": "Tell me a story.", "n_predict": 120, "temperature": 0, "ignore_eos": True}
SWITCH_TIME = 15.0
"""Seconds, on a busy machine, from the end of an engine to the next engine's first words, with a model of a few
megabytes: docs/fallback.md tells what was measured."""
MOVE_TIME = 40.0
"""Seconds until an idle model moves: the program looks every thirty, when nothing else tells it to."""


@pytest.fixture(scope="module")
def renderer(cpu_build: Path, vulkan_build: Path) -> str:
    """The seat of the software renderer."""
    return f"{vulkan_build.parent.name}/{vulkan_build.name}:Vulkan0"


@pytest.fixture(scope="module")
def processor(cpu_build: Path) -> str:
    return f"{cpu_build.parent.name}/{cpu_build.name}:CPU"


@pytest.fixture(scope="module")
def proven(
    cpu_build: Path, vulkan_build: Path, lavapipe: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Machine:
    """A machine on which `engines probe` and `engines prove` were run."""
    machine = Machine(tmp_path_factory.mktemp("machine"), [cpu_build, vulkan_build], lavapipe)
    machine.good("engines", "probe")
    machine.good("engines", "prove", timeout=PROOFS_TIME)
    return machine


@pytest.fixture
def machine(proven: Machine, tmp_path: Path) -> Machine:
    """The same, for one test."""
    return proven.with_the_same_book(tmp_path / "home")


@pytest.fixture
def running() -> Generator[ExitStack]:
    """Servers that are ended after the test."""
    with ExitStack() as stack:
        yield stack


@pytest.mark.slow
def test_every_build_is_proven_and_the_software_renderer_goes_last(
    proven: Machine, processor: str, renderer: str
) -> None:
    table = proven.table()
    seats = seats_of(table)
    for seat in (processor, renderer, "embedded:CPU"):
        assert seats[seat]["standing"] == "proven", seats
        assert seats[seat]["prompt_speed"] > 0
        assert seats[seat]["generation_speed"] > 0
    for speed in ("prompt_speed", "generation_speed"):
        assert seats[renderer][speed] < seats[processor][speed]
    assert "llvmpipe" in seats[renderer]["devices"][0]
    assert table["used"] in (processor, "embedded:CPU")
    assert table["order"][-1] == renderer, "every seat of the processor goes before"
    told = proven.doctor()
    [software] = [finding for finding in told["findings"] if finding["id"] == "software-renderer"]
    assert "llvmpipe" in str(software), software
    devices = {one["seat"]["devices"][0]["name"]: one["seat"]["devices"][0] for one in told["facts"]["ranked"]}
    assert [devices[name].get("software", False) for name in ("CPU", "Vulkan0")] == [False, True]


@pytest.mark.slow
def test_the_processor_serves_and_the_renderer_where_it_is_asked_for(
    machine: Machine, running: ExitStack, renderer: str
) -> None:
    server = running.enter_context(machine.serve()).wait_listening()
    assert_knows(server)
    assert seat_of(server) == machine.table()["used"] != renderer
    machine.good("engines", "use", renderer, "--url", server.url)
    wait_seat(server, renderer)
    assert_knows(server)
    assert seat_of(server) == renderer


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["the renderer", "the processor's build"])
def test_an_engine_that_ends_in_the_middle_of_an_answer_is_replaced(
    machine: Machine, running: ExitStack, renderer: str, processor: str, lost: str
) -> None:
    """A lost Vulkan device ends llama-server by SIGABRT: an exception that nobody catches.

    The texts are compared as far as the model knows its story. Beyond its end two words are nearly as likely as each
    other, and each build rounds in its own way on each processor.
    """
    seat, number = (renderer, signal.SIGABRT) if lost == "the renderer" else (processor, signal.SIGKILL)
    machine.good("engines", "use", seat)
    server = running.enter_context(machine.serve()).wait_listening()
    story = answered(server, {**STORY, "ignore_eos": False})
    assert seat_of(server) == seat
    [engine] = [child for child in server.children() if "llama-server" in child.name()]
    said, ended_at, gap, mark = "", 0.0, 0.0, None
    with streamed(server, STORY) as records:
        for number_of_records, record in enumerate(records):
            if number_of_records == 12:
                ended_at = time.monotonic()
                engine.send_signal(number)
            assert "error" not in record, record
            said += record.get("content", "")
            if "appliance" in record:
                mark = record["appliance"]["continued"]
            elif mark and not gap:
                gap = time.monotonic() - ended_at
    print(f"{seat} ended; words of {seat_of(server)} came {gap:.2f} s later")
    assert mark is not None, server.told()
    assert (mark["from"], mark["on"]) == (seat, seat_of(server))
    assert mark["on"] != seat
    assert len(said) > len(story)
    assert said.startswith(story)
    assert gap < SWITCH_TIME
    assert f"failed on engine {seat}" in server.told()


@pytest.mark.slow
@pytest.mark.skipif(not X64, reason="variants of other processors have other names")
def test_the_best_variant_is_loaded_and_without_it_the_next(
    cpu_build: Path, tmp_path: Path, running: ExitStack
) -> None:
    variants = {path.name for path in cpu_build.glob("libggml-cpu-*.so")}
    assert len(variants) == 14
    loaded: list[str] = []
    left_out: set[str] = set()
    for step in range(3):
        build = copy_without(cpu_build, tmp_path / f"builds-{step}", f"b{step}", left_out)
        home = Machine(tmp_path / f"home-{step}", [build], {})
        server = running.enter_context(home.serve("--", "--verbosity", "4")).wait_listening()
        assert_knows(server)
        lines = run_command("logs", "starter", "--url", server.url, cwd=home.folder).stdout
        [used] = re.findall(rf"loaded CPU backend from .*/{cpu_build.parent.name}/b{step}/(libggml-cpu-\w+\.so)", lines)
        assert used in variants - left_out
        loaded.append(used)
        left_out = {loaded[0]} if step == 0 else variants - {"libggml-cpu-x64.so"}
        server.process.terminate()
        assert server.wait(15) == 0
    assert len(set(loaded)) == 3 or loaded[:1] == ["libggml-cpu-x64.so"], loaded
    assert loaded[-1] == "libggml-cpu-x64.so"


def answered(server: Server, request: dict[str, Any]) -> str:
    """Return the whole answer of an engine that stays alive."""
    return http(server, "POST", "/completion", {**request, "model": "starter"}, timeout=PROOFS_TIME).json()["content"]


def wait_seat(server: Server, seat: str) -> None:
    """Until the idle model has moved there."""
    wait(lambda: seat_of(server) == seat, within=MOVE_TIME, told=lambda: (seat, seat_of(server), server.told()))
