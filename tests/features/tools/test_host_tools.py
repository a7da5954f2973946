"""The built-in tools on this machine: what they answer, and what must not hold them up."""

from __future__ import annotations

import base64
import json
import os
import shutil
import sys
import threading
from collections.abc import AsyncGenerator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import trio
from leftovers import wait_no_process
from tool_harness import Tools, open_builtins

from appliance.core.capped_output import MAX_OUTPUT
from appliance.core.tools.box import ToolContext, ToolOutcome
from appliance.errors import NotFound

SLEEPER = "1000.125"
posix_shell = pytest.mark.skipif(sys.platform == "win32", reason="the commands are for a POSIX shell")


@pytest.fixture
async def tools() -> AsyncGenerator[Tools]:
    async with open_builtins() as opened:
        yield opened


async def test_a_file_is_written_edited_and_read(tools: Tools, tmp_path: Path) -> None:
    file = tmp_path / "new" / "deep" / "a.txt"
    written = await tools.call("write_file", path=file, content="line1\nline2\nline3\n")
    assert written == {"result": "file written successfully", "path": str(file), "bytes": 18}
    edits = [{"old_text": "line2", "new_text": "two"}, {"old_text": "line3\n", "new_text": "line3\nline4\n"}]
    edited = await tools.call("edit_file", path=file, edits=edits)
    assert edited == {"result": "file edited successfully", "path": str(file), "edits_applied": 2}
    assert await tools.text("read_file", path=file) == "line1\ntwo\nline3\nline4\n"
    assert await tools.text("read_file", path=file, start_line=2, end_line=3, append_loc=True) == "2→two\n3→line3\n"
    await tools.call("write_file", path=file, content="short")
    assert file.read_text() == "short", "nothing is left of a longer text"


async def test_what_is_not_utf_8_stays_as_it_is(tools: Tools, tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"\xff\xfeold\r\n\x80end")
    assert await tools.text("read_file", path=file) == "��old\r\n�end\n"
    await tools.call("edit_file", path=file, edits=[{"old_text": "old", "new_text": "new"}])
    assert file.read_bytes() == b"\xff\xfenew\r\n\x80end"


async def test_a_large_file_is_read_in_parts(tools: Tools, tmp_path: Path) -> None:
    file = tmp_path / "large"
    with file.open("wb") as out:
        for n in range(300_000):
            out.write(b"%d %s\n" % (n + 1, b"x" * 100))
    assert (await tools.error("read_file", path=file)).startswith(f"file too large ({file.stat().st_size} bytes, max")
    assert await tools.text("read_file", path=file, start_line=299_999, end_line=299_999) == f"299999 {'x' * 100}\n"
    whole = await tools.text("read_file", path=file, start_line=1, end_line=300_000)
    assert len(whole) < MAX_OUTPUT + 30
    assert whole.endswith("[output truncated]")


