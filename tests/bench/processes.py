"""The processes of one bench run: started here, measured from outside, ended here."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil

HOST = "127.0.0.1"
START_TIMEOUT = 60.0
STOP_TIMEOUT = 15.0
POLL = 0.001


class Failed(Exception):
    """Something under measurement did not work; the table says so and goes on."""


class Cpu(NamedTuple):
    """User and system seconds since the start of a process, and of everything below it."""

    own: float
    below: float

    def __sub__(self, earlier: Cpu) -> Cpu:  # type: ignore[override]
        return Cpu(self.own - earlier.own, self.below - earlier.below)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(argv: Sequence[str], log: Path, env: dict[str, str] | None = None) -> Generator[psutil.Popen]:
    """Run a program in its own process group; on the way out it is asked to end, then the group is killed."""
    with log.open("ab") as out:
        process = psutil.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(env or {})},
            start_new_session=True,
        )
    try:
        yield process
    finally:
        end(process)


def end(process: psutil.Popen) -> None:
    """Ask, wait, then kill what is left of the group and below."""
    below = process.children(recursive=True) if process.is_running() else []
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(STOP_TIMEOUT)
    except psutil.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for orphan in below:
        if orphan.is_running():
            orphan.kill()


def wait_listening(process: psutil.Popen, port: int, path: str = "/health") -> float:
    """Until GET ``path`` is answered 200; seconds since the call. Failed when it dies or takes too long."""
    began = time.monotonic()
    while time.monotonic() - began < START_TIMEOUT:
        if process.poll() is not None:
            raise Failed(f"{process.args[0]} exited with status {process.returncode}")
        if get(port, path) == 200:
            return time.monotonic() - began
        time.sleep(POLL)
    raise Failed(f"{process.args[0]} did not answer within {START_TIMEOUT:g} s")


def wait_accepting(process: psutil.Popen, port: int) -> float:
    """Until a connection is accepted, nothing being asked; seconds since the call. Failed as `wait_listening`."""
    began = time.monotonic()
    while time.monotonic() - began < START_TIMEOUT:
        if process.poll() is not None:
            raise Failed(f"{process.args[0]} exited with status {process.returncode}")
        with socket.socket() as probe:
            if probe.connect_ex((HOST, port)) == 0:
                return time.monotonic() - began
        time.sleep(POLL)
    raise Failed(f"{process.args[0]} did not listen within {START_TIMEOUT:g} s")


def get(port: int, path: str) -> int:
    """The status of one GET; 0 without an answer."""
    connection = http.client.HTTPConnection(HOST, port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except OSError:
        return 0
    finally:
        connection.close()


def cpu(process: psutil.Popen) -> Cpu:
    """What a process and its descendants used so far (/proc/PID/stat on Linux)."""
    times = process.cpu_times()
    below = 0.0
    for child in process.children(recursive=True):
        try:
            used = child.cpu_times()
        except psutil.Error:
            continue  # it ended; nothing under measurement should, but a helper may
        below += used.user + used.system
    return Cpu(times.user + times.system, below)


def memory(process: psutil.Popen) -> tuple[int, int]:
    """Resident bytes of a process, and of its descendants together."""
    below = sum(child.memory_info().rss for child in process.children(recursive=True))
    return process.memory_info().rss, below
