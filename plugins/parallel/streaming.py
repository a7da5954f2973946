"""A streamed answer that is chosen first: the request's own records are held back until the winner is known."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from appliance.plugins import AskFailed, Event, JsonObject, Pending
from appliance.plugins.chat import Streamed, after_end, saying, with_member

from .ask import CHAT, MEMBER, Round, candidate_of
from .choose import Candidate, Verdict


@dataclass(kw_only=True)
class Held:
    """The request's own stream as far as it was read."""

    model: str
    said: Streamed = field(default_factory=Streamed)
    records: list[Event] = field(default_factory=list[Event])

    async def take(self, events: AsyncIterator[Event]) -> None:
        """Read to the end; a call of tools ends the comparison, and reading, at once."""
        async for event in events:
            self.said.add(event)
            self.records.append(event)
            if self.said.tool_calls:
                return

    @property
    def candidate(self) -> Candidate:
        if self.said.finish_reason is None:
            return Candidate(number=1, model=self.model, failure="not finished")
        return candidate_of(1, self.model, {"content": self.said.text})


async def chosen(events: AsyncIterator[Event], asked: Round) -> AsyncIterator[Event]:
    held = Held(model=asked.context.model)
    await _read(events, asked, held)
    if held.said.tool_calls:
        asked.cancel()
        for event in held.records:
            yield event
        async for event in events:
            yield event
        return
    own = held.candidate
    if asked.settings.choose == "merge":
        candidates = await asked.all(own)
        usable = [candidate for candidate in candidates if candidate.usable]
        if usable and asked.clear(candidates) is None:
            async for event in _merged(asked, held, usable, candidates):
                yield event
            return
    candidates, verdict = await asked.settle(own)
    for event in _told(held, verdict, asked.told(verdict, candidates)) if verdict else held.records:
        yield event


async def _read(events: AsyncIterator[Event], asked: Round, held: Held) -> None:
    """Read the own stream to its end; if the first answer wins, only until another is ready."""
    if asked.settings.choose != "first":
        await held.take(events)
        return
    own = asked.context.begin(lambda: held.take(events))
    waiting: list[Pending[object]] = [own, *(other.pending for other in asked.others)]
    while not own.done and asked.first(asked.done) is None:
        await asked.context.wait_any([pending for pending in waiting if not pending.done])
    if own.done:
        await own.wait()
    else:
        own.cancel()


def _told(held: Held, verdict: Verdict, told: JsonObject) -> list[Event]:
    """Return the winner as records: the own ones unchanged, another answer as one record of text."""
    records = held.records
    if verdict.winner.number != 1:
        if not held.records:
            held.said.take_shape({"model": verdict.winner.model})
        records = saying(held.said, held.records, verdict.winner.text)
    return with_member(records, MEMBER, told)


async def _merged(
    asked: Round, held: Held, usable: list[Candidate], candidates: list[Candidate]
) -> AsyncIterator[Event]:
    """Yield the judge's text while it is written; the first answer if the judge writes nothing."""
    merging, began, why = Streamed(), False, "wrote nothing"
    try:
        async with asked.context.appliance.stream(CHAT, asked.merge_body(usable)) as events:
            async for event in events:
                before = len(merging.text)
                merging.add(event)
                if text := merging.text[before:]:
                    held.said.take_shape(event.data or {})
                    yield held.said.record({"content": text} if began else {"role": "assistant", "content": text})
                    began = True
    except AskFailed as error:
        if began:
            raise
        why = f"did not answer: {error}"
    if began:
        verdict = asked.merged(Candidate(number=0, model=asked.judge, text=merging.text), usable)
        end = held.said.record({}, finish_reason=merging.finish_reason or "stop")
        for event in [*with_member([end], MEMBER, asked.told(verdict, candidates)), *after_end(held.records)]:
            yield event
    else:
        verdict = asked.unjudged(usable, why)
        for event in _told(held, verdict, asked.told(verdict, candidates)):
            yield event
