"""Tools in containers and on other machines: everything happens there, and nothing falls back to here."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import psutil
import pytest
import trio
from leftovers import wait_no_process
from tool_harness import Tools, open_builtins, put_runtimes
from waiting import until

from appliance.core.tools.box import ToolContext, ToolProblem

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX shells")

SLEEPER = "1000.25"
BOX = "docker-container:box1"


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    state = put_runtimes(tmp_path, monkeypatch)
    (state / "box1").mkdir()
    return state


@pytest.fixture
async def tools(state: Path) -> AsyncGenerator[Tools]:
    async with open_builtins() as opened:
        yield opened


@pytest.mark.parametrize("runtime", [BOX, "podman-container:box1", "ssh:somewhere"])
async def test_every_tool_works_there(tools: Tools, state: Path, runtime: str) -> None:
    there = state / ("ssh" if runtime.startswith("ssh") else "box1")

    async def use(tool: str, **params):
        return await tools.call(tool, runtime=runtime, **params)

    odd = 'it\'s "odd" $HOME\n–é\n'
    written = await use("write_file", path="sub/a 'b'.txt", content=odd)
    assert written == {"result": "file written successfully", "path": "sub/a 'b'.txt", "bytes": len(odd.encode())}
    assert (there / "sub" / "a 'b'.txt").read_text() == odd
    assert (await use("read_file", path="~/sub/a 'b'.txt"))["plain_text_response"] == odd
    edited = await use("edit_file", path="sub/a 'b'.txt", edits=[{"old_text": "-é", "new_text": "e"}])
    assert edited["edits_applied"] == 1
    line = await use("read_file", path="a 'b'.txt", cwd=there / "sub", start_line=2, append_loc=True)
    assert line["plain_text_response"] == "2→e\n"
    raw = await use("read_file", path="sub/a 'b'.txt", base64=True)
    assert raw["size_bytes"] == len((there / "sub" / "a 'b'.txt").read_bytes())
    done = await use("exec_shell_command", command="echo $INSIDE; pwd; echo e >&2; exit 4", cwd="sub")
    assert done["plain_text_response"] == f"{there.name}\n{there}/sub\ne\n\n[exit code: 4]"
    assert (await use("get_info"))["cwd"] == str(there)
    assert (await use("get_info"))["os"].startswith(os.uname().sysname)


async def test_searches_there(tools: Tools, state: Path) -> None:
    box = state / "box1"
    for name in ("src/a-1-b.py", "src/c.txt", "build/x.py", "top:2:x.py"):
        (box / name).parent.mkdir(parents=True, exist_ok=True)
        (box / name).write_text("one\nneedle 1\nthree\n")
    found = await tools.call("file_glob_search", path=".", type="all", runtime=BOX)
    assert found["base"] == str(box)
    entries = {entry["path"]: entry["type"] for entry in found["entries"]}
    assert entries == {
        "src": "dir", "build": "dir", "src/a-1-b.py": "file", "src/c.txt": "file", "top:2:x.py": "file",
    }  # fmt: skip
    near = await tools.call("file_glob_search", path=".", max_depth=1, runtime=BOX)
    assert [entry["path"] for entry in near["entries"]] == ["top:2:x.py"]
    lines = await tools.text("grep_search", path=".", pattern=r"needle \d$", include="*.py", runtime=BOX)
    *texts, _, _, total = lines.strip().split("\n")
    assert sorted(texts) == ["src/a-1-b.py:needle 1", "top:2:x.py:needle 1"]
    assert total == "Total matches: 2"
    around = await tools.text(
        "grep_search", path="src/c.txt", pattern="NEEDLE", ignore_case=True, context_lines=1, runtime=BOX
    )
    assert around.startswith("src/c.txt-1-one\nsrc/c.txt:2:needle 1\nsrc/c.txt-3-three\n\n---\nTotal matches: 1\n")
    assert "tool runtime" in await tools.error("grep_search", path=".", pattern="(?=x)", runtime=BOX)
    literal = await tools.text("grep_search", path=".", pattern="needle .", literal=True, runtime=BOX)
    assert "Total matches: 0" in literal


@pytest.mark.parametrize("runtime", [None, BOX])
async def test_no_more_than_a_hundred_matches(tools: Tools, state: Path, runtime: str | None) -> None:
    (state / "box1" / "many").write_text("x\n" * 100_000)
    text = await tools.text("grep_search", path=state / "box1", pattern="x", runtime=runtime)
    assert text.count("many:x\n") == 100
    assert "Total matches: 100\n[the first 100 matches are shown" in text


async def test_what_is_not_there(tools: Tools, state: Path) -> None:
    os.mkfifo(state / "box1" / "pipe")
    (state / "box1" / "large").write_bytes(b"x" * 20_000)
    assert await tools.error("read_file", path="no", runtime=BOX) == "cannot stat file: no"
    for tool, more in (("read_file", {}), ("write_file", {"content": "x"})):
        assert "not a regular file" in await tools.error(tool, path="pipe", runtime=BOX, **more)
    assert "file too large (20000 bytes" in await tools.error("read_file", path="large", runtime=BOX)
    part = await tools.text("read_file", path="large", end_line=1, runtime=BOX)
    assert part.endswith("[output truncated]")
    assert "does not exist" in await tools.error("file_glob_search", path="no", runtime=BOX)
    assert "does not exist" in await tools.error("grep_search", path="no", pattern="x", runtime=BOX)
    missing = str(state / "box1" / "missing")
    assert "cannot stat file" in await tools.error("read_file", path="a", cwd=missing, runtime=BOX)
    assert "[exit code: 70]" in await tools.text("exec_shell_command", command="true", cwd=missing, runtime=BOX)


@pytest.mark.parametrize(
    ("runtime", "words"),
    [
        ("ssh:-oProxyCommand=touch /tmp/pwned", "invalid ssh target"),
        ("podman:busybox", "tool runtime must name a running container"),
        ("docker-container:gone", "No such container: gone"),
        ("ssh:elsewhere", "Could not resolve hostname elsewhere"),
    ],
)
async def test_what_cannot_be_reached_is_never_this_machine(
    tools: Tools, tmp_path: Path, runtime: str, words: str
) -> None:
    with pytest.raises(ToolProblem, match=words):
        await tools.call("write_file", path=tmp_path / "taken", content="x", runtime=runtime)
    with pytest.raises(ToolProblem, match=words):
        await tools.call("get_info", runtime=runtime)
    assert not (tmp_path / "taken").exists()


async def test_a_runtime_without_its_program(tools: Tools, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(state))
    with pytest.raises(ToolProblem, match="no program 'podman' on this machine"):
        await tools.call("get_info", runtime="podman-container:box1")


@pytest.mark.parametrize("runtime", [None, BOX, "ssh:somewhere"])
async def test_a_command_ends_in_time_with_all_it_has_started(tools: Tools, runtime: str | None) -> None:
    command = f"sleep {SLEEPER} & echo started; sleep {SLEEPER}"
    text = await tools.text("exec_shell_command", command=command, timeout=4, runtime=runtime)
    assert text.startswith("started\n")
    assert text.endswith("[exit due to timed out]")
    await wait_no_process(SLEEPER)


@pytest.mark.parametrize("runtime", [None, BOX])
async def test_cancelling_ends_a_command(tools: Tools, runtime: str | None) -> None:
    with trio.move_on_after(1) as scope:
        await tools.text("exec_shell_command", command=f"sleep {SLEEPER}", timeout=50, runtime=runtime)
    assert scope.cancelled_caught
    await wait_no_process(SLEEPER)


@pytest.mark.parametrize("runtime", [None, BOX])
async def test_output_comes_as_it_is_made_and_leaving_ends_the_command(tools: Tools, runtime: str | None) -> None:
    arguments = f'{{"command": "echo hi; sleep {SLEEPER}", "timeout": 50}}'.encode()
    async with tools.box.stream("exec_shell_command", arguments, ToolContext(runtime=runtime)) as stream:
        assert await anext(stream) == b"hi\n"
    await wait_no_process(SLEEPER)


async def test_a_container_is_started_and_ends_with_the_tools(state: Path) -> None:
    async with open_builtins(runtime="docker:busybox") as tools:
        (own,) = containers(state)
        assert await tools.text("exec_shell_command", command="echo $INSIDE") == f"{own}\n\n[exit code: 0]"
        assert await tools.text("exec_shell_command", command="echo $INSIDE", runtime=BOX) != f"{own}\n"
    assert containers(state) == []


async def test_a_container_that_died_is_started_again(state: Path) -> None:
    async with open_builtins(runtime="podman:image") as tools:
        (first,) = containers(state)
        psutil.Process(int(first[1:])).kill()

        async def which() -> str:
            """The container of the next use. A use of one that is about to be cleared away fails, and says so."""
            try:
                text = await tools.text("exec_shell_command", command="echo $INSIDE")
            except ToolProblem as problem:
                return str(problem)
            return text.removesuffix("\n\n[exit code: 0]")

        second = await until(which, lambda now: now != first and now in containers(state), within=90)
        await until(lambda: containers(state), lambda left: left == [second])


async def test_a_container_that_does_not_start_is_told(state: Path) -> None:
    with pytest.raises(ToolProblem, match=r"failed to start .*Unable to find image"):
        async with open_builtins(runtime="docker:missing"):
            pass


def containers(state: Path) -> list[str]:
    return [path.name for path in state.iterdir() if path.name.startswith("c")]
