"""The facts about streams for a client that knows their ids."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from msgspec import Struct

from appliance.streams.generation import Generation


class StreamStatus(Struct, frozen=True, kw_only=True):
    """The facts about one stream; times are Unix seconds, 0 for a time that has not come."""

    conversation_id: str
    is_done: bool
    total_bytes: int
    started_at: int
    completed_at: int


def meant(ids: Iterable[str], known: Collection[str]) -> Iterator[str]:
    """Return the known ids that these mean: themselves, or else those that begin with one and ``::``; repeated as
    given.
    """
    by_prefix: dict[str, list[str]] = {}
    for conversation in known:
        for prefix in _prefixes(conversation):
            by_prefix.setdefault(prefix, []).append(conversation)
    for wanted in ids:
        yield from (wanted,) if wanted in known else by_prefix.get(wanted, ())


def status_of(generation: Generation) -> StreamStatus:
    return StreamStatus(
        conversation_id=generation.conversation,
        is_done=generation.end is not None,
        total_bytes=generation.ring.total,
        started_at=int(generation.started_at),
        completed_at=int(generation.completed_at),
    )


def _prefixes(conversation: str) -> Iterator[str]:
    at = conversation.find("::")
    while at > 0:
        yield conversation[:at]
        at = conversation.find("::", at + 1)
