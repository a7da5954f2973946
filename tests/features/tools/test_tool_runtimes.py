"""Tools in containers and on other machines, where nothing falls back to here; and the routes of all tools."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
import trio
from http_harness import Answer, Appliance, OpenServer
from leftovers import wait_no_process
from tool_harness import Tools, open_builtins, put_runtimes
from waiting import until

from appliance.core.tools.box import ToolProblem
from appliance.core.tools.choice import NAMES, chosen_tools
from appliance.features.tools.box import open_own_tools

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
    assert "expected 1 or more" in await tools.error("file_glob_search", path=".", limit=0, runtime=BOX)
    assert await tools.call("file_glob_search", path=".", limit=1, runtime=BOX)
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


@asynccontextmanager
async def serving(
    open_server: OpenServer, words: Sequence[str] = ("all",), **more: object
) -> AsyncGenerator[Appliance]:
    settings = chosen_tools(words, runtime="", root="")
    async with open_own_tools(settings) as tools, open_server(tools=tools, **more) as server:
        yield server


@pytest.fixture
async def server(open_server: OpenServer) -> AsyncGenerator[Appliance]:
    async with serving(open_server) as running:
        yield running


async def use(server: Appliance, tool: str, *headers: tuple[str, str | bytes], **params: object) -> Answer:
    return await server.ask("POST", "/tools", {"tool": tool, "params": params}, headers, patience=60)


async def test_the_list(server: Appliance) -> None:
    answer = await server.ask("GET", "/tools")
    assert (answer.status, answer.header("content-type")) == (200, "application/json; charset=utf-8")
    assert [entry["tool"] for entry in answer.json] == list(NAMES)
    first = answer.json[0]
    assert list(first) == ["display_name", "tool", "type", "permissions", "uses_cwd", "definition"]
    assert (first["display_name"], first["type"], first["permissions"]) == ("Read file", "builtin", {"write": False})
    assert first["uses_cwd"] is True
    function = first["definition"]["function"]
    assert first["definition"]["type"] == "function"
    assert list(function) == ["name", "description", "parameters"]
    assert function["parameters"]["required"] == ["path"]
    writes = {entry["tool"] for entry in answer.json if entry["permissions"]["write"]}
    assert writes == {"exec_shell_command", "write_file", "edit_file"}


async def test_it_is_off_unless_switched_on(open_server: OpenServer) -> None:
    for single in (None, "alpha"):
        async with open_server(single=single) as server:
            for method in ("GET", "POST"):
                answer = await server.ask(method, "/tools", {} if method == "POST" else None)
                assert (answer.status, answer.error["type"]) == (403, "feature_disabled")
                assert list(answer.error) == ["message", "type"]
                assert answer.error["message"].startswith("this feature is disabled")


async def test_a_tool_is_used(server: Appliance, tmp_path: Path) -> None:
    tmp_path /= "übung 文"  # a working directory may have any letters
    tmp_path.mkdir()
    large = await use(server, "write_file", path=str(tmp_path / "a"), content="x" * (5 << 20))
    assert large.json["bytes"] == (tmp_path / "a").stat().st_size == 5 << 20
    written = await use(server, "write_file", path=str(tmp_path / "a"), content="text")
    assert written.json == {"result": "file written successfully", "path": str(tmp_path / "a"), "bytes": 4}
    here = ("x-tool-cwd", str(tmp_path).encode())
    read = await use(server, "read_file", here, path="a", cwd=str(tmp_path / "no"), runtime="x:y")
    assert (read.status, read.json) == (200, {"plain_text_response": "text\n"})
    raw = await use(server, "read_file", ("X-Resp-Type", "base64"), path=str(tmp_path / "a"), resp_type="x")
    assert raw.json == {"base64": "dGV4dA==", "size_bytes": 4}
    missing = await use(server, "read_file", path=str(tmp_path / "no"))
    assert (missing.status, missing.json) == (200, {"error": f"cannot stat file: {tmp_path / 'no'}"})


UNUSABLE = [
    (b"", 400, "invalid_request_error", "JSON"),
    (b"[]", 400, "invalid_request_error", "object"),
    (b'{"params":{}}', 400, "invalid_request_error", "tool"),
    (b'{"tool":"read_file"}', 400, "invalid_request_error", "path"),
    (b'{"tool":"read_file","params":[]}', 400, "invalid_request_error", "params"),
    (b'{"tool":"nope","params":{}}', 404, "not_found_error", "nope"),
    (b'{"tool":"read_file","params":{"path":"a"},"stream":true}', 404, "not_found_error", "stream"),
    (b'{"tool":"read_file","params":{"path":"\\ud800"}}', 400, "invalid_request_error", ""),
    (b'{"tool":"read_file","params":' + b'{"a":' * 200_000 + b"1" + b"}" * 200_000 + b"}", 400, "", "deep"),
    (b'{"tool":"x","params":' + b"[" * 500_000, 400, "", ""),
]


async def test_what_cannot_be_used_has_a_status(server: Appliance) -> None:
    for body, status, kind, words in UNUSABLE:
        answer = await server.ask("POST", "/tools", body)
        assert answer.status == status, body[:60]
        told = answer.error if status == 404 else answer.json  # as llama-server: its 404 has a form of its own
        assert (list(told), told["code"]) == (["code", "message", "type"], status)
        assert told["type"].startswith(kind)
        assert words in told["message"]
        assert answer.header("connection") == "close"


async def test_a_bad_runtime_is_500(server: Appliance) -> None:
    for runtime, words in (
        ("ssh:-oProxyCommand=touch /tmp/pwned", "invalid ssh target"),
        ("docker:busybox", "tool runtime must name a running container"),
    ):
        for stream in (False, True):
            body = {"tool": "exec_shell_command", "params": {"command": "echo hi"}, "stream": stream}
            answer = await server.ask("POST", "/tools", body, [("x-tool-runtime", runtime)])
            assert (answer.status, answer.json["code"], answer.json["type"]) == (500, 500, "server_error")
            assert words in answer.json["message"]


async def test_a_command_streams(server: Appliance, tmp_path: Path) -> None:
    body = {"tool": "exec_shell_command", "params": {"command": "echo hello; exit 3"}, "stream": True}
    answer = await server.ask("POST", "/tools", body, patience=60)
    lost = await server.ask("POST", "/tools", body, [("x-tool-cwd", str(tmp_path / "no"))], patience=60)
    assert (answer.status, answer.header("content-type")) == (200, "text/event-stream")
    events = [json.loads(event.removeprefix("data: ")) for event in answer.events]
    assert events[-1] == {"done": True}
    assert events[-2] == {"chunk": "\n[exit code: 3]"}
    assert "".join(event["chunk"] for event in events[:-1]) == "hello\n\n[exit code: 3]"
    (end,) = (json.loads(event.removeprefix("data: ")) for event in lost.events)
    assert end["done"] is True
    assert "working directory" in end["error"]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_takes_the_command_with_it(server: Appliance, tmp_path: Path, stream: bool) -> None:
    command = f"echo begun; touch {tmp_path}/begun; sleep {SLEEPER} & sleep {SLEEPER}"
    body = {"tool": "exec_shell_command", "params": {"command": command, "timeout": 60}, "stream": stream}
    async with server.connect() as client:
        await client.send("POST", "/tools", body)
        if stream:
            assert b"begun" in await client.data()
        await until((tmp_path / "begun").exists)
    await wait_no_process(SLEEPER)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_command_under_way_ends_at_once_with_the_server(
    open_server: OpenServer, tmp_path: Path, stream: bool
) -> None:
    command = f"echo begun; touch {tmp_path}/begun; sleep {SLEEPER}"
    body = {"tool": "exec_shell_command", "params": {"command": command, "timeout": 60}, "stream": stream}
    async with serving(open_server, grace=60.0) as server, server.connect() as client:
        await client.send("POST", "/tools", body)
        await until((tmp_path / "begun").exists)
        await server.end()
        answer = await client.answer()
        await wait_no_process(SLEEPER)
    if stream:
        assert answer.status == 200
        last = json.loads(answer.events[-1].removeprefix("data: "))
        assert last["done"] is True
        assert "shutting down" in last["error"]
    else:
        assert answer.status == 503
        assert "shutting down" in answer.json["message"]


async def test_not_everything_at_once(server: Appliance, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("appliance.features.tools.tool_routes.MAX_AT_ONCE", 1)
    command = f"touch {tmp_path}/begun; sleep {SLEEPER}"
    body = {"tool": "exec_shell_command", "params": {"command": command, "timeout": 60}}
    async with server.connect() as client:
        await client.send("POST", "/tools", body)
        await until((tmp_path / "begun").exists)
        assert (await use(server, "get_info")).status == 503
    await wait_no_process(SLEEPER)
    assert (await use(server, "get_info")).status == 200
