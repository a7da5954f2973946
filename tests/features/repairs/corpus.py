"""Requests of four dialects to models with every template: to their engines alone, and through the program."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

from clients import PATHS, message_in, sent
from dialect_requests import CHATS, ONLY, REFUSED
from http_harness import Appliance, model, open_appliance
from msgspec import Struct, structs
from neutral import DIALECTS, REQUESTS, Json, NotHere
from templates import write_model

from appliance.core.models.gguf import read_gguf
from appliance.core.models.model import Model
from appliance.core.settings import FleetSettings
from appliance.engines import embedded
from appliance.upstream.client import HttpCall

OWN_FAULT = "The model produced output"
"""An engine's words about a model whose words are random: its fault, whatever was asked."""
NAMES = {"chat": "chat", "messages": "Messages", "responses": "Responses", "ollama": "Ollama"}


class Outcome(Struct, frozen=True):
    """One request to one model. ``alone`` is the status of the engine without the program, on the same route."""

    alone: int
    status: int
    repaired: str
    message: str


Outcomes = Mapping[str, Mapping[tuple[str, str], Outcome]]
"""By template, then by dialect and request."""


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
    content = path.read_bytes()
    info = read_gguf(lambda offset, size: content[offset : offset + size], len(content))
    return structs.replace(model(path, name), info=info)


def opened(models: Iterable[Model], file: Path, **settings: object):
    """The program with these models on the embedded engine."""
    arguments = ("--ctx-size", "8192", "--parallel", "1", "--threads", "1", "--temp", "0")
    fleet = FleetSettings(stop_timeout=2.0, engine_args=arguments)
    return open_appliance(embedded.command(), file, models=list(models), fleet=fleet, **settings)


async def outcomes_of(server: Appliance, name: str, dialects: Iterable[str]) -> dict[tuple[str, str], Outcome]:
    found: dict[tuple[str, str], Outcome] = {}
    await server.ask("POST", PATHS["chat"], {"model": name, **CHATS["plain"]})
    for dialect in dialects:
        for what, body in bodies(dialect).items():
            asked = {**body, "model": name}
            alone = await status_alone(server, name, asked, PATHS[dialect])
            answer = await server.ask("POST", PATHS[dialect], asked)
            message = message_in(dialect, answer.body) if answer.status != 200 else ""
            repaired = answer.header("x-appliance-repaired") or ""
            found[dialect, what] = Outcome(alone, answer.status, repaired, message)
    return found


async def status_alone(server: Appliance, name: str, body: object, path: str = PATHS["chat"]) -> int:
    address, content = server.fleet.address(name), json.dumps(body).encode()
    async with HttpCall(address, "POST", path, ((b"Content-Type", b"application/json"),), content) as answer:
        await answer.read(1 << 20)
        return answer.status


def check(outcomes: Mapping[tuple[str, str], Outcome]) -> None:
    """Each is answered, or a mistake of the client's that is named, or the engine's own fault; none is worse off."""
    wrong = {what: outcome for what, outcome in outcomes.items() if not _is_right(outcome)}
    assert not wrong
    worse = {what for what, one in outcomes.items() if one.alone == 200 and one.status != 200}
    assert {each for each in worse if each[1] not in (*MAY_NOT, *REFUSED[each[0]])} == set()


MAY_NOT = (
    "tools required",
    "tool named",
    "tool_choice unknown",
    "tool choice required",
    "tool choice look",
    "custom tool wanted",
    "answer: an unknown type",
    "answer: a missing ref",
    "answer: large bounds",
    "document of blocks",
)
"""A call that a model whose template knows no tools would pass over in silence, and what the engine's own Messages and
Responses leave out: the form of an answer, and pictures in documents."""


def _is_right(outcome: Outcome) -> bool:
    named = 400 <= outcome.status < 500 and len(outcome.message) > 10
    return outcome.status == 200 or named or OWN_FAULT in outcome.message


def table(outcomes: Outcomes) -> str:
    """The table of the documentation: of each dialect how many models answer, by the engine alone and here."""
    lines: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for what in dict.fromkeys(what for dialect in DIALECTS for what in bodies(dialect)):
        each = {name: [found[name, what] for found in outcomes.values() if (name, what) in found] for name in DIALECTS}
        if any(one.repaired or (one.alone, one.status) != (200, 200) for some in each.values() for one in some):
            cells = [_cell(found) for found in each.values()]
            repairs = {one.repaired for found in each.values() for one in found}
            names = sorted({name for told in repairs for name in told.split(", ") if name})
            lines[*cells, ", ".join(names)].append(what)
    head = f"| request | {' | '.join(NAMES.values())} | repairs |\n|---|---|---|---|---|---|"
    return "\n".join((head, *(f"| {'; '.join(names)} | {' | '.join(cells)} |" for cells, names in lines.items())))


def _cell(found: list[Outcome]) -> str:
    alone, here = sum(one.alone == 200 for one in found), sum(one.status == 200 for one in found)
    return f"{alone} {here}" if found else ""
