"""A reader of ``GET /api/events``, as the page is one."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import trio
from http_harness import Appliance, Client

FIRST = ["logData", "logData", "modelStatus", "uiConfig", "profileChanged", "inflight"]


class Feed:
    """Messages of one connection."""

    def __init__(self, client: Client) -> None:
        self.record = client.record

    async def message(self) -> tuple[str, object]:
        """The next message's type and data; comments are passed over."""
        while (record := await self.record()) == b": ping":
            pass
        assert record.startswith(b"event:message\ndata:")
        message = json.loads(record.removeprefix(b"event:message\ndata:"))
        assert sorted(message) == ["data", "type"]
        return message["type"], json.loads(message["data"])

    async def first(self) -> dict[str, object]:
        """The messages that every client begins with; of the logs the last one."""
        found = [await self.message() for _ in FIRST]
        assert [kind for kind, _ in found] == FIRST
        assert [data["source"] for kind, data in found[:2]] == ["proxy", "upstream"]
        return dict(found)

    async def until(self, wanted: str):
        """The next message of one type."""
        with trio.fail_after(10):
            while True:
                kind, data = await self.message()
                if kind == wanted:
                    return data


@asynccontextmanager
async def feed(server: Appliance) -> AsyncGenerator[Feed]:
    async with server.events("/api/events") as client:
        yield Feed(client)
