"""Reading, finding and stopping generations that outlive their requests: ``/v1/stream`` and ``/v1/streams/lookup``.

Paths, statuses and messages are llama-server's (b11434), whose stream has its id in the query, and those of its
earlier versions, which had it in the path; errors have this program's one shape.
"""

from __future__ import annotations

import re

from msgspec import Struct
from quart import Response, request
from quart_trio import QuartTrio

from appliance.core.answers.ring import Numbered
from appliance.core.headers import EVENTS
from appliance.errors import BadRequest, UpstreamFailed
from appliance.http.control.answers import EVENT_STREAM, Pieces, endless_answer, json_answer, read_as
from appliance.http.way.resumable import BROKE_OFF, find_stream
from appliance.http.way.routes import LOOKUP, STREAM
from appliance.streams.generation import GenerationReader
from appliance.streams.owner import Streams, name_of
from appliance.traffic.traffic import Feeds

UINT64 = 1 << 64
_NUMBER = re.compile(r"\s*([+-]?)0*(\d{1,20})(?!\d)", re.ASCII)


class _Lookup(Struct):
    conversation_ids: list[object]


class StreamRoutes:
    """Every method is one route."""

    def __init__(self, streams: Streams, feeds: Feeds) -> None:
        self._streams = streams
        self._feeds = feeds

    async def read(self, conversation: str = "") -> Response:
        """Everything from ``from`` on, and what comes. With ``sse_ids=1`` each record has an id to resume at.

        An ``EventSource`` asks again after a stream's end, with the id of its last record: 204 tells it not to.
        """
        wanted = _conversation(conversation)
        numbered = _last("sse_ids") in ("1", "true")
        offset = read_offset(request.headers.get("Last-Event-ID") if numbered else None, _last("from"))
        generation = await find_stream(self._streams, wanted)
        ring, head = generation.ring, generation.head
        content_type = (head.content_type if head is not None else EVENTS).decode("latin-1")
        if numbered and not content_type.startswith(EVENT_STREAM):
            raise BadRequest(
                "sse_ids is for event streams, and this one is lines of JSON; leave it out", param="sse_ids"
            )
        reader = generation.reader(offset)
        if reader.offset < ring.dropped:
            raise BadRequest("Stream offset lost, please restart", param="from")
        if numbered and "Last-Event-ID" in request.headers and ring.finished and offset >= ring.total:
            return Response("", 204)
        return endless_answer(StreamBody(reader, numbered=numbered), content_type, self._feeds)

    async def stop(self, conversation: str = "") -> Response:
        """Succeed whether or not there is such a stream."""
        self._streams.stop(_conversation(conversation))
        return Response("", 204)

    async def lookup(self) -> Response:
        """Only what a client knows the id of; there is no list."""
        ids = (await read_as(_Lookup, param="conversation_ids")).conversation_ids
        return json_answer(self._streams.lookup(_name(wanted) for wanted in ids if isinstance(wanted, str)))


class StreamBody(Pieces):
    """One reader's bytes until the generation has ended or the client leaves."""

    def __init__(self, reader: GenerationReader, *, numbered: bool) -> None:
        self._reader = reader
        self._numbers = Numbered(reader.offset) if numbered else None
        self._over = False

    async def __anext__(self) -> bytes:
        while data := await self._reader.receive():
            if self._numbers is not None:
                data = self._numbers.feed(data)
            if data:
                return data
        if self._over:
            raise StopAsyncIteration
        self._over = True
        if (last := self._reader.closing()) is None:
            raise UpstreamFailed("the stream", BROKE_OFF)  # the connection breaks, as nothing may follow
        if self._numbers is not None:
            last = self._numbers.rest() + last
        if last:
            return last
        raise StopAsyncIteration


def read_offset(last_event_id: str | None, asked: str | None) -> int:
    """Return the offset to begin at, read as in llama-server: a negative number is a huge one. Raises BadRequest."""
    text = last_event_id or asked
    if text is None:
        return 0
    match = _NUMBER.match(text)
    number = int(match[2]) if match is not None else UINT64
    if match is None or number >= UINT64:
        raise BadRequest("Invalid 'from' offset", param="from")
    return UINT64 - number if match[1] == "-" and number else number


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


def add_stream_routes(app: QuartTrio, streams: Streams, feeds: Feeds) -> None:
    """Register everything here on the program's application."""
    routes = StreamRoutes(streams, feeds)
    for path in (STREAM, f"{STREAM}/<path:conversation>"):
        app.add_url_rule(path, f"read {path}", routes.read)
        app.add_url_rule(path, f"stop {path}", routes.stop, methods=["DELETE"])
    app.add_url_rule(LOOKUP, "look up streams", routes.lookup, methods=["POST"])
