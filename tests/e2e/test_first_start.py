"""The first start on a machine: an answer at once, proof in the background, and then the better engine, by itself."""

from __future__ import annotations

import platform
import sys
import time
from pathlib import Path

import pytest
from program import http
from real_machine import Machine, assert_knows, copy_without, seat_of, seats_of
from waiting import wait

from appliance.core.machine_look import platform_of

pytestmark = [
    pytest.mark.skipif(
        platform_of(sys.platform, platform.machine()) != "linux-x64", reason="the variants are those of Linux"
    ),
]

FIRST_ANSWER = 30.0
"""Seconds from the command to the first whole answer on a busy machine; docs/engines.md tells what was measured."""
SETTLED = 400.0
"""The proofs of all engines, while other tests keep the machine busy."""


@pytest.mark.slow
def test_it_answers_at_once_and_moves_to_the_faster_build_by_itself(cpu_build: Path, tmp_path: Path) -> None:
    """The build that is found first has the least variant alone, so that another is faster, as the proofs show.

    Which of the others is the fastest may change with what else the machine does. The embedded engine is one of them.
    """
    machine = Machine(tmp_path / "home", [cpu_build], {})
    variants = {path.name for path in cpu_build.glob("libggml-cpu-*.so")}
    copy_without(cpu_build, machine.installed, "b1", variants - {"libggml-cpu-x64.so"})
    slow = f"{cpu_build.parent.name}/b1:CPU"
    began = time.monotonic()
    with machine.serve() as starting:
        server = starting.wait_listening()
        ask = {"model": "starter", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}
        assert http(server, "POST", "/v1/chat/completions", ask).status == 200
        answered = time.monotonic() - began
        first = http(server, "GET", "/api/engines").json()
        assert first["running"] == {"starter": slow}
        assert first["reason"].startswith("a first choice")
        assert {seat["standing"] for seat in seats_of(first).values()} == {"untried"}
        wait(lambda: seat_of(server) not in ("", slow), within=SETTLED, told=server.told)
        settled = time.monotonic() - began
        table = http(server, "GET", "/api/engines").json()
        seats, fast = seats_of(table), table["used"]
        assert [seats[seat]["standing"] for seat in (slow, fast)] == ["proven", "proven"]
        assert seats[fast]["prompt_speed"] > seats[slow]["prompt_speed"]
        assert f"moves from engine {slow} to " in server.told()
        assert_knows(server)
    print(f"first answer after {answered:.2f} s, proven and moved after {settled:.1f} s")
    assert answered < FIRST_ANSWER
