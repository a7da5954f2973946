"""A bound for the cost of a command that holds on a slow machine: a multiple of fixed work, done at the same time."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from subprocess import CompletedProcess, run

IMPORTS = "import argparse, asyncio, decimal, email.message, http.client, json, ssl, typing"
"""The fixed work: a new Python imports these."""
TRIES = 10


def multiples_of_fixed_work(command: Callable[[], CompletedProcess[str]]) -> float:
    """Return the processor's time of a command in that of the fixed work, each the least of some tries.

    Other work on the machine can only add to either. Fails where the command does.
    """
    costs = [(_seconds(command), seconds_of_fixed_work()) for _ in range(TRIES)]
    commands, works = zip(*costs, strict=True)
    return min(commands) / min(works)


def seconds_of_fixed_work() -> float:
    """Do it once; return the processor's time."""
    return _seconds(lambda: run([sys.executable, "-I", "-c", IMPORTS], text=True, check=False))


def _seconds(command: Callable[[], CompletedProcess[str]]) -> float:
    began = os.times()
    done = command()
    now = os.times()
    assert done.returncode == 0, done.stderr
    return now.children_user + now.children_system - began.children_user - began.children_system
