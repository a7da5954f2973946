"""The guard must see what it guards against."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager

import pytest
from leftovers import Leftovers

SLEEPER = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]


def test_nothing_held_is_nothing_found() -> None:
    assert Leftovers.now().since(Leftovers.now()) == []


def test_a_child_is_seen() -> None:
    before = Leftovers.now()
    with subprocess.Popen(SLEEPER) as child:
        try:
            assert [line.split(":")[0] for line in Leftovers.now().since(before)] == [f"process {child.pid}"]
        finally:
            child.kill()


@pytest.mark.skipif(sys.platform == "win32", reason="orphans are told by their environment, which Windows hides")
def test_an_orphan_is_seen() -> None:
    before = Leftovers.now()
    popen = f"subprocess.Popen({SLEEPER!r}, start_new_session=True, stdout=-3, stderr=-3)"
    code = f"import subprocess; print({popen}.pid, flush=True); import os; os._exit(0)"
    pid = int(subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, check=True).stdout)
    try:
        assert any(f"process {pid}:" in line for line in Leftovers.now().since(before))
    finally:
        os.kill(pid, 9)


def test_a_listening_port_is_seen() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        listener.close()
        before = Leftovers.now()
        with socket.create_server(("127.0.0.1", port)):
            assert f"listening port 127.0.0.1:{port}" in Leftovers.now().since(before)


def test_a_thread_is_seen() -> None:
    before = Leftovers.now()
    with thread("left-behind"):
        assert any("thread left-behind" in line for line in Leftovers.now().since(before))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what a descriptor is")
def test_a_descriptor_is_seen() -> None:
    before = Leftovers.now()
    reader, writer = os.pipe()
    try:
        numbers = {line.split(":")[0] for line in Leftovers.now().since(before)}
        assert numbers == {f"file descriptor {reader}", f"file descriptor {writer}"}
    finally:
        os.close(reader)
        os.close(writer)


def test_a_process_that_the_tests_begin_ignores_no_signal() -> None:
    """Whatever these tests were begun with; `.ci/in-debian --bare` begins them as nohup does."""
    code = "import signal; print(*(n.name for n in signal.Signals if signal.getsignal(n) is signal.SIG_IGN))"
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, check=True, text=True)
    assert set(done.stdout.split()) <= {"SIGPIPE", "SIGXFSZ"}, "these two Python ignores itself"


@contextmanager
def thread(name: str) -> Generator[None]:
    done = threading.Event()
    running = threading.Thread(target=done.wait, name=name)
    running.start()
    try:
        yield
    finally:
        done.set()
        running.join()
