"""Reading, finding and stopping generations that outlive their requests: ``/v1/stream`` and ``/v1/streams/lookup``.

Paths, statuses and messages are llama-server's (b11434), whose stream has its id in the query, and those of its
earlier versions, which had it in the path; errors have this program's one shape.
"""

from __future__ import annotations

from collections.abc import AsyncIterable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Protocol

from msgspec import Struct
from quart import Response, request

from appliance.core.answers.ring import Numbered
from appliance.errors import BadRequest, NotFound, UpstreamFailed
from appliance.http.control.answers import EVENT_STREAM, Pieces, endless_answer, json_answer, read_as
from appliance.http.control.routes import FOLLOWS, RouteFacts, Routes
from appliance.http.control.streams_at_boxes import StreamsAtBoxes
from appliance.http.way.resumable import BROKE_OFF, content_type_of, find_stream, open_reader, read_offset
from appliance.http.way.routes import LOOKUP, STREAM
from appliance.streams.owner import Streams, name_of
from appliance.traffic.other_servers import OtherServers
from appliance.traffic.traffic import Feeds


class StreamLookup(Struct):
    conversation_ids: list[object]


class StreamReader(Protocol):
    """Gives the bytes of a stream; see `GenerationReader`."""

    async def receive(self) -> bytes: ...

    def closing(self) -> bytes | None: ...


class StreamRoutes:
    """Every method is one route."""

    def __init__(self, streams: Streams, feeds: Feeds, boxes: StreamsAtBoxes) -> None:
        self._streams = streams
        self._feeds = feeds
        self._boxes = boxes

    async def read(self, conversation: str = "") -> Response:
        """Everything from ``from`` on, and what comes. With ``sse_ids=1`` each record has an id to resume at.

        An ``EventSource`` asks again after a stream's end, with the id of its last record: 204 tells it not to.
        """
        wanted = _conversation(conversation)
        numbered = _last("sse_ids") in ("1", "true")
        offset = read_offset(request.headers.get("Last-Event-ID") if numbered else None, _last("from"))
        try:
            generation = await find_stream(self._streams, wanted)
        except NotFound:
            if not (found := await self._boxes.find([wanted])):
                raise
            box, there = found[0]
            body: StreamBody = BoxBody(
                self._boxes.opened(box, there.name, offset), there.begin(offset), numbered=numbered
            )
            content_type, is_read = there.content_type, there.status.is_done and offset >= there.status.total_bytes
        else:
            body = StreamBody(reader := open_reader(generation, offset), reader.offset, numbered=numbered)
            content_type, ring = content_type_of(generation), generation.ring
            is_read = ring.finished and offset >= ring.total
        if numbered and not content_type.startswith(EVENT_STREAM):
            raise BadRequest(
                "sse_ids is for event streams, and this one is lines of JSON; leave it out", param="sse_ids"
            )
        if numbered and "Last-Event-ID" in request.headers and is_read:
            return Response("", 204)
        return endless_answer(body, content_type, self._feeds)

    async def stop(self, conversation: str = "") -> Response:
        """Succeed whether or not there is such a stream."""
        wanted = _conversation(conversation)
        if not self._streams.stop(wanted):
            await self._boxes.stop(wanted)
        return Response("", 204)

    async def lookup(self) -> Response:
        """Only what a client knows the id of; there is no list."""
        asked = (await read_as(StreamLookup, param="conversation_ids")).conversation_ids
        names = [_name(wanted) for wanted in asked if isinstance(wanted, str)]
        there = await self._boxes.find([name for name in names if not self._streams.lookup([name])])
        return json_answer([*self._streams.lookup(names), *(one.status for _, one in there)])


class StreamBody(Pieces):
    """One reader's bytes until the generation has ended or the client leaves."""

    def __init__(self, reader: StreamReader | None, offset: int, *, numbered: bool) -> None:
        self._reader = reader
        self._numbers = Numbered(offset) if numbered else None
        self._over = False

    async def __anext__(self) -> bytes:
        while self._reader is not None and (data := await self._reader.receive()):
            if self._numbers is not None:
                data = self._numbers.feed(data)
            if data:
                return data
        if self._over or self._reader is None:
            raise StopAsyncIteration
        self._over = True
        if (last := self._reader.closing()) is None:
            raise UpstreamFailed("the stream", BROKE_OFF)  # the connection breaks, as nothing may follow
        if self._numbers is not None:
            last = self._numbers.rest() + last
        if last:
            return last
        raise StopAsyncIteration


class BoxBody(StreamBody):
    """The same of a stream that another box has."""

    def __init__(self, at_box: AbstractAsyncContextManager[StreamReader], offset: int, *, numbered: bool) -> None:
        super().__init__(None, offset, numbered=numbered)
        self._at_box = at_box

    async def __aenter__(self) -> AsyncIterable[bytes]:
        self._reader = await self._at_box.__aenter__()
        return self

    async def __aexit__(self, exc_type: type, exc_value: BaseException, tb: TracebackType) -> None:
        await self._at_box.__aexit__(exc_type, exc_value, tb)


def _conversation(in_path: str) -> str:
    conversation = in_path or _last("conv_id")
    if not conversation:
        raise BadRequest("Missing conversation id in path", param="conv_id")
    return _name(conversation)


def _name(conversation: str) -> str:
    return name_of(conversation, request.scope["state"]["holder"])


def _last(name: str) -> str | None:
    """Return the parameter's value; the last one where it is repeated."""
    values = request.args.getlist(name)
    return values[-1] if values else None


def add_stream_routes(app: Routes, streams: Streams, feeds: Feeds, peers: OtherServers) -> None:
    """Register everything here on the program's application."""
    routes = StreamRoutes(streams, feeds, StreamsAtBoxes(peers))
    for path in (STREAM, f"{STREAM}/<path:conversation>"):
        app.add_url_rule(path, f"read {path}", routes.read, facts=FOLLOWS)
        app.add_url_rule(path, f"stop {path}", routes.stop, methods=["DELETE"])
    app.add_url_rule(LOOKUP, "look up streams", routes.lookup, methods=["POST"], facts=RouteFacts(takes=StreamLookup))
