"""An answer in pieces from somebody who may be silent for long: the client is told, and never holds the work up."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import trio

from appliance.core.bodies.sse import PING, Dialect
from appliance.http.way.handover import Reply
from appliance.http.way.pings import EVENT_STREAM, UNBUFFERED
from appliance.http.way.relay import error_in
from appliance.http.way.telling import told_meanwhile
from appliance.traffic.record import aside
from appliance.traffic.request import Headers, Sink


class Sender:
    """Writes what it is given into the client's answer, and comments while it is given nothing. See `sending`."""

    def __init__(self, sink: Sink, ping_after: float) -> None:
        self.headers: Headers = (EVENT_STREAM, *UNBUFFERED)
        self._status = 200
        self._sink = sink
        self._aside = aside(sink)
        self._interval = ping_after or math.inf
        self._given, self._taken = trio.open_memory_channel[bytes](0)

    async def send(self, record: bytes) -> None:
        await self._given.send(record)

    async def refuse(self, reply: Reply, limit: int, dialect: Dialect) -> None:
        """Pass an answer on that is no stream: as it is, or as a record where a stream has begun already."""
        content = await reply.read(limit)
        if self._sink.status is not None:
            content = error_in(content, reply.status, dialect)
        else:
            self._status, self.headers, self._interval = reply.status, reply.headers, math.inf
        await self.send(content)

    def stop(self) -> None:
        """Nothing is sent any more."""
        self._given.close()

    async def run(self) -> None:
        try:
            while True:
                record: bytes | None = None
                with trio.move_on_after(self._interval):
                    record = await self._taken.receive()
                to = self._aside if record is None else self._sink
                self.begin(to)
                await to.write(PING if record is None else record)
        except trio.EndOfChannel:
            pass

    def begin(self, sink: Sink) -> None:
        """Start the answer, unless it has started."""
        if self._sink.status is None:
            sink.start(self._status, self.headers)


@asynccontextmanager
async def sending(sink: Sink, ping_after: float) -> AsyncGenerator[Sender]:
    """The block gives the sender what is to be written into the answer, which ends when the block is left.

    An ApplianceError of the block leaves as itself.
    """
    sender = Sender(sink, ping_after)
    async with told_meanwhile(sender) as stop:
        yield sender
        await stop()
    sender.begin(sink)  # where there was nothing to send
    await sink.end()
