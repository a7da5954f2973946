"""A coding agent against two slots: the prompts that are read with llama-server's own choice, and with the table's."""

from __future__ import annotations

import json
from itertools import takewhile
from typing import NamedTuple

import pytest
from agent_pattern import AgentMessage, AgentRequest, Began, agent_pattern
from slow import one_of

from appliance.core.bodies.blocks import Prefix, prefix_of
from appliance.features.contexts.core.slots import SlotContent, SlotTable

AFTER = 4.0


class EnginePrompt(NamedTuple):
    """Tokens, told apart by message: no two different messages begin alike here."""

    messages: tuple[AgentMessage, ...] = ()

    @property
    def tokens(self) -> int:
        return sum(message.words for message in self.messages)

    def shared(self, other: EnginePrompt) -> int:
        both = zip(self.messages, other.messages, strict=False)
        return sum(mine.words for mine, _ in takewhile(lambda pair: pair[0] == pair[1], both))


class EngineModel:
    """The choice of llama-server b11434 without a cache: which slot a request gets, and what of its prompt is there."""

    def __init__(self, slots: int) -> None:
        self.slots = [EnginePrompt() for _ in range(slots)]
        self.used = [0] * slots
        self.busy = [False] * slots
        self.tasks = 0

    def begin(self, asked: EnginePrompt, id_slot: int | None) -> tuple[int, int]:
        """Return the slot, and how many tokens are read."""
        self.tasks += 1
        idle = [at for at, busy in enumerate(self.busy) if not busy] if id_slot is None else [id_slot]
        best = max(idle, key=lambda at: self.slots[at].shared(asked))
        if self.slots[best].shared(asked) <= 0.1 * asked.tokens:
            best = min(idle, key=lambda at: self.used[at])
        self.busy[best] = True
        read = asked.tokens - min(self.slots[best].shared(asked), asked.tokens - 1)
        self.slots[best] = asked
        return best, read

    def end(self, at: int, answer: AgentMessage) -> None:
        self.busy[at] = False
        self.used[at] = self.tasks
        self.slots[at] = EnginePrompt((*self.slots[at].messages, answer))


class KeptFiles:
    """The latest context of each conversation, up to so many tokens in all."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.files: dict[str, tuple[SlotContent, EnginePrompt]] = {}

    def save(self, content: SlotContent, held: EnginePrompt) -> None:
        self.files.pop(content.session, None)
        self.files[content.session] = content, held
        while sum(held.tokens for _, held in self.files.values()) > self.limit:
            del self.files[next(iter(self.files))]

    def best(self, prefix: Prefix) -> tuple[SlotContent, EnginePrompt] | None:
        return max(self.files.values(), key=lambda file: file[0].held(prefix), default=None)


class Slotted:
    """Engine, table and files together, in the order in which a server would ask them."""

    def __init__(self, kept: int) -> None:
        self.engine, self.table, self.files = EngineModel(2), SlotTable(2), KeptFiles(kept)
        self.places = dict[int, tuple[int, AgentMessage]]()

    def begin(self, number: int, request: AgentRequest, now: float) -> int:
        body = json.dumps({"messages": [message._asdict() for message in request.messages]}).encode()
        asked, prefix = EnginePrompt(request.messages), prefix_of(body)
        placement = self.table.place(number, request.session, prefix, now)
        at = placement.slot
        assert at is not None
        if placement.evicted:
            self.files.save(placement.evicted, self.engine.slots[at])
        file = self.files.best(prefix)
        if file and file[0].held(prefix) > placement.held:
            content, self.engine.slots[at] = file
            self.table.restored(at, content.session, content.prefix, content.tokens)
        at, tokens = self.engine.begin(asked, at)
        self.places[number] = at, request.answer
        self.table.learn(number, asked.tokens, asked.tokens - tokens, request.answer.words)
        return tokens

    def end(self, number: int, now: float) -> None:
        self.engine.end(*self.places.pop(number))
        self.table.release(number, now)
        for at, content in self.table.due(now, AFTER).items():
            self.files.save(content, self.engine.slots[at])
            self.table.kept(at, content, content.tokens)


class Unaided:
    """The engine as it is."""

    def __init__(self) -> None:
        self.engine = EngineModel(2)
        self.places = dict[int, tuple[int, AgentMessage]]()

    def begin(self, number: int, request: AgentRequest, now: float) -> int:
        at, tokens = self.engine.begin(EnginePrompt(request.messages), None)
        self.places[number] = at, request.answer
        return tokens

    def end(self, number: int, now: float) -> None:
        self.engine.end(*self.places.pop(number))


def read(seed: int, server: Slotted | Unaided) -> int:
    """Return the prompt tokens that two slots read for the whole pattern, with three seconds between its events."""
    total = 0
    for at, event in enumerate(agent_pattern(seed)):
        if isinstance(event, Began):
            total += server.begin(event.number, event.request, 3 * at)
        else:
            server.end(event.number, 3 * at)
    return total


@pytest.mark.parametrize("seed", one_of(range(3)))
def test_a_coding_agent_reads_a_third_or_less(seed: int) -> None:
    alone = read(seed, Unaided())
    assert alone > 1.1 * read(seed, Slotted(0)), "without files, two helpers at once still take the main session's slot"
    assert alone > 3 * read(seed, Slotted(128_000))
