"""A request whose generation outlives it: what an ``X-Conversation-Id`` asks for."""

from __future__ import annotations

from appliance.core.bodies.sse import Dialect, ErrorInfo, error_record
from appliance.errors import BadRequest, Busy, NotFound, RequestCancelled, ShuttingDown
from appliance.streams.generation import End, Generation
from appliance.streams.owner import Streams
from appliance.traffic.request import Headers, Request, Sink

CONVERSATION = b"x-conversation-id"
STREAM = "/v1/stream"
LOOKUP = "/v1/streams/lookup"
SOCKET = "/v1/stream/ws"
MAX_ID = 1024
"""Bytes of an id; a model's name with a UUID before it is a tenth of that."""
_INTERRUPTED = ErrorInfo(
    message="the server was stopped before the answer was complete",
    type="unavailable_error",
    code=503,
    reason="interrupted",
)


def conversation_of(request: Request) -> str | None:
    """The id under which the answer is to be kept. Bytes of the header are UTF-8, as in a path. Raises BadRequest."""
    value = request.header(CONVERSATION)
    if not value:
        return None
    if len(value) > MAX_ID:
        raise BadRequest(f"the X-Conversation-Id header is longer than {MAX_ID} bytes; use a shorter id")
    return value.encode("latin-1").decode("utf-8", "replace")


def without_conversation(headers: Headers) -> list[tuple[bytes, bytes]]:
    """For a model's server or a peer: with the id, llama-server would go on when this program hangs up."""
    return [header for header in headers if header[0].lower() != CONVERSATION]


def is_stream_path(path: str) -> bool:
    """Whether the program itself answers it, whatever else its mode leaves to the model."""
    return path in (STREAM, LOOKUP) or path.startswith(f"{STREAM}/")


def interrupted_record(dialect: Dialect) -> bytes:
    """The last record of a stream that the program's end has cut short."""
    return error_record(dialect, _INTERRUPTED)


async def find_stream(streams: Streams, conversation: str) -> Generation:
    """The stream of this id. One that works on its prompt is waited for; raises Busy while its model is loading.

    Raises NotFound.
    """
    if streams.owner_loading(conversation):
        raise Busy("Stream owner model is loading, retry later")
    found = streams.find(conversation)
    if found is None and (waiting := streams.waiting(conversation)) is not None:
        await waiting.wait_begun()
        found = streams.find(conversation)
    if found is None:
        raise NotFound("Stream not found or expired")
    return found


async def be_first_reader(generation: Generation, sink: Sink) -> None:
    """Answer the request that a generation was begun for. Raises what ended it before it had an answer."""
    match await generation.pass_on(sink):
        case None | End.DONE | End.BROKEN | End.GIVEN_UP:
            return
        case End.STOPPED:
            when = "while the model was loading" if generation.loading() else "before its first token"
            raise RequestCancelled(f"request cancelled by a stop {when}")
        case End.REPLACED:
            raise RequestCancelled("request cancelled by another one with the same X-Conversation-Id")
        case End.SHUT_DOWN:
            raise ShuttingDown
