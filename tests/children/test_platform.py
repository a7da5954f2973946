"""Real processes: nothing outlives the program, whatever ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import trio
from leftovers import is_alive
from waiting import PATIENCE, wait

from appliance.platform.children import child_env, describe_status, open_children, own_env

posix_only = pytest.mark.skipif(sys.platform == "win32", reason="Windows needs no warden: it has jobs")

ENV = {name: os.environ[name] for name in ("PATH", "SYSTEMROOT") if name in os.environ}
PYTHON = [sys.executable, "-S", "-E", "-c"]
ENDS = ["SIGTERM"] if sys.platform == "win32" else ["SIGKILL", "SIGTERM", "SIGABRT"]
"""The ways in which the program dies. On Windows there is one, which Python calls SIGTERM."""

GRANDCHILD = (
    "import os, subprocess, sys; child = subprocess.Popen([*sys.orig_argv[:4], 'import time; time.sleep(300)'])"
)
FAMILY = [*PYTHON, f"{GRANDCHILD}; print(child.pid, os.getpid(), flush=True); child.wait()"]
"""A child that has a child; prints both pids."""

PARENT = f"""
import sys, trio
from appliance.platform.children import open_children

async def main():
    async with open_children() as children, trio.open_nursery() as nursery:
        for _ in range(3):
            child = await children.spawn({FAMILY!r}, {ENV!r})
            print(*(await child.output.receive_some()).decode().split())
            nursery.start_soon(child.wait)
        sys.stdout.flush()
        await trio.sleep_forever()

