"""A user's machine in a folder, and verbs that are run on it: to their end, or killed before one of their changes."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

from command_line import run_here
from program import ANY_PORT, COMMAND, COMMAND_TIME, Server, fresh_environment, http, run_command

KILLED_AT = Path(__file__).with_name("killed_at.py")
NEVER = 1 << 30
"""The number of a change that never comes."""


class Home:
    """Nothing is set up there, and all that the program keeps lies below it."""

    front: Sequence[str] = ()
    """The first words of every verb that is run here."""
    apart = False
    """Verbs are processes: they run beside each other."""

    def __init__(self, folder: Path, env: Mapping[str, str] | None = None, program: Path = COMMAND) -> None:
        self.folder = folder
        self.program = program
        self.env = dict(env or {})
        folder.mkdir(parents=True, exist_ok=True)

    def run(
        self,
        *words: str | Path,
        under: Sequence[str | Path] | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = 2 * COMMAND_TIME,
    ) -> CompletedProcess[str]:
        """Run a verb to its end, in this process if that is the installed program, and nothing sets them apart.

        ``under`` is a command that becomes the program, or stands for it.
        """
        argv = (*self.front, *map(str, words))
        if under is None and self.program == COMMAND and not self.apart:
            return run_here(argv, self.folder, {**fresh_environment(self.folder), **self.env, **(env or {})})
        program = [self.program] if under is None else under
        return run_command(*argv, cwd=self.folder, env={**self.env, **(env or {})}, timeout=timeout, program=program)

    def good(self, *words: str | Path, timeout: float = 2 * COMMAND_TIME) -> str:
        """What a verb prints that must succeed."""
        done = self.run(*words, timeout=timeout)
        assert done.returncode == 0, (done.stdout, done.stderr)
        return done.stdout + done.stderr

    def bad(self, *words: str | Path, status: int = 2) -> str:
        """The error of a verb that must fail."""
        done = self.run(*words)
        assert done.returncode == status, (done.returncode, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        return done.stderr

    def json(self, *words: str | Path) -> Any:
        """What a verb tells as JSON."""
        done = self.run(*words, "--json")
        assert done.returncode == 0, (done.stdout, done.stderr)
        return json.loads(done.stdout)

    def serve(self, *words: str, env: Mapping[str, str] | None = None) -> Server:
        """``serve`` at a free port, to be ended by who starts it. ``env`` replaces the home's own."""
        return Server(["serve", *ANY_PORT, *words], self.folder, self.env if env is None else env, program=self.program)

    def check_serves(self) -> list[str]:
        """A server starts here, and a model answers. The words of its processes' commands."""
        with self.serve("--offline").wait_listening() as server:
            body = {"model": "starter", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
            answer = http(server, "POST", "/v1/chat/completions", body)
            assert answer.status == 200, (answer.body, server.told())
            return [word for child in server.children() for word in child.cmdline()]

    def run_until(self, change: int, watched: Path, *words: str | Path) -> CompletedProcess[str]:
        """Run a verb that is killed right before its change number ``change`` of a folder."""
        return self.run(*words, under=(sys.executable, KILLED_AT, str(change), watched))


def changes_of(watched: Path) -> list[tuple[int, str, str]]:
    """Number, kind and path of every change of a folder by the last `Home.run_until`."""
    lines = (line.split(" ", 2) for line in Path(f"{watched}.log").read_text("utf-8").splitlines())
    return [(int(number), event, path) for number, event, path in lines]
