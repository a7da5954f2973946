"""The installed program as a process, and plain HTTP to it; shares no code with the product."""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sysconfig
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from http.client import HTTPConnection
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import psutil
import pytest
from waiting import wait

T = TypeVar("T")
one_engine = pytest.mark.parametrize("engine", ["any"], indirect=True)
"""For tests of what this program does, which is the same with every engine."""
COMMAND = Path(sysconfig.get_path("scripts")) / ("llama-appliance.exe" if os.name == "nt" else "llama-appliance")
STARTER_QUESTION = "Hello! What can you do?"
START_TIME = 60.0
"""Seconds. It only bounds a failure."""
COMMAND_TIME = 60.0
ANY_PORT = ("--listen", "127.0.0.1:0")
_HOMES: set[Path] = set()
"""Data folders of programs that were started: a home leaves files in memory that outlive it."""


@atexit.register
def _forget_contexts() -> None:
    for home in _HOMES:
        digest = hashlib.sha256(os.fsencode((home / "llama-appliance").absolute())).hexdigest()[:8]
        for folder in Path("/dev/shm").glob(f"llama-appliance-*-{digest}"):
            shutil.rmtree(folder, ignore_errors=True)


def fresh_environment(home: Path) -> dict[str, str]:
    """Like that of a user who has just come: no settings, no models, no caches."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LLAMA_", "HF_", "AIP_"))}
    mark = {name: value for name, value in os.environ.items() if name == "LLAMA_APPLIANCE_TEST_RUN"}
    folders = {name: str(home / name.lower()) for name in ("XDG_DATA_HOME", "XDG_CACHE_HOME", "HF_HOME")}
    _HOMES.add(Path(folders["XDG_DATA_HOME"]))
    folders |= {"HOME": str(home), "USERPROFILE": str(home)}
    folders["WIN_PD_OVERRIDE_LOCAL_APPDATA"] = folders["XDG_DATA_HOME"]
    return {**kept, **mark, **folders, "NO_COLOR": "1", "PYTHONFAULTHANDLER": "1"}


def run_command(
    *argv: str,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    stdin: str | None = None,
    timeout: float = COMMAND_TIME,
    program: Sequence[str | Path] = (COMMAND,),
) -> subprocess.CompletedProcess[str]:
    """Run the installed command to its end, as in a pipe: nothing it writes to is a terminal."""
    return subprocess.run(
        [*program, *argv],
        cwd=cwd,
        env={**fresh_environment(cwd), **(env or {})},
        input=stdin if stdin is not None else "",
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=timeout,
    )


class Server:
    """A running ``serve`` or ``llama-server``. Its standard error goes to a file, so it can print what it likes."""

    def __init__(
        self,
        argv: Sequence[str],
        cwd: Path,
        env: Mapping[str, str] | None = None,
        limited: Callable[[], object] | None = None,
        under: Sequence[str] = (),
        program: Path = COMMAND,
        output: int | None = None,
    ) -> None:
        """``limited`` runs in the new process before it becomes the program, or ``under``, which becomes it then.

        ``output``: the descriptor of a standard output of its own.
        """
        self.cwd = cwd
        self.errors = cwd / f"server-{time.monotonic_ns()}.err"
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [*under, program, *argv],
                cwd=cwd,
                env={**fresh_environment(cwd), **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=errors if output is None else output,
                stderr=errors,
                preexec_fn=limited,
            )
        self.host, self.port = "", 0

    def wait_listening(self) -> Self:
        """Return once the line that tells the address has been printed."""
        match = self.wait_for(lambda: re.search(r"listening on http://(\[[^]]+\]|[^:\s]+):(\d+)", self.told()))
        self.host, self.port = match[1].strip("[]"), int(match[2])
        return self

    def wait_healthy(self) -> None:
        """Return once it says that its model is loaded."""
        self.wait_for(lambda: http(self, "GET", "/health").status == 200)

    def wait_for(self, look: Callable[[], T], *, within: float = START_TIME) -> T:
        """`waiting.wait`, as long as the program runs; a failure shows what it said."""

        def looked() -> T:
            found = look()
            assert found or self.process.poll() is None, f"it ended with {self.process.returncode}:\n{self.told()}"
            return found

        return wait(looked, within=within, told=self.told)

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def told(self) -> str:
        """Everything printed so far."""
        return self.errors.read_text(encoding="utf-8", errors="replace")

    def children(self) -> list[psutil.Process]:
        """All processes below the program that have not ended."""
        found: list[psutil.Process] = []
        for child in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if child.status() != psutil.STATUS_ZOMBIE:
                    found.append(child)
        return found

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, seconds: float) -> int:
        """The exit status; fails when the program takes longer."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still there after {seconds} s:\n{self.told()}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(10)


StartServer = Callable[..., Server]
"""What the fixtures give that start a server: words, and keywords as each of them has them."""


class Answer:
    """A whole HTTP answer."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    def json(self) -> Any:
        return json.loads(self.body)


def http(server: Server, method: str, path: str, body: object = None, *, timeout: float = 60, **headers: str) -> Answer:
    """One request; underscores in header names stand for dashes. A body that is not bytes is sent as JSON."""
    connection = HTTPConnection(server.host, server.port, timeout=timeout)
    try:
        sent = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, sent, {"Content-Type": "application/json", **names})
        response = connection.getresponse()
        return Answer(response.status, dict(response.headers.items()), response.read())
    finally:
        connection.close()


def answer(server: Server, path: str, **body: object) -> Any:
    """What a request is answered that must succeed: keywords are its body."""
    found = http(server, "POST", path, body)
    assert found.status == 200, (found.body, server.told())
    return found.json()


@contextlib.contextmanager
def begun(server: Server, model: str) -> Generator[None]:
    """A stream whose answer has begun; leaving the block closes it."""
    connection = HTTPConnection(server.host, server.port, timeout=60)
    body = {"model": model, "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"User-Agent": "tester/1.0 (scripted)"})
    answer = connection.getresponse()
    assert answer.status == 200
    answer.readline()
    try:
        yield
    finally:
        connection.close()


def engine_argv(server: Server) -> list[str]:
    """The command line of the one model's process."""
    server.wait_healthy()
    return next(found for child in server.children() if "--alias" in (found := child.cmdline()))


def path_after(argv: Sequence[str], flag: str) -> Path:
    """The file that an option of a command line names."""
    return Path(argv[argv.index(flag) + 1])


def dechunk(data: bytes, *, whole: bool = True) -> bytes:
    """Fails when the last chunk is missing: the answer was cut short. Not ``whole``: what there is of it."""
    body = bytearray()
    while True:
        size, found, data = data.partition(b"\r\n")
        if not whole and (not found or len(data) < int(size, 16)):
            return bytes(body + data)
        length = int(size, 16)
        if length == 0:
            return bytes(body)
        assert len(data) > length, "cut within a chunk"
        body += data[:length]
        data = data[length + 2 :]


def wait_gone(processes: Sequence[psutil.Process]) -> None:
    """Until none of these processes runs. A zombie has ended."""
    wait(lambda: [process for process in processes if _runs(process)], lambda left: not left)


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
