"""Reading, finding and stopping generations that outlive their requests: ``/v1/stream`` and ``/v1/streams/lookup``.

Paths, statuses and messages are llama-server's (b11434), whose stream has its id in the query, and those of its
earlier versions, which had it in the path; errors have this program's one shape.
"""

from __future__ import annotations

from collections.abc import AsyncIterable
from contextlib import AbstractAsyncContextManager
from types import TracebackType

from msgspec import Struct
from quart import Response, request

from appliance.errors import BadRequest, NotFound
from appliance.features.streams.boxes import StreamsAtBoxes
from appliance.features.streams.ids import content_type_of, find_stream, name_of, open_reader
from appliance.features.streams.owner import Streams
from appliance.http.control.answers import EVENT_STREAM, endless_answer, json_answer, read_as
from appliance.http.control.routes import FOLLOWS, Routes
from appliance.http.control.stream_body import StreamBody, StreamReader, read_offset
from appliance.http.kernel import Kernel
from appliance.http.route_facts import RouteFacts
from appliance.http.way.routes import LOOKUP, STREAM


class StreamLookup(Struct):
    conversation_ids: list[object]


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


def stream_routes(kernel: Kernel, streams: Streams) -> Routes:
    routes, boxes, feeds = Routes("streams"), StreamsAtBoxes(kernel.owners.peers), kernel.traffic.lifetime.feeds

    @routes.get(STREAM, facts=FOLLOWS)
    @routes.get(f"{STREAM}/<path:conversation>", facts=FOLLOWS)
    async def read(conversation: str = "") -> Response:
        """Everything from ``from`` on, and what comes. With ``sse_ids=1`` each record has an id to resume at.

        An ``EventSource`` asks again after a stream's end, with the id of its last record: 204 tells it not to.
        """
        wanted = _conversation(conversation)
        numbered = _last("sse_ids") in ("1", "true")
        offset = read_offset(request.headers.get("Last-Event-ID") if numbered else None, _last("from"))
        try:
            generation = await find_stream(streams.ids, wanted)
        except NotFound:
            if not (found := await boxes.find([wanted])):
                raise
            box, there = found[0]
            at_box = boxes.opened(box, there.name, offset)
            body: StreamBody = BoxBody(at_box, there.begin(offset), numbered=numbered)
            content_type, is_read = there.content_type, there.status.is_done and offset >= there.status.total_bytes
        else:
            body = StreamBody(reader := open_reader(generation, offset), reader.offset, numbered=numbered)
            content_type, ring = content_type_of(generation), generation.ring
            is_read = ring.finished and offset >= ring.total
        if numbered and not content_type.startswith(EVENT_STREAM):
            message = "sse_ids is for event streams, and this one is lines of JSON; leave it out"
            raise BadRequest(message, param="sse_ids")
        if numbered and "Last-Event-ID" in request.headers and is_read:
            return Response("", 204)
        return endless_answer(body, content_type, feeds)

    @routes.delete(STREAM)
    @routes.delete(f"{STREAM}/<path:conversation>")
    async def stop(conversation: str = "") -> Response:
        """Succeed whether or not there is such a stream."""
        wanted = _conversation(conversation)
        if not streams.ids.stop_stream(wanted):
            await boxes.stop(wanted)
        return Response("", 204)

    @routes.post(LOOKUP, facts=RouteFacts(takes=StreamLookup))
    async def lookup() -> Response:
        """Only what a client knows the id of; there is no list."""
        asked = (await read_as(StreamLookup, param="conversation_ids")).conversation_ids
        names = [_name(wanted) for wanted in asked if isinstance(wanted, str)]
        there = await boxes.find([name for name in names if not streams.lookup([name])])
        return json_answer([*streams.lookup(names), *(one.status for _, one in there)])

    return routes
