"""Command lines carried out in this process, and what they led to."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from appliance import __main__ as main
from appliance.cli.app import run
from appliance.settings import AppSettings, Later, Program


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
            status = run((*self.first, *map(str, words), *self.last), start)
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
