"""The two ends of every measurement, in C: the engine and the clients. Compiled on demand into a cache folder."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from processes import Failed

HERE = Path(__file__).resolve().parent
LOAD_TIMEOUT = 180.0
Figures = dict[str, float]


class Ends(NamedTuple):
    """The programs, and the folder of this run."""

    engine: Path
    load: Path
    folder: Path


def compiled(folder: Path) -> Ends:
    """Both programs. Failed without Linux, or a C compiler."""
    if sys.platform != "linux":
        raise Failed("the bench needs Linux: it counts by /proc and waits by epoll")
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        raise Failed("the bench needs a C compiler (cc, gcc or clang), and there is none: install gcc")
    sources = [HERE / name for name in ("http.h", "engine.c", "load.c")]
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "llama-appliance" / "bench" / digest
    cache.mkdir(parents=True, exist_ok=True)
    for name in ("engine", "load"):
        if not (cache / name).is_file():
            made = cache / f"{name}.{os.getpid()}"
            done = subprocess.run(
                [compiler, "-O2", "-o", str(made), str(HERE / f"{name}.c")], capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise Failed(f"{name}.c does not compile: {done.stderr.strip()}")
            made.replace(cache / name)
    return Ends(cache / "engine", cache / "load", folder)


def run_load(ends: Ends, kind: str, port: int, *options: object, speaking: Callable[[], None] | None = None) -> Figures:
    """The clients' figures. ``speaking`` is called once all streams have said something.

    Failed where a request failed or a record is missing or out of order.
    """
    argv = [str(ends.load), kind, "--port", str(port), *map(str, options)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as clients:
        assert clients.stdout
        assert clients.stderr
        try:
            for line in clients.stdout:
                if line != "speaking\n":
                    return _judged(json.loads(line))
                if speaking:
                    speaking()
            raise Failed(f"the clients failed: {clients.stderr.read().strip()}")
        finally:
            try:
                clients.wait(LOAD_TIMEOUT)
            except subprocess.TimeoutExpired:
                clients.kill()


def _judged(found: dict[str, float | str]) -> Figures:
    why = found.pop("first_error")
    if found["errors"] or found.get("lost") or found.get("disordered"):
        counts = ", ".join(f"{found[name]} {name}" for name in ("errors", "lost", "disordered") if found.get(name))
        raise Failed(f"{counts}: {why or 'no error'}")
    return {name: float(value) for name, value in found.items()}


def told(kind: str, *options: object) -> str:
    """The command line of the clients, as the report prints it."""
    return shlex.join(["load", kind, *map(str, options)])
