"""A build is tried before it is kept, and whenever it is handed out: it answers one prompt with the starter model.

ggml takes the best of a build's CPU libraries by what the processor announces. Not all of that need work: the system or
a hypervisor may not allow it, or the compiler got it wrong. llama-server then dies of an illegal instruction. Such a
library leaves the build, and ggml takes the next one.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from layout import EXECUTABLE, leave_out

from bootstrap import SetupError, say

STARTER = Path(__file__).resolve().parents[1] / "appliance" / "catalog" / "starter"
SECONDS = 30
ILLEGAL = (-signal.SIGILL, 0xC000001D)
"""Exit statuses of a process that met an illegal instruction; the second one is Windows'."""
CPU_LIBRARY = re.compile(r"loaded CPU backend from .*?([^/\\\r\n]+)\r?$", re.MULTILINE)
PORT = re.compile(r"listening on http://127\.0\.0\.1:(\d+)")
PROMPT = {"prompt": "Once upon a time there was " * 16, "n_predict": 4}
"""Long enough for the kernels of whole blocks; a word or two takes others."""


class Ended(NamedTuple):
    """A trial that found no answer. Without a status time was up."""

    status: int | None
    log: str


def try_out(folder: Path, name: str) -> None:
    """Take out of the build at ``folder`` what it dies of. Raises SetupError if that is no CPU library of its own.

    Another failure is said and changes nothing: a driver that crashes, or a machine that is too busy, is not a fault of
    the build.
    """
    models = sorted(STARTER.glob("*.gguf"))
    while ended := _start(folder, models[0]):
        if ended.status not in ILLEGAL:
            last = ended.log.strip().rpartition("\n")[2]
            why = f"no answer in {SECONDS} s" if ended.status is None else f"exit status {ended.status}"
            say(f"{name} did not answer a prompt of the starter model ({why}): {last}")
            return
        library = illegal_library(ended.log)
        if not (library and (folder / library).is_file()):
            raise SetupError(
                f"{name} dies of an illegal instruction (SIGILL) on this machine, and not in a CPU library"
            )
        say(f"{library} is taken out of {name}: with it llama-server dies of an illegal instruction (SIGILL) here")
        leave_out(folder, library)


def illegal_library(log: str) -> str | None:
    """The file name of the CPU library that a llama-server with this log had loaded; None if it had loaded none."""
    found = CPU_LIBRARY.findall(log)
    return found[-1] if found else None


def _start(folder: Path, model: Path) -> Ended | None:
    """None: it answered. No GPU is used, and no setting of the user's own llama-server counts."""
    command = [str(folder / EXECUTABLE), "--model", str(model), "--host", "127.0.0.1", "--port", "0"]
    command += ["--threads", "1", "--device", "none", "--ctx-size", "512", "--parallel", "1", "--verbosity", "4"]
    env = {key: value for key, value in os.environ.items() if not key.startswith("LLAMA_")}
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, "log")
        with (
            path.open("wb") as log,
            subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env) as process,
        ):
            try:
                return _wait(process, path)
            finally:
                process.kill()


def _wait(process: subprocess.Popen[bytes], path: Path) -> Ended | None:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        status = process.poll()  # before the log is read, which is whole then
        log = path.read_text(encoding="utf-8", errors="replace")
        if status is not None:
            return Ended(status, log)
        port = PORT.search(log)  # said once the model is loaded
        if port and _answers(int(port[1]), deadline - time.monotonic()):
            return None
        time.sleep(0.02)
    return Ended(None, path.read_text(encoding="utf-8", errors="replace"))


def _answers(port: int, seconds: float) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=max(seconds, 0.1))
    try:
        connection.request("POST", "/completion", json.dumps(PROMPT), {"Content-Type": "application/json"})
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
