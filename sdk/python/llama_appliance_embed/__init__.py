"""Start llama-appliance as a part of this application: one function gives the address, the key, and a way to stop it.

    with start(folder, home=data) as server:
        ask(server.url, server.key)

The program listens on a free port of 127.0.0.1 and wants a key that is made for this start. It ends with this process,
however that ends.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Thread
from typing import Union

StrPath = Union[str, os.PathLike[str]]
PROGRAM = "llama-appliance.exe" if sys.platform == "win32" else "llama-appliance"
KEY_VARIABLE = "LLAMA_APPLIANCE_EMBED_KEY"
NO_WINDOW = subprocess.CREATE_NO_WINDOW if sys.platform == "win32" else 0
"""An application with windows of its own gets no console window beside them."""
LAST_LINES = 20
LOOK_EVERY = 0.02
READ_TIME = 2.0
"""Seconds for the last lines of a program that has ended."""
STOP_TIME = 20.0
"""Seconds from the request to stop until the kill: the program's own limit is 15, with its default --grace of 10."""


class StartError(Exception):
    """The program could not be started, or did not become ready. The text has its last lines."""


class EmbeddedServer:
    """A program that was started and is ready. Leaving its block stops it."""

    def __init__(self, process: subprocess.Popen[str], ready: Path, url: str, key: str) -> None:
        self.url = url
        """The address, without a path: ``http://127.0.0.1:PORT``."""
        self.key = key
        """Requests carry it: ``Authorization: Bearer KEY``."""
        self._process = process
        self._ready = ready

    def stop(self, timeout: float = STOP_TIME) -> int:
        """Ask the program to end, kill it after ``timeout`` seconds, and return its exit status. Idempotent.

        Windows has no such request: the program, and every engine with it, ends at once.
        """
        return _end(self._process, self._ready, timeout)

    def __enter__(self) -> EmbeddedServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def start(
    folder_or_program: StrPath,
    *,
    home: StrPath | None = None,
    options: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    timeout: float = 60.0,
    on_log: Callable[[str], object] | None = None,
) -> EmbeddedServer:
    """Start the program and wait until it listens. Raises StartError.

    ``folder_or_program``: the payload folder in the application, or the program itself.
    ``home``: the folder for everything that the program writes; without one, the user's own folders.
    ``options``: more options of ``llama-appliance serve``.
    ``env``: its environment; by default this process's own.
    ``on_log``: called with each line that it logs, from another thread.
    """
    program = Path(folder_or_program)
    program = (program / PROGRAM).absolute() if program.is_dir() else program
    key = secrets.token_urlsafe()
    ready = Path(tempfile.gettempdir(), f"llama-appliance-{secrets.token_hex(16)}.json")
    command = [str(program), "serve", "--port", "0", "--no-stores", "--ready-file", str(ready)]
    command += ["--parent-pid", str(os.getpid()), "--api-key-env", KEY_VARIABLE]
    command += ["--home", os.fspath(home)] if home is not None else []
    try:
        process = subprocess.Popen(
            [*command, *options],
            env={**(os.environ if env is None else env), KEY_VARIABLE: key},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            creationflags=NO_WINDOW,
        )
    except OSError as cause:
        raise StartError(
            f"{program} cannot be started: {cause.strerror}; give the folder llama-appliance, or the program in it"
        ) from cause
    lines: deque[str] = deque(maxlen=LAST_LINES)
    reader = Thread(target=_read, args=(process, lines, on_log), daemon=True)
    reader.start()
    try:
        _wait_ready(process, ready, timeout)
        url = json.loads(ready.read_bytes())["url"]
    except BaseException as cause:
        _end(process, ready, STOP_TIME)
        if isinstance(cause, StartError):
            reader.join(READ_TIME)
            raise StartError("\n".join([str(cause), *lines])) from None
        raise
    return EmbeddedServer(process, ready, url, key)


def _read(process: subprocess.Popen[str], lines: deque[str], on_log: Callable[[str], object] | None) -> None:
    """Read all that the program logs: a full pipe would stop it."""
    assert process.stderr is not None
    with process.stderr:
        for line in process.stderr:
            lines.append(line.rstrip())
            if on_log is not None:
                on_log(line.rstrip())


def _wait_ready(process: subprocess.Popen[str], ready: Path, timeout: float) -> None:
    """Raises StartError. The file appears whole or not at all."""
    deadline = time.monotonic() + timeout
    while not ready.exists():
        if process.poll() is not None:
            raise StartError(f"llama-appliance ended with status {process.returncode} before it was ready:")
        if time.monotonic() > deadline:
            raise StartError(f"llama-appliance was not ready after {timeout:g} s; give a longer timeout. It said:")
        time.sleep(LOOK_EVERY)


def _end(process: subprocess.Popen[str], ready: Path, timeout: float) -> int:
    process.terminate()
    try:
        process.wait(timeout)
    except subprocess.TimeoutExpired:
        process.kill()
    status = process.wait()
    ready.unlink(missing_ok=True)  # a program that was killed leaves it
    return status
