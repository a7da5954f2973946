"""Every request of `asked_chats` to models with every template: to their engines alone, and through the program."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from asked_chats import REQUESTS
from http_harness import CHAT, Appliance, model, open_appliance
from msgspec import Struct, structs
from templates import write_model

from appliance.core.models.gguf import read_gguf
from appliance.core.models.model import Model
from appliance.core.settings import FleetSettings
from appliance.features import embedded
from appliance.upstream.client import HttpCall

OWN_FAULT = "The model produced output"
"""An engine's words about a model whose words are random: its fault, whatever was asked."""


class Outcome(Struct, frozen=True):
    """One request to one model. ``alone`` is the status of the engine without the program."""

    alone: int
    status: int
    repaired: str
    message: str


Outcomes = Mapping[str, Mapping[str, Outcome]]
"""By template and request."""


def random_model(folder: Path, name: str) -> Model:
    path = write_model(folder, name)
    content = path.read_bytes()
    info = read_gguf(lambda offset, size: content[offset : offset + size], len(content))
    return structs.replace(model(path, name), info=info)


def opened(models: Iterable[Model], file: Path, **settings: object):
    """The program with these models on the embedded engine."""
    fleet = FleetSettings(stop_timeout=2.0, engine_args=("--ctx-size", "4096", "--parallel", "1", "--threads", "1"))
    return open_appliance(embedded.command(), file, models=list(models), fleet=fleet, **settings)


async def outcomes_of(server: Appliance, name: str) -> dict[str, Outcome]:
    found: dict[str, Outcome] = {}
    await server.ask("POST", CHAT, {"model": name, **REQUESTS["plain"]})
    for what, body in REQUESTS.items():
        sent = {"model": name, **body}
        alone = await status_alone(server, name, sent)
        answer = await server.ask("POST", CHAT, sent)
        message = answer.error["message"] if answer.status != 200 else ""
        found[what] = Outcome(alone, answer.status, answer.header("x-appliance-repaired") or "", message)
    return found


async def status_alone(server: Appliance, name: str, body: object) -> int:
    address, content = server.fleet.address(name), json.dumps(body).encode()
    async with HttpCall(address, "POST", CHAT, ((b"Content-Type", b"application/json"),), content) as answer:
        await answer.read(1 << 20)
        return answer.status


def is_right(outcome: Outcome) -> bool:
    """Answered, or a mistake of the client's that is named; or the engine's own fault."""
    named = 400 <= outcome.status < 500 and len(outcome.message) > 10
    return outcome.status == 200 or named or OWN_FAULT in outcome.message


def table(outcomes: Outcomes) -> str:
    """The table of the documentation."""
    lines = ["| request | engine alone | repaired | repairs |", "|---|---|---|---|"]
    for what in REQUESTS:
        each = [outcomes[name][what] for name in outcomes]
        if all(one.alone == 200 and one.status == 200 and not one.repaired for one in each):
            continue
        names = sorted({name for one in each for name in one.repaired.split(", ") if name})
        lines.append(
            f"| {what} | {sum(one.alone == 200 for one in each)} | {sum(one.status == 200 for one in each)} | "
            f"{', '.join(names)} |"
        )
    return "\n".join(lines)
