"""One column of the comparison: a program, and what each test said about it."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
TEST_LIMIT = 180
"""Seconds for one test; the slowest wait for two loads and several made-up delays of two seconds."""
SUITE_LIMIT = 1500
PORTS = range(21_000, 29_000)
"""Below what the system gives to outgoing connections, which could sit on the port when a server starts again."""


@dataclass
class Outcome:
    """What became of one test."""

    test: str
    outcome: str
    seconds: float = 0.0
    reason: str = ""


@dataclass
class Kit:
    """What all columns share."""

    python: Path
    """The interpreter with the suites' packages."""
    source: Path
    """llama.cpp's."""
    hub: Path
    cache: Path


@dataclass
class Column:
    """A program under test, its own copy of the cache, and the folder where it leaves things."""

    name: str
    command: Sequence[str]
    folder: Path
    environment: Mapping[str, str]
    """Beside what every column gets."""

    def prepare(self, cache: Path) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        shutil.copytree(cache, self.folder / "cache", symlinks=True)
        # PYTHONPATH is the suites' own; a server that is written in Python has no use for it.
        script = f'#!/bin/sh\nunset PYTHONPATH PYTHONDONTWRITEBYTECODE\nexec {shlex.join(self.command)} "$@"\n'
        self.wrapper.write_text(script, encoding="utf-8")
        self.wrapper.chmod(0o755)

    @property
    def wrapper(self) -> Path:
        return self.folder / "llama-server"

    def run(self, suite: str, kit: Kit, hub_url: str, more: Sequence[str]) -> list[Outcome]:
        """The outcomes of one file of tests, in their order. A test that never ran is not among them."""
        tests = kit.source / "tools" / "server" / "tests"
        shutil.rmtree(tests / "tmp", ignore_errors=True)
        (tests / "tmp").mkdir()
        outcomes = self.folder / f"{suite}.jsonl"
        outcomes.unlink(missing_ok=True)
        keep = {name: value for name, value in os.environ.items() if not name.startswith(("LLAMA_", "HF_", "AIP_"))}
        env = keep | {
            "PYTHONPATH": f"{HERE}{os.pathsep}{tests}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "LLAMA_SERVER_BIN_PATH": str(self.wrapper),
            "LLAMA_CACHE": str(self.folder / "cache"),
            "LLAMA_ARG_THREADS": "1",
            "MODEL_ENDPOINT": f"{hub_url}/",
            "PORT": str(free_port()),
            "SUITE_OUTCOMES": str(outcomes),
            "SUITE_LIMIT": str(TEST_LIMIT),
            "SUITE_HUB": str(kit.hub),
            "TMPDIR": str(self.folder),
        }
        env |= self.environment
        command = [str(kit.python), "-m", "pytest", "-p", "plugin", "-p", "no:cacheprovider", "-q", "--tb=short"]
        command += ["-m", "not slow"]  # those marked so download real models
        with (self.folder / f"{suite}.log").open("wb") as log:
            process = subprocess.Popen(
                [*command, f"unit/test_{suite}.py", *more],
                cwd=tests,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            try:
                process.wait(SUITE_LIMIT)
            except subprocess.TimeoutExpired:
                print(f"    {suite} was not done after {SUITE_LIMIT} s and was ended", flush=True)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        return read(outcomes)


def read(path: Path) -> list[Outcome]:
    """The last word about each test: what fails before or after it counts, too."""
    found: dict[str, Outcome] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        said = json.loads(line)
        test = said["test"].removeprefix("unit/test_")
        if test in found and said["outcome"] == "passed":
            continue
        found[test] = Outcome(test, said["outcome"], said["seconds"], said["reason"])
    return list(found.values())


def free_port() -> int:
    for step in range(len(PORTS)):
        port = PORTS[(os.getpid() + step) % len(PORTS)]
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError(f"no port between {PORTS[0]} and {PORTS[-1]} is free")


def as_json(columns: Mapping[str, Mapping[str, Sequence[Outcome]]], seconds: Mapping[str, float]) -> str:
    """Everything that was found out, for another program."""
    document = {
        "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "columns": {
            name: {
                "seconds": round(seconds[name], 1),
                "suites": {suite: [asdict(one) for one in outcomes] for suite, outcomes in suites.items()},
            }
            for name, suites in columns.items()
        },
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"
