"""A run that has ended: of this program, or of one before it."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import UNSET

from appliance.agents.feed import Feed, RetoldFeed
from appliance.agents.record import RunRecord, status_of


class PastRun:
    """``feed`` is None for a run of an earlier program, whose events are then written anew, as far as they are
    known.
    """

    def __init__(self, record: RunRecord, feed: Feed | None, event_bytes: int) -> None:
        self.id = record.id
        self.feed = feed or RetoldFeed(record.id, record.created_at, event_bytes, list(_retold(record)))
        self._record = record

    @property
    def size(self) -> int:
        """Approximate size in bytes."""
        return self._record.size + self.feed.held

    def record(self) -> RunRecord:
        return self._record


def _retold(record: RunRecord) -> Iterator[tuple[str, object]]:
    """The order of text between two calls is unknown: reasoning and output are one piece each. So are the tools'
    owners.
    """
    outcome = record.outcome
    if outcome.reasoning:
        yield "reasoning", {"text": outcome.reasoning}
    for trace in outcome.tool_trace:
        yield "tool_call", {"id": trace.id, "name": trace.name, "arguments": trace.arguments}
        told = {"error": trace.error} if trace.error is not UNSET else {"result": trace.result}
        yield "tool_result", {"id": trace.id, "seconds": trace.seconds} | told
    for signal in outcome.signals:
        yield "signal", signal
    if outcome.output:
        yield "output", {"text": outcome.output}
    yield "end", status_of(record)
