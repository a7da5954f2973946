"""Decisions of a large installation, built once to be timed: by `bootstrap.py bench`, and as guards in tests/core."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from itertools import count
from time import thread_time
from typing import NamedTuple

from appliance.core.bodies.filters import Edits, compile_edits
from appliance.core.config.load import SourceFile, load
from appliance.core.config.matrix import Matrix
from appliance.core.config.types import Config, Filters, Group, MatrixConfig
from appliance.core.scheduling.effects import Terms
from appliance.core.scheduling.policy import FleetLimits, FreePolicy, GroupPolicy, MatrixPolicy, Policy
from appliance.core.scheduling.schedule import Schedule

MODELS = [f"model-{number}" for number in range(200)]
WANTED = "model-3"
TERMS = Terms(memory={"ram": 1 << 30})


class Timed(NamedTuple):
    """Microseconds of one call, of this thread's processor: other work of the machine does not count."""

    median: float
    p99: float


def timed(call: Callable[[], object], rounds: int = 300, calls: int = 1) -> Timed:
    """Each round is the mean of some calls; for what takes less than the clock can tell."""
    times: list[float] = []
    for _ in range(min(rounds, 5)):
        call()
    for _ in range(rounds):
        began = thread_time()
        for _ in range(calls):
            call()
        times.append((thread_time() - began) / calls * 1e6)
    times.sort()
    return Timed(times[rounds // 2], times[min(rounds - 1, rounds * 99 // 100)])


# ---- who runs --------------------------------------------------------------------------------------------------------


def groups() -> Policy:
    """Ten groups of ten of every kind, and a hundred models in none."""
    named = {
        f"group-{number}": Group(
            swap=number % 2 == 0, exclusive=number % 3 < 2, members=MODELS[number * 10 : number * 10 + 10]
        )
        for number in range(10)
    }
    return GroupPolicy(named)


def products() -> Policy:
    """Sets that share no model, and one over all: 50 x 50 x 50 x 50 alternatives."""
    quarters = [MODELS[start : start + 50] for start in range(0, 200, 50)]
    tens = [MODELS[start : start + 10] for start in range(0, 200, 10)]
    sets = {f"ten-{number}": _product([ten[:4], ten[4:7], ten[7:]]) for number, ten in enumerate(tens)}
    return MatrixPolicy(Matrix(MatrixConfig(sets=sets | {"all": _product(quarters)}), MODELS))


def overlapping() -> Policy:
    """Thirty sets of 40 x 40 x 40 alternatives that share models at random; all of them hold the wanted one."""
    chance = random.Random(1)
    sets = {
        f"set-{number}": _product([[WANTED, *chance.sample(MODELS, 40)], *(chance.sample(MODELS, 40) for _ in "ab")])
        for number in range(30)
    }
    return MatrixPolicy(Matrix(MatrixConfig(sets=sets), MODELS))


def _product(choices: Sequence[Sequence[str]]) -> str:
    return " & ".join(f"({' | '.join(choice)})" for choice in choices)


def running(number: int) -> list[str]:
    """So many models, the wanted one not among them, always the same."""
    return random.Random(2).sample([model for model in MODELS if model != WANTED], number)


def busy_schedule(policy: Policy, loaded: int, waiting: int) -> tuple[Schedule, Callable[[], None]]:
    """All loaded models are in use, so others wait; and one request more to a loaded one, from its start to its end."""
    tickets = count()
    schedule = Schedule(FleetLimits(), FreePolicy())
    there = running(loaded)
    for model in there:
        schedule.request(next(tickets), model, TERMS)
        schedule.ready(model)
    schedule.adopt(FleetLimits(), policy)
    for model in [model for model in MODELS if model not in there][:waiting]:
        schedule.request(next(tickets), model, TERMS)

    def request() -> None:
        ticket = next(tickets)
        schedule.request(ticket, there[0])
        schedule.release(ticket)

    return schedule, request


# ---- requests and configurations -------------------------------------------------------------------------------------


def chat_edits() -> tuple[Edits, bytes]:
    """Three parameters stripped, three set, the model renamed; and a chat request of 2 KiB."""
    filters = Filters(
        strip_params="temperature, top_p, seed",
        set_params={"max_tokens": 256, "cache_prompt": True, "chat_template_kwargs.enable_thinking": False},
    )
    request: dict[str, object] = {
        "model": "fast",
        "messages": [
            {"role": "system", "content": "You are a helpful assistant. " * 10},
            {"role": "user", "content": "What do llamas hum about? " * 58},
        ],
        "temperature": 0.7,
        "top_p": 0.9,
        "seed": 1,
        "max_tokens": 512,
        "stream": True,
        "stop": ["\n\n"],
        "user": "somebody",
    }
    return compile_edits(filters, "the-real-name"), json.dumps(request).encode()


def configuration_text(models: int, server: str = "llama-server --port ${PORT} --threads 1 -m model.gguf") -> str:
    """A file of so many models, each with macros, aliases, a time to live, and filters."""
    lines = [f"macros:\n  server: {json.dumps(server)}\nmodels:\n"]
    for number in range(models):
        lines.append(
            f"  model-{number}:\n"
            "    cmd: ${server} -c 4096\n"
            f"    aliases: [alias-{number}, other-{number}]\n"
            "    ttl: 300\n"
            "    filters:\n"
            "      stripParams: temperature, top_p\n"
            "      setParams: {cache_prompt: true}\n"
        )
    return "".join(lines)


def configuration(text: str) -> Config:
    return load([SourceFile("config.yaml", text)], {}).require()
