"""Running a program to its end, whatever it does, and leaving nothing of it."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest
import trio

from appliance.platform.children import inherited_env, open_children
from appliance.platform.process import Ran, run_to_end

ECHO = "import sys; data = sys.stdin.read(); sys.stdout.write(data.upper()); sys.stderr.write('said'); sys.exit(3)"


async def run(script: str, *, seconds: float = 20.0, stdin: bytes = b"", most: int = 1 << 20) -> Ran:
    with trio.fail_after(30):
        async with open_children() as children:
            argv = [sys.executable, "-S", "-c", script]
            return await run_to_end(children, argv, inherited_env(), seconds=seconds, stdin=stdin, most=most)


async def test_input_both_outputs_and_status() -> None:
    ran = await run(ECHO, stdin=b"hello")
    assert (ran.status, ran.output, ran.errors, ran.flooded) == (3, b"HELLO", b"said", False)
    assert 0 < ran.seconds < 20


async def test_time_is_bounded_and_what_was_said_is_kept() -> None:
    ran = await run("import time; print('begun', flush=True); time.sleep(60)", seconds=3.0)
    assert (ran.status, ran.flooded) == (None, False)
    assert ran.output.split() == [b"begun"]
    assert ran.seconds < 10


async def test_output_is_bounded() -> None:
    ran = await run("while True: print('x' * 1000)", most=5000)
    assert (ran.status, ran.flooded, len(ran.output)) == (None, True, 5000)


async def test_input_that_nobody_reads_does_not_matter() -> None:
    ran = await run("pass", stdin=b"x" * 1_000_000)
    assert ran.status == 0


@pytest.mark.skipif(sys.platform == "win32", reason="processes as POSIX has them")
async def test_cancelling_ends_it(tmp_path: Path) -> None:
    script = f"import os, time; open('{tmp_path}/pid', 'w').write(str(os.getpid())); time.sleep(60)"
    with trio.move_on_after(1.0) as scope:
        await run(script)
    assert scope.cancelled_caught
    pid = int((tmp_path / "pid").read_text())
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
