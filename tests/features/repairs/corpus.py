"""Requests of four dialects to models with every template: to their engines alone, and through the program."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

from chat_templates import write_model
from clients import PATHS, message_in, sent
from dialect_requests import CHATS, ONLY, REFUSED
from http_harness import Appliance, model, open_appliance
from known_models import read_info
from msgspec import Struct, structs
from neutral import DIALECTS, REQUESTS, Json, NotHere

from appliance.core.models.model import Model
from appliance.core.settings import FleetSettings
from appliance.features import embedded
from appliance.upstream.client import HttpCall

OWN_FAULT = "The model produced output"
"""An engine's words about a model whose words are random: its fault, whatever was asked."""
NAMES = {"chat": "chat completions", "messages": "Messages", "responses": "Responses", "ollama": "Ollama's chats"}


class Outcome(Struct, frozen=True):
    """One request to one model. ``alone`` is the status of the engine without the program; 0: it was not asked."""

    alone: int
    status: int
    repaired: str
    message: str


Outcomes = Mapping[str, Mapping[str, Outcome]]
"""By template and request."""


def asked(dialect: str) -> Iterator[tuple[str, Json]]:
    """The requests of a dialect, each as its client's arguments or, of `CHATS`, as its body."""
    for name, request in REQUESTS.items():
        try:
            yield name, DIALECTS[dialect](request)
        except NotHere:
            continue
    yield from ONLY[dialect].items()


@cache
def bodies(dialect: str) -> Mapping[str, Json]:
    """The bodies of a dialect's requests, as its client sends them."""
    return {
        name: arguments if dialect == "chat" and name in CHATS else json.loads(sent(dialect, arguments, "m"))
        for name, arguments in asked(dialect)
    }


def random_model(folder: Path, name: str) -> Model:
    path = write_model(folder, name)
    return structs.replace(model(path, name), info=read_info(path))


def opened(models: Iterable[Model], file: Path, **settings: object):
    """The program with these models on the embedded engine."""
    arguments = ("--ctx-size", "8192", "--parallel", "1", "--threads", "1", "--temp", "0")
    fleet = FleetSettings(stop_timeout=2.0, engine_args=arguments)
    return open_appliance(embedded.command(), file, models=list(models), fleet=fleet, **settings)


async def outcomes_of(server: Appliance, name: str, dialect: str, *, alone: bool) -> dict[str, Outcome]:
    """Ask a model for everything in a dialect; ``alone``: for `CHATS`, its engine as well."""
    found: dict[str, Outcome] = {}
    await server.ask("POST", PATHS["chat"], {"model": name, **CHATS["plain"]})
    for what, body in (CHATS if alone else bodies(dialect)).items():
        asked = {**body, "model": name}
        status = await status_alone(server, name, asked) if alone else 0
        answer = await server.ask("POST", PATHS[dialect], asked)
        message = message_in(dialect, answer.body) if answer.status != 200 else ""
        found[what] = Outcome(status, answer.status, answer.header("x-appliance-repaired") or "", message)
    return found


async def status_alone(server: Appliance, name: str, body: object) -> int:
    address, content = server.fleet.address(name), json.dumps(body).encode()
    async with HttpCall(address, "POST", PATHS["chat"], ((b"Content-Type", b"application/json"),), content) as answer:
        await answer.read(1 << 20)
        return answer.status


def check(outcomes: Mapping[str, Outcome]) -> None:
    """Each is answered, or a mistake of the client's that is named, or the engine's own fault; none is worse off."""
    wrong = {what: outcome for what, outcome in outcomes.items() if not _is_right(outcome)}
    assert not wrong
    worse = [what for what, one in outcomes.items() if one.alone == 200 and one.status != 200]
    assert set(worse) <= {"tools required", "tool named", "tool_choice unknown"}


def _is_right(outcome: Outcome) -> bool:
    named = 400 <= outcome.status < 500 and len(outcome.message) > 10
    return outcome.status == 200 or named or OWN_FAULT in outcome.message


def table(outcomes: Outcomes) -> str:
    """The table of the documentation."""
    lines = ["| request | engine alone | repaired | repairs |", "|---|---|---|---|"]
    for what in CHATS:
        each = [outcomes[name][what] for name in outcomes]
        if all(one.alone == 200 and one.status == 200 and not one.repaired for one in each):
            continue
        names = sorted({name for one in each for name in one.repaired.split(", ") if name})
        lines.append(
            f"| {what} | {sum(one.alone == 200 for one in each)} | {sum(one.status == 200 for one in each)} | "
            f"{', '.join(names)} |"
        )
    return "\n".join(lines)


def row_of_dialects(template: str, found: Mapping[str, Mapping[str, Outcome]]) -> str:
    """The row of a template in the table of the documentation: by dialect, requests that are answered."""
    cells = [[one for one in found[dialect].values() if one.status == 200] for dialect in NAMES]
    told = [f"{len(answered)} ({sum(bool(one.repaired) for one in answered)})" for answered in cells]
    return f"| {template} | {' | '.join(told)} |"


def table_of_dialects() -> str:
    """The table of the documentation about the requests of each dialect."""
    lines = ["| dialect | requests | of these refused, in words |", "|---|---|---|"]
    for dialect, name in NAMES.items():
        lines.append(f"| {name} | {len(bodies(dialect))} | {', '.join(sorted(REFUSED[dialect])) or 'none'} |")
    return "\n".join(lines)
