"""The processes of one run: started here, measured from outside by /proc, ended here."""

from __future__ import annotations

import http.client
import os
import selectors
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

HOST = "127.0.0.1"
START_TIMEOUT = 60.0
STOP_TIMEOUT = 15.0
POLL = 0.001
TICK = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


Process = subprocess.Popen[bytes]


class Failed(Exception):
    """Something under measurement did not work; the report says so and goes on."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


_PAIRS = iter(range(20000 + os.getpid() * 2 % 8000, 32000, 2))
"""Below the ports that systems give to clients, of which a run has thousands; no pair is given twice."""


def free_pair() -> int:
    """The first of two ports in a row that nobody listens on, for engines that are started later."""
    for port in _PAIRS:
        try:
            with socket.create_server((HOST, port)), socket.create_server((HOST, port + 1)):
                return port
        except OSError:
            continue
    raise Failed("no two ports in a row are free")


@contextmanager
def running(argv: Sequence[str], log: Path) -> Generator[Process]:
    """Run a program in its own session; on the way out it is ended with everything below it.

    It keeps nothing between runs: its folders of the user are beside the log.
    """
    # Settings of somebody's shell must not make it another one: engines, folders, a start without bytecode.
    settings = {key: value for key, value in os.environ.items() if not key.startswith(("LLAMA_", "XDG_", "PYTHON"))}
    settings |= {f"XDG_{kind}_HOME": str(log.parent / "home" / kind) for kind in ("CONFIG", "DATA", "CACHE", "STATE")}
    with log.open("ab") as out:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=settings, start_new_session=True
        )
    try:
        yield process
    finally:
        _end(process)


def _end(process: Process) -> None:
    """Ask, wait, then kill the rest of it and of everything that was below."""
    below = {pid: began for pid, began in _beginnings().items() if pid in tree(process.pid)}
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pid, began in _beginnings().items():
        if below.get(pid) == began:
            os.kill(pid, signal.SIGKILL)


def _beginnings() -> dict[int, str]:
    """When each process began, which tells it from a later one of the same number."""
    return {pid: stat[19] for pid, stat in _all().items() if stat[0] != "Z"}


def _all() -> dict[int, list[str]]:
    """The fields of /proc/PID/stat of each process, from its state on."""
    found: dict[int, list[str]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                found[int(entry.name)] = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it ended meanwhile
    return found


def tree(root: int) -> set[int]:
    """A process and all below it."""
    parents = {pid: int(stat[1]) for pid, stat in _all().items()}
    found = {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def relay_tree(root: int, engine: Path) -> set[int]:
    """The same without the engines."""
    return {pid for pid in tree(root) if not _runs(pid, engine)}


def _runs(pid: int, program: Path) -> bool:
    try:
        return Path(f"/proc/{pid}/exe").samefile(program)
    except OSError:
        return False


class Used(NamedTuple):
    """The use of a relay so far, with its helpers."""

    cpu: float
    """Seconds of user and system time."""
    sleeps: dict[int, int]
    """How often each thread of it went to sleep until something came."""

    def sleeps_since(self, earlier: Used) -> int:
        """The sleeps of the threads that still run. One for each chunk means that each came alone."""
        return sum(count - earlier.sleeps.get(thread, 0) for thread, count in self.sleeps.items())


def used(root: int, engine: Path) -> Used:
    """Helpers that ended are counted, too.

    From each process's own clock (nanoseconds); /proc/PID/stat counts in hundredths of a second.
    """
    cpu, sleeps = 0.0, dict[int, int]()
    for pid in relay_tree(root, engine):
        try:
            cpu += time.clock_gettime(~pid << 3 | 2)  # clock_getcpuclockid(3)
            stat = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
            cpu += (int(stat[13]) + int(stat[14])) / TICK  # of children that were waited for
            for task in Path(f"/proc/{pid}/task").iterdir():
                status = (task / "status").read_text()
                sleeps[int(task.name)] = int(status.rpartition("\nvoluntary_ctxt_switches:")[2].split()[0])
        except OSError:
            continue  # it ended meanwhile; its parent has its time
    return Used(cpu, sleeps)


class Machine(NamedTuple):
    """Seconds of all processors since the start, and of those the seconds in which somebody else worked."""

    total: float
    others: float

    @staticmethod
    def now() -> Machine:
        """Work of this process and of everything below it is not somebody else's; a hypervisor's is."""
        words = Path("/proc/stat").read_text("utf-8").split("\n")[0].split()
        # Idle time is exact; the times of work beside it are samples, which miss short work.
        total, idle = time.monotonic() * (os.cpu_count() or 1), (int(words[4]) + int(words[5])) / TICK
        return Machine(total, total - idle - used(os.getpid(), Path(os.devnull)).cpu)


def memory(root: int, engine: Path) -> float:
    """Resident megabytes of a relay, with its helpers."""
    pages = 0
    for pid in relay_tree(root, engine):
        try:
            pages += int(Path(f"/proc/{pid}/statm").read_text("utf-8").split()[1])
        except OSError:
            continue
    return pages * PAGE / 1e6


def wait_accepting(process: Process, port: int) -> float:
    """Until a connection is accepted; seconds since the call. Failed when it dies or takes too long."""
    began = time.monotonic()
    while time.monotonic() - began < START_TIMEOUT:
        if process.poll() is not None:
            raise Failed(f"{process.args} exited with status {process.returncode}")
        with socket.socket() as probe:
            if probe.connect_ex((HOST, port)) == 0:
                return time.monotonic() - began
        time.sleep(POLL)
    raise Failed(f"{process.args} did not listen within {START_TIMEOUT:g} s")


def get(port: int, path: str, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
    """Status and body of one GET; 0 without an answer."""
    connection = http.client.HTTPConnection(HOST, port, timeout=30)
    try:
        connection.request("GET", path, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    except OSError:
        return 0, b""
    finally:
        connection.close()


@contextmanager
def opened_pages(port: int, count: int) -> Generator[None]:
    """Connections that follow the events which the page follows. A thread reads them, so that none is ever full."""
    over, selector = threading.Event(), selectors.DefaultSelector()

    def read() -> None:
        while not over.is_set():
            for key, _ in selector.select(0.1):
                key.data.recv(1 << 16)

    with ExitStack() as stack:
        for _ in range(count):
            page = stack.enter_context(socket.create_connection((HOST, port), timeout=30))
            page.sendall(f"GET /api/conversations/events HTTP/1.1\r\nHost: {HOST}:{port}\r\n\r\n".encode())
            if not (head := page.recv(1 << 16)).startswith(b"HTTP/1.1 200 "):
                raise Failed(f"the page's events are not answered: {head[:60]!r}")
            selector.register(page, selectors.EVENT_READ, page)
        reader = threading.Thread(target=read)
        reader.start()
        stack.callback(reader.join)
        stack.callback(over.set)
        yield