trio.run(main)
"""


def wait_gone(pids: list[int]) -> None:
    wait(lambda: [pid for pid in pids if is_alive(pid)], lambda left: not left)


@pytest.fixture
def program() -> Generator[subprocess.Popen[str]]:
    """The program, with three children that have a child each."""
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def pids_below(program: subprocess.Popen[str]) -> list[int]:
    pids = [int(pid) for _ in range(3) for pid in program.stdout.readline().split()]
    assert len(pids) == 6
    assert all(map(is_alive, pids))
    return pids


def wardens_of(program: subprocess.Popen[str]) -> set[int]:
    found: set[int] = set()
    for process in psutil.Process(program.pid).children():
        with suppress(psutil.Error):  # it ended while we looked
            if "llama-appliance-warden" in process.cmdline():
                found.add(process.pid)
    return found


@pytest.mark.parametrize("number", ENDS)
def test_no_process_outlives_the_program(program: subprocess.Popen[str], number: str) -> None:
    pids = pids_below(program)
    program.send_signal(signal.Signals[number])
    program.wait(20)
    wait_gone(pids)


@posix_only
def test_a_killed_warden_is_replaced(program: subprocess.Popen[str]) -> None:
    pids = pids_below(program)
    (first,) = wardens_of(program)
    psutil.Process(first).kill()
    wait(lambda: wardens_of(program) - {first}, within=5, told=lambda: "no new warden")
    time.sleep(0.2)  # the new warden reads what it is told
    assert all(map(is_alive, pids))
    program.kill()
    program.wait(20)
    wait_gone(pids)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows a process's first environment in a file")
async def test_the_warden_does_not_show_the_keys_of_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_APPLIANCE_API_KEY", "secret")
    async with open_children():
        [warden] = [each for each in psutil.Process().children() if "llama-appliance-warden" in each.cmdline()]
        assert warden.environ() == {}


async def test_the_group_goes_with_its_leader() -> None:
    async with open_children() as children:
        child = await children.spawn([*PYTHON, f"{GRANDCHILD}; print(child.pid, flush=True); os._exit(3)"], ENV)
        grandchild = int((await child.output.receive_some()).decode())
        with trio.fail_after(PATIENCE):
            assert await child.wait() == 3
        wait_gone([grandchild])
        await child.stdin.aclose()
        await child.output.aclose()


async def test_both_outputs_arrive_and_input_reaches_the_child() -> None:
    async with open_children() as children:
        say = "import sys; line = input(); print('out', line, flush=True); print('err', line, file=sys.stderr)"
        child = await children.spawn([*PYTHON, say], ENV)
        await child.stdin.send_all(b"hello\n")
        received = b""
        with trio.fail_after(PATIENCE):
            while chunk := await child.output.receive_some():
                received += chunk
            assert await child.wait() == 0
        assert received.splitlines() == [b"out hello", b"err hello"]
        await child.stdin.aclose()
        await child.output.aclose()


@pytest.mark.skipif(sys.platform != "win32", reason="here it is an exit status")
async def test_a_program_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    async with open_children() as children:
        with pytest.raises(FileNotFoundError):
            await children.spawn([str(tmp_path / "missing.exe")], ENV)


@pytest.mark.skipif(sys.platform != "win32", reason="here it gets a signal")
async def test_one_that_is_asked_to_end_ends_with_its_descendants() -> None:
    """Windows has no polite signal for it, so it ends at once."""
    async with open_children() as children:
        child = await children.spawn(FAMILY, ENV)
        pids = [int(pid) for pid in (await child.output.receive_some()).split()]
        child.terminate()
        with trio.fail_after(PATIENCE):
            assert await child.wait() == 1
        wait_gone(pids)
        await child.stdin.aclose()
        await child.output.aclose()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows finds libraries without LD_LIBRARY_PATH")
def test_child_env_scrubs_settings_and_loader_paths() -> None:
    before = {
        "PATH": "/bin",
        "LLAMA_ARG_PORT": "1",
        "LLAMA_API_KEY": "secret",
        "AIP_HTTP_PORT": "99",
        "LLAMA_MEDIA_MARKER": "<m>",
        "LD_LIBRARY_PATH": "/frozen",
        "LD_LIBRARY_PATH_ORIG": "/usr/local/cuda",
    }
    kept = {"PATH": "/bin", "LLAMA_MEDIA_MARKER": "<m>", "LD_LIBRARY_PATH": "/usr/local/cuda"}
    assert child_env(before, frozen=True) == kept
    assert child_env({"LD_LIBRARY_PATH": "/frozen"}, frozen=True) == {}
    assert child_env({"LD_LIBRARY_PATH": "/mine"}, frozen=False) == {"LD_LIBRARY_PATH": "/mine"}


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
@pytest.mark.parametrize(
    ("limits", "clients", "soft", "room"),
    [
        ("-Sn 200", 100, 392, 100),
        ("-n 1024", 4000, 1024, 416),
        ("-n 256", 4000, 256, 52),
        ("-n 64", 4000, 64, 4),
        ("-n 1024", 300, 1024, 300),
    ],
)
def test_the_soft_limit_of_open_files_is_raised(limits: str, clients: int, soft: int, room: int) -> None:
    """No further than the clients need, and the clients that it has no room for are left out."""
    show = f"from appliance.platform.machine import raise_open_files as r; import resource; room = r({clients})"
    show += "; print(room, resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    script = f"ulimit {limits} && exec {sys.executable} -c '{show}'"
    done = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, check=True)
    assert [int(number) for number in done.stdout.split()] == [room, soft]


@pytest.mark.skipif(sys.platform != "win32", reason="an NTSTATUS")
def test_statuses_of_windows_in_words() -> None:
    assert describe_status(1) == "exit status 1"
    assert describe_status(0xC0000135) == "0xC0000135: a DLL it needs is missing"
    assert describe_status(0xC0000135 - (1 << 32)) == "0xC0000135: a DLL it needs is missing"
    assert describe_status(0xC0001234) == "0xC0001234"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no death by signal")
def test_statuses_in_words() -> None:
    assert describe_status(0) == "exit status 0"
    assert describe_status(1) == "exit status 1"
    assert describe_status(-signal.SIGSEGV) == "killed by SIGSEGV"
    assert "memory" in describe_status(-signal.SIGKILL)
    assert describe_status(-signal.SIGILL).startswith("killed by SIGILL (illegal instruction")


def test_a_command_of_the_users_own_gets_all_but_our_settings():
    env = {"PATH": "/bin", "LLAMA_ARG_HOST": "h", "LLAMA_APPLIANCE_API_KEY": "secret", "llama_appliance_url": "u"}
    for frozen in (False, True):
        assert own_env(env, frozen=frozen) == {"PATH": "/bin", "LLAMA_ARG_HOST": "h"}
