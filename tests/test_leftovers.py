"""The guard must see what it guards against."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager

import pytest
from leftovers import Leftovers

SLEEPER = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]


def test_nothing_held_is_nothing_found() -> None:
    assert Leftovers.now().since(Leftovers.now()) == []


@contextmanager
def child() -> Generator[str]:
    with subprocess.Popen(SLEEPER) as process:
        yield f"process {process.pid}:"
        process.kill()


@contextmanager
def port() -> Generator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"listening port 127.0.0.1:{listener.getsockname()[1]}"


@contextmanager
def thread() -> Generator[str]:
    done = threading.Event()
    running = threading.Thread(target=done.wait, name="left-behind")
    running.start()
    yield "thread left-behind"
    done.set()
    running.join()


@contextmanager
def descriptor() -> Generator[str]:
    reader, writer = os.pipe()
    yield f"file descriptor {reader}:"
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize("held", [child, port, thread, descriptor])
def test_what_is_held_is_seen(held: Callable[[], AbstractContextManager[str]]) -> None:
    if held is descriptor and sys.platform != "linux":
        pytest.skip("only Linux says what a descriptor is")
    before = Leftovers.now()
    with held() as told:
        assert any(line.startswith(told) for line in Leftovers.now().since(before))


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


def test_a_process_that_the_tests_begin_ignores_no_signal() -> None:
    """Whatever these tests were begun with; `.ci/in-debian --bare` begins them as nohup does."""
    code = "import signal; print(*(n.name for n in signal.Signals if signal.getsignal(n) is signal.SIG_IGN))"
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, check=True, text=True)
    assert set(done.stdout.split()) <= {"SIGPIPE", "SIGXFSZ"}, "these two Python ignores itself"
