"""An answer in pieces from somebody who may be silent for long: the client is told, and never holds the work up."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from functools import partial

import trio

from appliance.core.sse import PING, Dialect
from appliance.http.way.handover import Reply
from appliance.http.way.relay import EVENT_STREAM, UNBUFFERED, error_in
from appliance.http.way.telling import LAST_WORDS, outcome
from appliance.traffic.record import aside
from appliance.traffic.sink import Headers, Sink


class Sender:
    """Writes what it is given into the client's answer, and comments while it is given nothing. See `sending`."""

    def __init__(self, sink: Sink, ping_after: float) -> None:
        self.headers: Headers = (EVENT_STREAM, *UNBUFFERED)
        self.done = trio.Event()
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

    def close(self) -> None:
        """Nothing is sent any more."""
        self._given.close()

    async def run(self) -> None:
        try:
            while True:
                record: bytes | None = None
                with trio.move_on_after(self._interval):
                    record = await self._taken.receive()
                to = self._aside if record is None else self._sink
                await self.begin(to)
                await to.write(PING if record is None else record)
        except trio.EndOfChannel:
            pass
        finally:
            self.done.set()

    async def begin(self, sink: Sink) -> None:
        """Start the answer, unless it has started."""
        if self._sink.status is None:
            await sink.start(self._status, self.headers)


async def sending(sink: Sink, ping_after: float, work: Callable[[Sender], Awaitable[None]]) -> None:
    """Do ``work``, which sends, beside the writing to the client, and end the answer. Its ApplianceError passes."""
    sender = Sender(sink, ping_after)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sender.run)
        failure = await outcome(partial(work, sender))
        sender.close()
        if failure is not None:
            with trio.move_on_after(LAST_WORDS):
                await sender.done.wait()
            nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    await sender.begin(sink)  # where there was nothing to send
    await sink.end()