async def test_a_file_without_an_end_is_given_up_in_words(
    tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sparse file costs nobody anything but its reader: 50 GB of zeros, and a line far behind them."""
    monkeypatch.setattr("appliance.features.tools.host.BUDGET", 1.0)
    endless = tmp_path / "endless"
    endless.touch()
    os.truncate(endless, 50 << 30)
    said = await tools.error("read_file", path=endless, start_line=2, end_line=3)
    assert said == f"reading took more than 1 s and was given up: {endless}; search it with grep_search, or read less"


async def test_bytes_come_as_base64(tools: Tools, tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(bytes(range(256)) * 1000)
    answer = await tools.call("read_file", path=file, base64=True)
    assert answer["size_bytes"] == 256_000
    assert base64.b64decode(answer["base64"]) == file.read_bytes()
    os.truncate(file, (32 << 20) + 1)
    assert "file too large" in await tools.error("read_file", path=file, base64=True)


async def test_files_that_are_not_there(tools: Tools, tmp_path: Path) -> None:
    assert await tools.error("read_file", path=tmp_path / "no") == f"cannot stat file: {tmp_path / 'no'}"
    assert "cannot stat file" in await tools.error("edit_file", path="no", cwd=tmp_path, edits=[])
    assert "a folder" in await tools.error("read_file", path=tmp_path)
    assert "zero byte" in await tools.error("read_file", path="a\0b")
    assert "empty" in await tools.error("write_file", path="", content="")
    assert "path does not exist" in await tools.error("grep_search", path=tmp_path / "no", pattern="x")
    assert "path does not exist" in await tools.error("file_glob_search", path=tmp_path / "no")


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX files")
async def test_nothing_waits_for_pipes_and_devices(tools: Tools, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "plain").write_text("needle\n")
    for path in (tmp_path / "pipe", "/dev/zero", "/dev/tty"):
        assert "not a regular file" in await tools.error("read_file", path=path)
        assert "not a regular file" in await tools.error("write_file", path=path, content="x")
        assert "error" in await tools.call("grep_search", path=path, pattern="x")
    assert "plain:needle\n" in await tools.text("grep_search", path=tmp_path, pattern="needle")
    assert "pipe" not in await tools.text("file_glob_search", path=tmp_path, type="all")


@posix_shell
async def test_the_working_directory_of_a_use(tools: Tools, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    await tools.call("write_file", path="sub/out.txt", content="written", cwd=work)
    assert (work / "sub" / "out.txt").read_text() == "written"
    assert await tools.text("read_file", path="../work/sub/out.txt", cwd=work) == "written\n"
    assert "sub/out.txt" in await tools.text("file_glob_search", path=".", include="*.txt", cwd=work)
    assert (await tools.text("exec_shell_command", command="pwd", cwd=work)).splitlines()[0] == str(work.resolve())
    assert (await tools.call("get_info", cwd=work))["cwd"] == str(work)
    assert (await tools.call("get_info"))["cwd"] == str(Path.cwd())
    assert "cannot be used" in await tools.error("exec_shell_command", command="pwd", cwd=tmp_path / "no")


async def test_the_home_folder(tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USERPROFILE" if sys.platform == "win32" else "HOME", str(tmp_path))
    (tmp_path / "mine").write_text("at home")
    assert await tools.text("read_file", path="~/mine") == "at home\n"
    assert "mine" in await tools.text("file_glob_search", path="~")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("a/b/deep.txt", "a/mid.txt", "top.txt", "build/artifact.txt", "src/main.cpp"):
        file = tmp_path / "tree" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"in {name}\nneedle\n")
    return tmp_path / "tree"


async def test_files_and_folders_are_found(tools: Tools, tree: Path) -> None:
    found = await tools.call("file_glob_search", path=tree, type="all")
    assert found["base"] == str(tree)
    entries = {entry["path"]: entry["type"] for entry in found["entries"]}
    assert entries == {
        "a": "dir", "a/b": "dir", "a/b/deep.txt": "file", "a/mid.txt": "file", "top.txt": "file", "build": "dir",
        "src": "dir", "src/main.cpp": "file",
    }  # fmt: skip
    lines = found["plain_text_response"]
    assert "a/b/\n" in lines
    assert lines.endswith("\n\n---\nTotal matches: 8\n")


async def test_depth_limit_and_globs(tools: Tools, tree: Path) -> None:
    near = await tools.text("file_glob_search", path=tree, max_depth=1)
    assert "top.txt" in near
    assert "mid.txt" not in near
    cut = await tools.call("file_glob_search", path=tree, limit=1)
    assert len(cut["entries"]) == 1
    assert "Total matches: 4" in cut["plain_text_response"]
    some = await tools.text("file_glob_search", path=tree, include="*.txt", exclude="a/**")
    assert some.splitlines()[0] == "top.txt"
    assert await tools.error("file_glob_search", path=tree, limit=0) == "invalid limit: 0 (expected 1 or more)"
    assert (await tools.error("file_glob_search", path=tree, type="bogus")).startswith("invalid type: bogus")
    assert "the most is" in await tools.error("file_glob_search", path=tree, include="*" * 2000)


@pytest.mark.needs("git")
async def test_in_a_repository_ignored_files_are_left_out_and_nothing_of_it_is_run(
    tools: Tools, tree: Path, tmp_path: Path
) -> None:
    hook = tmp_path / "hook"
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path / 'ran'}\n")
    hook.chmod(0o755)
    for words in (["init", "-q"], ["config", "core.fsmonitor", str(hook)]):
        await trio.run_process(["git", "-C", str(tree), *words], capture_stdout=True)
    (tree / ".gitignore").write_text("top.txt\n")
    text = await tools.text("file_glob_search", path=tree)
    assert "top.txt" not in text
    assert "a/mid.txt" in text
    assert "top.txt" not in await tools.text("grep_search", path=tree, pattern="needle")
    assert not (tmp_path / "ran").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="symbolic links")
async def test_links_are_not_followed(tools: Tools, tree: Path) -> None:
    (tree / "loop").symlink_to(tree)
    found = await tools.call("file_glob_search", path=tree, type="all")
    paths = [entry["path"] for entry in found["entries"]]
    assert "loop" in paths
    assert not any(path.startswith("loop/") for path in paths)


async def test_lines_are_found(tools: Tools, tmp_path: Path) -> None:
    (tmp_path / "f.txt").write_text("one\ntwo\nTHREE\nfour\nfive\nsix\nseven\ntwo\n")

    async def grep(**more) -> str:
        return (await tools.text("grep_search", path=tmp_path, **more)).partition("\n---\n")[0]

    assert await grep(pattern=r"t\w+o?$") == "f.txt:two\nf.txt:two\n"
    assert await grep(pattern="three", ignore_case=True, return_line_numbers=True) == "f.txt:3:THREE\n"
    assert await grep(pattern="w.", literal=True) == ""
    around = "f.txt-1-one\nf.txt:2:two\nf.txt-3-THREE\n--\nf.txt-7-seven\nf.txt:8:two\n"
    assert await grep(pattern="two", context_lines=1) == around
    assert "invalid regex" in await tools.error("grep_search", path=tmp_path, pattern="(")
    named = await tools.text("grep_search", path="f.txt", pattern="six", cwd=tmp_path)
    assert named == "f.txt:six\n\n---\nTotal matches: 1\n"


async def test_binary_files_and_endless_lines(tools: Tools, tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\0\0needle\n")
    with (tmp_path / "endless").open("wb") as file:
        file.truncate(3 << 20)
        file.seek(0)
        file.write(b"x" * 9000 + b"needle" + b"y" * (2 << 20) + b"\nneedle\n")
    text = await tools.text("grep_search", path=tmp_path, pattern="needle")
    assert "binary" not in text
    assert "Total matches: 2" in text
    assert len(text) < 3000


@pytest.mark.slow
async def test_a_pattern_that_takes_for_ever_holds_nobody_up(
    tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a process of its own, which is killed: the event loop goes on all the while."""
    monkeypatch.setattr("appliance.features.tools.host.BUDGET", 4.0)
    (tmp_path / "bait").write_text("ok\n" + "a" * 60 + "b\n")
    ticks = 0
    async with trio.open_nursery() as nursery:

        async def tick() -> None:
            nonlocal ticks
            while True:
                await trio.sleep(0.02)
                ticks += 1

        nursery.start_soon(tick)
        text = await tools.text("grep_search", path=tmp_path, pattern="^(ok|(a+)+)$")
        nursery.cancel_scope.cancel()
    assert "bait:ok\n" in text
    assert "[results truncated" in text
    assert ticks > 10


@pytest.mark.slow
async def test_files_that_come_and_go_while_they_are_searched(tools: Tools, tree: Path) -> None:
    stop = threading.Event()
    refused = (OSError,) if sys.platform == "win32" else ()  # a file that is read at this moment stays

    def churn() -> None:
        while not stop.is_set():
            folder = tree / "a" / "flicker"
            with suppress(*refused):
                folder.mkdir(exist_ok=True)
                (folder / "x").write_text("needle\n")
                shutil.rmtree(folder)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, churn)
        try:
            for _ in range(8):
                assert "top.txt:needle" in await tools.text("grep_search", path=tree, pattern="needle")
                assert "top.txt" in await tools.text("file_glob_search", path=tree, type="all")
        finally:
            stop.set()


