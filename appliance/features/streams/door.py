"""Kept streams for other boxes of a pool, whose clients come back there: found, read and ended by name."""

from __future__ import annotations

import msgspec

from appliance.core.bodies.head import check_json
from appliance.errors import BadRequest, UpstreamFailed
from appliance.features.streams.boxes import StreamAtBox, WantedStreams
from appliance.features.streams.owner import Streams, status_of
from appliance.features.streams.reading import content_type_of, find_stream, open_reader
from appliance.http.control.stream_body import read_offset
from appliance.http.errors import JSON_TYPE
from appliance.http.way.context import RequestContext
from appliance.http.way.routes import LOOKUP, STREAM
from appliance.replay.generation import BROKE_OFF
from appliance.traffic.request import Request, send_whole

MAX_QUESTION = 1 << 20  # bytes of a question for streams, which is their names


class StreamsForBoxes:
    """An `EdgeRoute` of the pool's door."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams

    def answers(self, request: Request) -> bool:
        """See `EdgeRoute`."""
        return (request.method, request.path) in (("GET", STREAM), ("DELETE", STREAM), ("POST", LOOKUP))

    async def answer(self, context: RequestContext) -> None:
        """See `EdgeRoute`."""
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
