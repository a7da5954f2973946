"""Responses over a websocket: each ``response.create`` of the client is answered with the events of its stream.

The last response of a connection is remembered with what led to it, so that the client may send what is new alone
(``previous_response_id``): nothing is stored beyond the connection.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Struct, structs

from appliance.core.answers.forms import ENDS
from appliance.core.bodies.json_text import JSON, OBJECT, JsonObject
from appliance.core.bodies.sse import Decoder
from appliance.core.lenient_json import decoded
from appliance.core.runs.inward import Asker
from appliance.errors import ApplianceError, BadRequest
from appliance.features.responses.core.answering import ResponseAnswer
from appliance.features.responses.core.asking import asked_of
from appliance.features.responses.reading import PATHS, answer_to
from appliance.http import errors
from appliance.http.sockets.handshake import Handshake
from appliance.http.way.context import RequestContext
from appliance.traffic.request import Request
from appliance.upstream.websocket import Websocket

CREATE = "response.create"
MAX_REFUSAL = 1 << 20


class _Last(Struct):
    """The last response of a connection, and all items up to its end."""

    id: str = ""
    items: list[JSON] = []


class ResponseSockets:
    """Serves websockets at the paths of the Responses API, one response after the other."""

    def __init__(self, inward: Asker) -> None:
        self._inward = inward

    def answers(self, request: Request) -> bool:
        """See `appliance.http.sockets.sockets.SocketRoute`."""
        return request.path in PATHS

    async def serve(self, context: RequestContext, handshake: Handshake) -> None:
        """See `appliance.http.sockets.sockets.SocketRoute`."""
        client = await handshake.accept()
        last = _Last()
        while (message := await client.receive()) is not None:
            members = decoded(OBJECT, message) or {}
            given = members.pop("stream_id", None)
            lane = given if isinstance(given, str) else ""
            try:
                last = await self._answer(client, lane, members, last, context.request.client)
            except ApplianceError as error:
                info = errors.describe(error)
                await client.send(_marked(lane, _refusal(info.code, structs.asdict(info) | {"code": error.reason})))

    async def _answer(self, client: Websocket, lane: str, members: JsonObject, last: _Last, origin: str) -> _Last:
        """Send the events of one response. Raises ApplianceError for what has none."""
        if members.pop("type", None) != CREATE:
            raise BadRequest(f"'type' must be {CREATE}", param="type")
        given = members.get("input")
        message: JsonObject = {"role": "user", "content": given}
        items: list[JSON] = given if isinstance(given, list) else [] if given is None else [message]
        if previous := members.pop("previous_response_id", None):
            if previous != last.id:
                why = "is not the last response of this connection, and no other is kept; send the whole conversation"
                raise PreviousNotFound(f"'previous_response_id' {why}", param="previous_response_id")
            items = [*last.items, *items]
        generates = members.pop("generate", None) is not False
        members |= {"input": items, "stream": True}
        if not generates:
            events = answer_to(asked_of(members, streams=True), ResponseAnswer).end()
            return await _pass_on(client, lane, Decoder(), events, items, last)
        async with self._inward.ask(PATHS[0], msgspec.json.encode(members), origin=origin) as reply:
            if not reply.event_stream:
                told = (decoded(OBJECT, await reply.read(MAX_REFUSAL)) or {}).get("error")
                refusal = _refusal(reply.status, told if isinstance(told, dict) else {"message": ""})
                await client.send(_marked(lane, refusal))
            decoder = Decoder()
            while data := await reply.receive():
                last = await _pass_on(client, lane, decoder, data, items, last)
        return last


class PreviousNotFound(BadRequest):
    """A client builds on a response that is not there."""

    reason = "previous_response_not_found"


async def _pass_on(
    client: Websocket, lane: str, decoder: Decoder, data: bytes, items: list[JSON], last: _Last
) -> _Last:
    for event in decoder.feed(data):
        if event.name in ENDS and (ended := decoded(OBJECT, event.data)) is not None:
            response = ended.get("response")
            if isinstance(response, dict) and event.name != ENDS[2]:
                output = response.get("output")
                last = _Last(str(response.get("id")), [*items, *(output if isinstance(output, list) else ())])
        await client.send(_marked(lane, event.data))
    return last


def _refusal(status: int, error: Mapping[str, object]) -> str:
    return msgspec.json.encode({"type": "error", "status": status, "error": error}).decode()


def _marked(lane: str, event: str) -> str:
    """The event with its ``stream_id``, which says to which of several streams it belongs."""
    return f'{event.rstrip()[:-1]},"stream_id":{msgspec.json.encode(lane).decode()}}}' if lane else event