@posix_shell
async def test_a_command_says_how_it_ended(tools: Tools) -> None:
    text = await tools.text("exec_shell_command", command="echo out; echo err >&2; exit 3")
    assert text == "out\nerr\n\n[exit code: 3]"
    assert await tools.text("exec_shell_command", command="kill -9 $$") == "\n[exit code: 137]"
    assert "zero byte" in await tools.error("exec_shell_command", command="echo a\0b")


@pytest.mark.skipif(sys.platform != "win32", reason="the commands are for cmd")
async def test_a_command_of_windows_keeps_its_quotes_and_ends_with_all_it_has_started(tools: Tools) -> None:
    python = f'"{sys.executable}" -S -E -c'
    text = await tools.text("exec_shell_command", command=f"{python} \"print('a  b')\" & exit 3")
    assert text.split() == ["a", "b", "[exit", "code:", "3]"]
    assert "a  b" in text
    # longer than the tool may take
    sleep = f'{python} "import time; time.sleep({SLEEPER})"'
    text = await tools.text("exec_shell_command", command=f"start /b {sleep} & {sleep}", timeout=3)
    assert text.endswith("[exit due to timed out]")
    await wait_no_process(SLEEPER)


@posix_shell
async def test_a_command_does_not_see_this_programs_keys(tools: Tools, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_APPLIANCE_API_KEY", "secret-one")
    monkeypatch.setenv("LLAMA_API_KEY", "secret-two")
    monkeypatch.setenv("PLAIN", "seen")
    text = await tools.text("exec_shell_command", command="env")
    assert "PLAIN=seen" in text
    assert "secret" not in text


@posix_shell
async def test_output_beyond_the_limit_is_drained_and_not_kept(tools: Tools) -> None:
    command = "head -c 100000000 /dev/zero | tr '\\0' x; echo done >&2; exit 5"
    before = psutil.Process().memory_info().rss
    text = await tools.text("exec_shell_command", command=command, timeout=50)
    assert text == "x" * MAX_OUTPUT + "\n[output truncated]\n[exit code: 5]"
    assert psutil.Process().memory_info().rss - before < 60 << 20
    short = await tools.text("exec_shell_command", command="echo 1234567890", max_output_size=4)
    assert short == "1234\n[output truncated]\n[exit code: 0]"


@posix_shell
async def test_what_a_command_leaves_behind_ends_with_it(tools: Tools) -> None:
    assert "[exit code: 0]" in await tools.text("exec_shell_command", command=f"sleep {SLEEPER} &")
    await wait_no_process(SLEEPER)


@posix_shell
async def test_output_comes_as_it_is_made(tools: Tools, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    command = f'printf "caf\\303"; cat {tmp_path}/gate; printf "\\251"; head -c 20000 /dev/zero | tr "\\0" x'
    arguments = f'{{"command": {json.dumps(command)}, "timeout": 50}}'.encode()
    pieces: list[bytes] = []
    async with tools.box.stream("exec_shell_command", arguments, ToolContext()) as stream:
        pieces.append(await anext(stream))  # before the command can go on
        await trio.to_thread.run_sync((tmp_path / "gate").write_text, "go")
        async for piece in stream:
            if isinstance(piece, ToolOutcome):
                outcome = piece
            else:
                pieces.append(piece)
    assert pieces[0] == b"caf"
    assert all(piece.decode() for piece in pieces)
    text = b"".join(pieces).decode()
    assert text.startswith("cafgo\ufffd") or text.startswith("caf\ufffdgo")
    assert pieces[-1] == b"\n[output truncated]\n[exit code: 0]"
    assert outcome.text.endswith("\n[output truncated]\n[exit code: 0]")


async def test_only_what_was_switched_on_is_there() -> None:
    async with open_builtins("get_info", "read_file") as tools:
        assert [spec.name for spec in tools.box.specs()] == ["read_file", "get_info"]
        with pytest.raises(NotFound):
            await tools.call("exec_shell_command", command="true")
