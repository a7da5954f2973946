"""The one runner of processes: whatever happens, a process is ended in its way, reaped, and read to its end."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from leftovers import is_alive
from waiting import until

from appliance.core.capped_output import CappedOutput
from appliance.platform.children import Child, Children, open_children
from appliance.platform.process import (
    MAX_LINE,
    Command,
    LineSink,
    Ran,
    StopSteps,
    before_end,
    into,
    open_process,
    run,
    run_to_end,
    text_of,
)

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and shells as POSIX has them")
ENV = {"PATH": "/usr/bin:/bin"}
LONG = 60.0


def sh(script: str, *, stdin: bytes | None = b"", ending: StopSteps | None = None, own_errors: bool = False) -> Command:
    argv = ("/bin/sh", "-c", script)
    return Command(argv=argv, env=ENV, stdin=stdin, ending=ending or StopSteps(), own_errors=own_errors)


async def said(output: CappedOutput, word: str) -> None:
    """Wait until ``word`` has been printed."""
    await until(lambda: word in output.text())


async def test_a_block_that_waits_for_the_end_gets_all_of_both_outputs() -> None:
    output, errors = CappedOutput(), CappedOutput()
    async with open_children() as children:
        command = sh("read line; echo out $line; echo err >&2; exit 3", stdin=b"in\n", own_errors=True)
        async with open_process(children, command, into(output), errors=into(errors)) as child:
            assert await child.wait() == 3
    assert (output.text(), errors.text(), child.status) == ("out in\n", "err\n", 3)


@pytest.mark.parametrize("way", ["by an exception", "by cancelling", "early"])
async def test_however_the_block_is_left_the_whole_group_is_gone(way: str) -> None:
    output = CappedOutput()
    began, pid = trio.current_time(), 0
    async with open_children() as children:
        with trio.CancelScope() as scope, suppress(LookupError):  # the error itself, not a group of it
            async with open_process(children, sh("sleep 300 & echo $! there; wait"), into(output)) as child:
                pid = child.pid
                await said(output, "there")
                if way == "by an exception":
                    raise LookupError
                if way == "by cancelling":
                    scope.cancel()
                    await trio.sleep_forever()
        assert not is_alive(pid)
        await until(lambda: not is_alive(int(output.text().split()[0])))
    assert trio.current_time() - began < LONG


async def end_of(children: Children, script: str, ending: StopSteps) -> tuple[int | None, float]:
    """Return the status of a process whose block is left at once, and the seconds that leaving took."""
    output = CappedOutput()
    async with open_process(children, sh(script, stdin=None, ending=ending), into(output)) as child:
        await said(output, "there")
        began = trio.current_time()
    return child.status, trio.current_time() - began


async def test_it_is_ended_in_its_own_way() -> None:
    async with open_children() as children:
        obeys = "trap 'exit 7' TERM; echo there; while :; do sleep 0.02; done"
        assert (await end_of(children, obeys, StopSteps(asked=LONG)))[0] == 7
        assert (await end_of(children, "echo there; read line; exit 5", StopSteps(closed=LONG)))[0] == 5
        assert (await end_of(children, "echo there; sleep 300", StopSteps()))[0] == -9


async def test_each_step_of_an_ending_has_its_time() -> None:
    async with open_children() as children:
        stubborn = "trap '' TERM; echo there; while :; do sleep 0.02; done"
        status, took = await end_of(children, stubborn, StopSteps(closed=0.2, asked=0.3))
    assert status == -9
    assert took >= 0.5


async def test_not_even_cancelling_leaves_a_step_out() -> None:
    output = CappedOutput()
    ended: Child | None = None
    # it is cancelled meanwhile
    obeys = "trap 'sleep 0.3; exit 7' TERM; echo there; while :; do sleep 0.02; done"
    async with open_children() as children:
        with trio.CancelScope() as scope:
            async with open_process(children, sh(obeys, ending=StopSteps(asked=LONG)), into(output)) as child:
                await said(output, "there")
                ended = child
                scope.cancel()
                await trio.sleep_forever()
    assert ended.status == 7


async def test_a_process_that_prints_while_it_is_asked_to_end_is_read_meanwhile() -> None:
    floods = "trap 'head -c 1000000 /dev/zero; exit 7' TERM; echo there; while :; do sleep 0.02; done"
    async with open_children() as children:
        assert (await end_of(children, floods, StopSteps(asked=LONG)))[0] == 7


async def test_a_pipe_that_something_left_behind_holds_is_not_waited_for() -> None:
    began = trio.current_time()
    async with open_children() as children:
        # The grandchild is in a session of its own, where no signal to the group reaches it.
        script = 'exec python3 -c \'import subprocess; subprocess.Popen(["sleep", "5"], start_new_session=True)\''
        ended = await run(children, sh(script), into(CappedOutput()), seconds=LONG, rest=0.1)
    assert (ended.status, ended.timed_out) == (0, False)
    assert trio.current_time() - began < 5


async def test_a_sink_that_wants_no_more_ends_the_block_alone() -> None:
    kept = CappedOutput(1000)
    async with open_children() as children:
        ended = await run(children, sh("yes"), into(kept, flood=False), seconds=LONG)
    assert (ended.status, ended.timed_out, kept.truncated, len(kept.kept)) == (-9, False, True, 1000)


async def test_time_is_bounded() -> None:
    async with open_children() as children:
        ended = await run(children, sh("sleep 300"), into(CappedOutput()), seconds=0.1)
    assert (ended.status, ended.timed_out) == (-9, True)


async def test_a_program_is_run_to_its_end_within_a_time_and_with_so_much_output() -> None:
    async with open_children() as children:

        async def ran(script: str, *, seconds: float = LONG, stdin: bytes = b"") -> Ran:
            argv = ("/bin/sh", "-c", script)
            return await run_to_end(children, argv, ENV, seconds=seconds, stdin=stdin, most=5000)

        found = await ran("read line; echo out $line; echo err >&2; exit 3", stdin=b"in\n")
        assert (found.status, found.output, found.errors, found.flooded) == (3, b"out in\n", b"err\n", False)
        found = await ran("echo begun; sleep 300", seconds=1.0)
        assert (found.status, found.output, found.flooded) == (None, b"begun\n", False)
        found = await ran("yes")
        assert (found.status, len(found.output), found.flooded) == (None, 5000, True)
        assert (await ran("exit 0", stdin=b"x" * 1_000_000)).status == 0, "nobody has to read the input"


async def test_readiness_and_the_end_are_raced(tmp_path: Path) -> None:
    async def ready() -> str:
        await until((tmp_path / "ready").exists)
        return "ready"

    async def fails() -> str:
        raise LookupError("not to be asked")

    async with open_children() as children:
        async with open_process(children, sh("exit 4")) as child:
            assert await before_end(child, ready) is None
        assert child.status == 4
        async with open_process(children, sh(f"touch {tmp_path}/ready; sleep 300")) as child:
            assert await before_end(child, ready) == "ready"
            with pytest.raises(LookupError, match="not to be asked"):
                await before_end(child, fails)


async def test_a_program_that_cannot_be_executed_shows_by_its_status(tmp_path: Path) -> None:
    async with open_children() as children:
        missing = Command(argv=(str(tmp_path / "missing"),), env=ENV)
        ended = await run(children, missing, into(CappedOutput()), seconds=LONG)
        assert ended.status == 127
        with pytest.raises(NotADirectoryError):
            async with open_process(children, Command(argv=("true",), env=ENV, cwd="/dev/null")):
                pytest.fail("it has no folder to run in")


@given(st.lists(st.binary(max_size=40)))
def test_lines_are_those_of_the_whole_however_it_is_cut(pieces: list[bytes]) -> None:
    found: list[bytes] = []

    async def feed() -> None:
        lines = LineSink(found.append)
        for piece in pieces:
            if piece:
                assert await lines(piece)
        await lines(b"")

    trio.run(feed)
    whole = b"".join(pieces).split(b"\n")
    assert found == (whole if whole[-1] else whole[:-1])


async def test_a_line_without_end_is_cut() -> None:
    found: list[bytes] = []
    lines = LineSink(found.append)
    for _ in range(3):
        await lines(b"x" * MAX_LINE)
    await lines(b"y\r\n")
    assert [len(line) for line in found] == [2 * MAX_LINE, MAX_LINE + 2]
    assert text_of(found[-1]).endswith("xy")
