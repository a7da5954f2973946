"""One turn of a run: a streamed chat request, reported as it comes."""

from __future__ import annotations

from collections.abc import Callable

import trio

from appliance.agents.clocks import Clocks
from appliance.core.runs.chat import ChatEvents, refusal
from appliance.core.runs.inward import Asker, Reply
from appliance.core.runs.messages import RunEvent
from appliance.errors import ApplianceError

CHAT = "/v1/chat/completions"
MAX_WHOLE = 64 << 20
"""Largest answer that is not a stream, in bytes."""
MAX_REFUSAL = 1 << 16
LAST_BYTES = 1.0
"""Seconds to read past the end of an answer, so that it is logged as a complete one."""

Hear = Callable[[RunEvent], bool]
"""Gets each event; False: nothing more is wanted."""


async def take_turn(
    asker: Asker, body: bytes, origin: str, clocks: Clocks, hear: Hear, received: Callable[[int], None]
) -> ApplianceError | None:
    """Send ``body`` and report the events; ``received`` counts bytes.

    Returns why the request failed, or None when its last event has been reported; an overdue clock shows in its scope.
    """
    answer = ChatEvents()
    try:
        with clocks.scope:
            async with asker.ask(CHAT, body, origin=origin, watch=clocks) as reply:
                clocks.received()
                await _listen(reply, answer, clocks, hear, received)
    except ApplianceError as error:
        return None if answer.ended else error
    return None


async def _listen(
    reply: Reply, answer: ChatEvents, clocks: Clocks, hear: Hear, received: Callable[[int], None]
) -> None:
    if reply.status != 200:
        hear(refusal(reply.status, await reply.read(MAX_REFUSAL)))
        return
    if not reply.event_stream:
        body = await reply.read(MAX_WHOLE)
        received(len(body))
        _tell(answer.whole(body), hear)
        return
    while data := await reply.receive():
        clocks.received()
        received(len(data))
        wanted = _tell(answer.feed(data), hear)
        if answer.ended:
            clocks.stop()
            await _read_out(reply)
        if answer.ended or not wanted:
            return
    _tell(answer.close(), hear)


def _tell(events: list[RunEvent], hear: Hear) -> bool:
    return all(hear(event) for event in events)


async def _read_out(reply: Reply) -> None:
    with trio.move_on_after(LAST_BYTES):
        while await reply.receive():
            pass
