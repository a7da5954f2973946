"""Runs by HTTP: asked for, waited for, and the tools of the tests."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

import trio
from http_harness import Appliance
from msgspec import Raw
from waiting import until

from appliance.core.bodies.sse import Decoder
from appliance.core.tools.box import ToolContext, ToolOutcome, ToolProblem, ToolSpec
from appliance.features.runs.owner import Agents
from appliance.features.tools.box import OpenToolbox


class Outcome(NamedTuple):
    """What a command line led to."""

    status: int
    out: str
    err: str


Verb = Callable[..., Awaitable[Outcome]]  # carries out a verb against a server
OBJECT = Raw(b'{"type":"object","properties":{"text":{"type":"string"}}}')
PLACE = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "At a place.", "parameters": PLACE}}
STALLS = [{"text": "so far", "stall": True}]
ALARM = {"type": "function", "function": {"name": "alarm", "description": "Wake somebody."}}


def asked(
    prompt: str = "hi", *, script: Sequence[object] = (), model: str = "alpha", **more: object
) -> dict[str, object]:
    """The body of a run; ``fake`` is misbehaviour of the engine, ``script`` what it says."""
    fake = dict(more.pop("fake", {}))  # pyright: ignore[reportCallIssue,reportArgumentType]
    if script:
        fake["script"] = json.dumps(script)
    params = {**dict(more.pop("params", {})), **({"fake": fake} if fake else {})}  # pyright: ignore[reportCallIssue,reportArgumentType]
    return {"model": model, "user_prompt": prompt, "params": params, **more}


def owner_of(server: Appliance) -> Agents:
    """The owner of the runs, for when the server does not answer any more."""
    owners = (getattr(parts.wait_ended, "__self__", None) for parts in server.opened.parts)
    return next(owner for owner in owners if isinstance(owner, Agents))


async def begin(server: Appliance, body: dict[str, object]) -> str:
    answer = await server.ask("POST", "/api/runs", body)
    assert answer.status == 202, answer.body
    assert answer.json["state"] == "running"
    return answer.json["id"]


async def result(server: Appliance, run_id: str) -> dict[str, object]:
    """What came of it, waited for by its events."""
    await server.good("GET", f"/api/runs/{run_id}/events", patience=30)
    return (await server.good("GET", f"/api/runs/{run_id}/result")).json


async def run(server: Appliance, body: dict[str, object]) -> dict[str, object]:
    return await result(server, await begin(server, body))


async def show(server: Appliance, run_id: str) -> dict[str, object]:
    return (await server.good("GET", f"/api/runs/{run_id}")).json


async def worker(server: Appliance) -> dict[str, object]:
    """The one model that has had a run."""
    [found] = (await server.good("GET", "/api/workers")).json["data"]
    return found


async def until_state(server: Appliance, run_id: str, state: str) -> dict[str, object]:
    return await until(lambda: show(server, run_id), lambda found: found["state"] == state)


async def begun(server: Appliance, body: dict[str, object]) -> str:
    """Begin a run, and wait until its model has said something."""
    run_id = await begin(server, body)
    await until(lambda: show(server, run_id), lambda found: found["chars_received"])
    return run_id


def told(events: bytes) -> list[tuple[str | None, dict[str, object]]]:
    return [(event.name, json.loads(event.data)) for event in Decoder().feed(events)]


class Tools:
    """A source of tools that behave, and of tools that do not."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, object]] = []
        self.under_way = 0
        self.most = 0

    def specs(self) -> Sequence[ToolSpec]:
        names = ("echo", "hang", "break", "refuse", "missing", "slow")
        return [ToolSpec(name=n, display_name=n, description=f"It may {n}.", parameters=OBJECT) for n in names]

    async def call(self, name: str, arguments: bytes, context: ToolContext) -> ToolOutcome:
        self.calls.append((name, json.loads(arguments)))
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            return await self._do(name, arguments)
        finally:
            self.under_way -= 1

    async def _do(self, name: str, arguments: bytes) -> ToolOutcome:
        match name:
            case "hang":
                await trio.sleep_forever()
            case "break":
                raise ZeroDivisionError("a bug of the tool")
            case "refuse":
                raise ToolProblem(name, "its process could not be started")
            case "missing":
                return ToolOutcome(body=b"{}", text="nothing found", error="nothing found")
            case "slow":
                await trio.sleep(0.3)  # so that all of a turn begin before one ends
        return ToolOutcome(body=b"{}", text=f"{name} got {arguments.decode()}")


def box(tools: Tools | None = None) -> OpenToolbox:
    return OpenToolbox([tools or Tools()])
