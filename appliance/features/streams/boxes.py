"""Kept streams of the other boxes of a pool: a client that comes back need not know which box it had asked.

Each of the others is asked once whether it has the stream. Then its bytes pass through this one. `StreamsForBoxes` is
the other side of that, at the pool's door: streams are found, read and ended there by name.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection
from contextlib import asynccontextmanager, suppress
from urllib.parse import quote

import msgspec
import trio
from msgspec import Struct

from appliance.core.bodies.head import check_json
from appliance.core.lenient_json import decoded
from appliance.errors import BadRequest, Busy, PeerFailed, UpstreamFailed
from appliance.features.streams.ids import check_held, content_type_of, find_stream, open_reader
from appliance.features.streams.owner import Streams, StreamStatus, status_of
from appliance.http.control.stream_body import read_offset
from appliance.http.errors import JSON_TYPE
from appliance.http.way.context import RequestContext
from appliance.http.way.routes import LOOKUP, STREAM
from appliance.replay.generation import BROKE_OFF
from appliance.traffic.other_servers import OtherServers
from appliance.traffic.request import Request, send_whole
from appliance.upstream.client import HttpAnswer, HttpCall

MAX_QUESTION = 1 << 20  # bytes of a question for streams, which is their names
FIND_TIME = 3.0  # seconds for the other boxes to answer, all at once
MAX_ANSWER = 1 << 20


class WantedStreams(Struct, frozen=True):
    """The question of one box to another. The names are those of `name_of`: each key finds its own streams alone."""

    names: list[str]


class StreamAtBox(Struct, frozen=True):
    """A stream, as a box tells another one."""

    name: str
    status: StreamStatus
    content_type: str
    dropped: int  # offset of the first byte that is held
    interrupted_at: int | None = None  # see `Generation.reader`: a reader of more begins there again

    def begin(self, offset: int) -> int:
        """Return the offset at which that box begins, if this one is wanted. Raises BadRequest for one that is lost."""
        begin = offset if self.interrupted_at is None else min(offset, self.interrupted_at)
        check_held(begin, self.dropped)
        return begin


class BoxReader:
    """Reads a stream that another box has. That box says the last words of it as well."""

    def __init__(self, answer: HttpAnswer) -> None:
        self._answer = answer

    async def receive(self) -> bytes:
        """The next bytes, b"" after the last. Raises UpstreamFailed when cut short."""
        return await self._answer.receive()

    def closing(self) -> bytes:
        return b""


class StreamsAtBoxes:
    """Asks the other boxes for streams."""

    def __init__(self, peers: OtherServers) -> None:
        self._peers = peers

    async def find(self, names: Collection[str]) -> list[tuple[str, StreamAtBox]]:
        """Return the streams of these names, each with its box. A box that does not answer in time has none."""
        found: list[tuple[str, StreamAtBox]] = []
        asked = msgspec.json.encode(WantedStreams(list(names)))

        async def ask(box: str) -> None:
            with suppress(UpstreamFailed, PeerFailed, Busy):
                async with HttpCall(self._peers.address(box), "POST", LOOKUP, (JSON_TYPE,), asked) as answer:
                    content = await answer.read(MAX_ANSWER)
                if answer.status == 200:  # one of an older version has no such route
                    found.extend((box, one) for one in decoded(list[StreamAtBox], content) or ())

        with trio.move_on_after(FIND_TIME):
            async with trio.open_nursery() as nursery:
                for box in self._peers.boxes_in_reach() if names else ():
                    nursery.start_soon(ask, box)
        return found

    @asynccontextmanager
    async def opened(self, box: str, name: str, offset: int) -> AsyncGenerator[BoxReader]:
        """Read a stream there from an offset on. Raises PeerFailed, UpstreamFailed and Busy."""
        async with HttpCall(self._peers.address(box), "GET", f"{_place(name)}&from={offset}") as answer:
            if answer.status != 200:
                raise PeerFailed(box, f"it answers {answer.status} for a stream that it had")
            yield BoxReader(answer)

    async def stop(self, name: str) -> None:
        """End the stream wherever it is."""
        for box, _ in await self.find([name]):
            with suppress(UpstreamFailed, PeerFailed, Busy), trio.move_on_after(FIND_TIME):
                async with HttpCall(self._peers.address(box), "DELETE", _place(name)):
                    pass


def _place(name: str) -> str:
    return f"{STREAM}?conv_id={quote(name, safe='')}"


class StreamsForBoxes:
    """An `EdgeRoute` of the pool's door."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams

    def answers(self, request: Request) -> bool:
        return (request.method, request.path) in (("GET", STREAM), ("DELETE", STREAM), ("POST", LOOKUP))

    async def answer(self, context: RequestContext) -> None:
        request, sink = context.request, context.sink
        name = request.query.get("conv_id") or ""
        if request.path == LOOKUP:
            content = await context.body.read(MAX_QUESTION)
            await send_whole(sink, 200, (JSON_TYPE,), msgspec.json.encode(self._look_up(content)))
        elif request.method == "DELETE":
            self._streams.ids.stop_stream(name)
            await send_whole(sink, 204, ())
        else:
            generation = await find_stream(self._streams.ids, name)
            reader = open_reader(generation, read_offset(None, request.query.get("from")))
            context.stay()
            sink.start(200, ((b"Content-Type", content_type_of(generation).encode("latin-1")),))
            while data := await reader.receive():
                await sink.write(data)
            if (last := reader.closing()) is None:
                raise UpstreamFailed("the stream", BROKE_OFF)
            if last:
                await sink.write(last)
            await sink.end()

    def _look_up(self, content: bytes) -> list[StreamAtBox]:
        check_json(content)
        try:
            wanted = msgspec.json.decode(content, type=WantedStreams)
        except msgspec.ValidationError as error:
            why = f"the request body cannot be used: {error}; are the versions of the boxes the same?"
            raise BadRequest(why) from None
        return [
            StreamAtBox(each.name, status_of(each), content_type_of(each), each.ring.dropped, each.interrupted_at)
            for each in self._streams.ids.streams_of(wanted.names)
        ]
