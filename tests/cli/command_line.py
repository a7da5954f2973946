"""Command lines carried out in this process, and what they led to."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import pytest
from msgspec import Struct
from whole_config import WHOLE

from appliance import __main__ as main
from appliance.cli.app import run
from appliance.feature import all_verbs, examiners_of
from appliance.features import FEATURES
from appliance.settings import AppSettings, Later, Program


def run_here(argv: Sequence[str], cwd: Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a verb in this process, with all of its environment given; not for `serve`, and not beside other threads."""
    with (
        pytest.MonkeyPatch.context() as patched,
        TemporaryFile("w+", encoding="utf-8") as out,
        TemporaryFile("w+", encoding="utf-8") as err,
    ):
        for name in os.environ.keys() - env.keys():
            patched.delenv(name)
        for name, value in env.items():
            patched.setenv(name, value)
        patched.chdir(cwd)
        patched.setattr(sys, "stdin", io.StringIO())
        with redirect_stdout(out), redirect_stderr(err):
            status = run(argv, main.start, all_verbs(FEATURES), partial(examiners_of, FEATURES), lambda: WHOLE)
        told = [(file.seek(0), file.read())[1] for file in (out, err)]
    return subprocess.CompletedProcess(argv, status, *told)


class Outcome(Struct, frozen=True, kw_only=True):
    """What a command line led to. ``program`` is what would have been started."""

    status: int
    out: str
    err: str
    program: Program | None


class Command:
    """Carries out command lines in this process; a server that one would start is recorded, not started.

    ``first`` and ``last`` are words of every line.
    """

    def __init__(self, capfd: pytest.CaptureFixture[str], first: tuple[str, ...] = (), last: tuple[str, ...] = ()):
        self.capfd = capfd
        self.first, self.last = first, last

    def at(self, url: str) -> Command:
        """The same for the verbs that ask a server."""
        return Command(self.capfd, self.first, ("--url", url))

    def __call__(self, *words: str | Path, stdin: str = "") -> Outcome:
        started: list[Program] = []

        def start(program: Program) -> int:
            if not isinstance(program, AppSettings | Later):
                return main.start(program)
            started.append(program)
            return 0

        self.capfd.readouterr()
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(sys, "stdin", io.StringIO(stdin))
            status = run(
                (*self.first, *map(str, words), *self.last),
                start,
                all_verbs(FEATURES),
                partial(examiners_of, FEATURES),
                lambda: WHOLE,
            )
        out, err = self.capfd.readouterr()
        return Outcome(status=status, out=out, err=err, program=started[0] if started else None)

    def good(self, *words: str | Path) -> str:
        """What a verb prints that must succeed: its answer, and what it says beside."""
        outcome = self(*words)
        assert outcome.status == 0, outcome
        return outcome.out + outcome.err

    def bad(self, *words: str | Path, status: int = 2) -> str:
        """The error of a verb that must fail."""
        outcome = self(*words)
        assert outcome.status == status, outcome
        assert "Traceback" not in outcome.err
        return outcome.err

    def json(self, *words: str | Path) -> Any:
        """What a verb that must succeed tells as JSON."""
        outcome = self(*words, "--json")
        assert outcome.status == 0, outcome
        return json.loads(outcome.out)

    def rows(self, *words: str | Path) -> list[list[str]]:
        """The words of each line of the tables that it prints."""
        outcome = self(*words)
        assert outcome.status == 0, outcome
        return [line.split() for line in outcome.out.splitlines()]


def settings_of(command: Command, *argv: str) -> AppSettings:
    """The server that this command line would start."""
    outcome = command(*argv)
    assert isinstance(outcome.program, AppSettings), outcome.err
    return outcome.program
