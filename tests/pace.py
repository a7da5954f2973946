"""What a command costs, in the time of a fixed piece of Python here and now: that bound holds on a slow machine too."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from subprocess import run

FIXED = "import argparse, asyncio, decimal, email.message, http.client, json, ssl, typing"


def multiples_of_fixed_work(command: Callable[[], object], tries: int = 10) -> float:
    """The processor's time that ``command`` and its children take, the least of some ``tries``."""
    costs: list[Sequence[float]] = []
    for _ in range(tries):
        costs.append((_cost(command), _cost(lambda: run([sys.executable, "-I", "-c", FIXED], check=True))))
    return min(cost for cost, _ in costs) / min(fixed for _, fixed in costs)


def _cost(command: Callable[[], object]) -> float:
    began = os.times()
    command()
    now = os.times()
    return now.children_user + now.children_system - began.children_user - began.children_system
