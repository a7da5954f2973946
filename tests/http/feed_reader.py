"""A reader of ``GET /models/sse``, and the few requests that its tests make."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import trio
from http_harness import Appliance, Client

Event = dict[str, object]


class Feed:
    """The records of one connection to ``/models/sse``."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.comments = 0

    async def next(self) -> Event:
        """The next event; comments are counted."""
        while (record := await self._client.record()).startswith(b":"):
            self.comments += 1
        assert record.startswith(b"data: {")
        assert b"\n" not in record
        return json.loads(record.removeprefix(b"data: "))

    async def until(self, event: str, *, status: str | None = None) -> list[Event]:
        """Events up to the first of this name, with this status where one is given."""
        found: list[Event] = []
        with trio.fail_after(15):
            while True:
                found.append(await self.next())
                if found[-1]["event"] == event and (status is None or status_of(found[-1]) == status):
                    return found


def status_of(event: Event) -> object:
    data = event.get("data")
    return data.get("status") if isinstance(data, dict) else None


def words(events: list[Event]) -> list[tuple[object, object]]:
    """Name and status, repetitions left out."""
    said = [(event["event"], status_of(event)) for event in events]
    return [each for number, each in enumerate(said) if number == 0 or said[number - 1] != each]


@asynccontextmanager
async def feed(server: Appliance, query: str = "") -> AsyncGenerator[Feed]:
    """When this has been entered, the head is here."""
    async with server.events(f"/models/sse{query}") as client:
        yield Feed(client)


async def ok(server: Appliance, method: str, target: str, body: object = None) -> None:
    assert (await server.good(method, target, body)).json == {"success": True}


async def refused(server: Appliance, method: str, target: str, body: object = None) -> tuple[int, str, str]:
    answer = await server.ask(method, target, body)
    assert answer.json["error"]["code"] == answer.status
    return answer.status, answer.error["reason"], answer.error["message"]


async def entries(server: Appliance) -> dict[str, dict[str, object]]:
    listed = await server.ask("GET", "/models")
    return {entry["id"]: entry for entry in listed.json["data"]}
