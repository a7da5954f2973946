"""Streams as their readers ask for them, by name and from an offset on."""

from __future__ import annotations

from appliance.core.headers import EVENTS
from appliance.errors import BadRequest, Busy, NotFound
from appliance.features.streams.ids import ConversationIds
from appliance.replay.generation import Generation, GenerationReader


async def find_stream(ids: ConversationIds, conversation: str) -> Generation:
    """The stream of this id. One that works on its prompt is waited for; raises Busy while its model is loading.

    Raises NotFound.
    """
    if ids.is_loading(conversation):
        raise Busy("Stream owner model is loading, retry later")
    found = ids.stream_of(conversation)
    if found is None and (waiting := ids.waiting_of(conversation)) is not None:
        await waiting.wait_begun()
        found = ids.stream_of(conversation)
    if found is None:
        raise NotFound("Stream not found or expired")
    return found


def content_type_of(generation: Generation) -> str:
    return (generation.head.content_type if generation.head is not None else EVENTS).decode("latin-1")


def open_reader(generation: Generation, offset: int) -> GenerationReader:
    """Return a reader from this offset on. Raises BadRequest where the bytes behind it are not held any more."""
    reader = generation.reader(offset)
    check_held(reader.offset, generation.ring.dropped)
    return reader


def check_held(offset: int, dropped: int) -> None:
    """Raises BadRequest where the bytes from this offset on are not held any more."""
    if offset < dropped:
        raise BadRequest("Stream offset lost, please restart", param="from")
