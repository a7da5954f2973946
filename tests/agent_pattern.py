"""Requests of a coding agent: one main session that grows, and helpers that begin with the same system prompt.

Everything follows from the seed: texts, order, turns, and which requests are under way at the same time. A text of N
words is about N tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Literal, NamedTuple

SYSTEM = 800
MAIN = 12_000
"""Words of the main session's first request."""
HELPER = (200, 2200)
"""Words of a helper's task, which follow the system prompt."""
MAIN_GROWTH = (40, 320)
HELPER_GROWTH = (80, 400)
HELPER_TURNS = (2, 5)
ANSWER = (20, 200)
AT_ONCE = 2
VOCABULARY = ("file", "test", "line", "error", "value", "name", "path", "list", "read", "call", "type", "loop", "word")


class AgentMessage(NamedTuple):
    role: Literal["system", "user", "assistant"]
    content: str

    @property
    def words(self) -> int:
        return self.content.count(" ") + 1


class AgentRequest(NamedTuple):
    session: str
    messages: tuple[AgentMessage, ...]
    answer: AgentMessage

    @property
    def words(self) -> int:
        return sum(message.words for message in self.messages)


class Began(NamedTuple):
    number: int
    request: AgentRequest


class Ended(NamedTuple):
    number: int
    """The number of the request that `Began` named."""


def agent_pattern(seed: int = 0, requests: int = 200) -> Iterator[Began | Ended]:
    """Yield the beginning and the end of each request, at most `AT_ONCE` of them under way."""
    random = Random(seed)
    system = AgentMessage("system", _text(random, SYSTEM))
    main = _Session("main", (system, AgentMessage("user", _text(random, MAIN - SYSTEM))), MAIN_GROWTH, requests)
    helpers = 0
    ready, under_way = [main], dict[int, _Session]()
    number = 0
    while number < requests or under_way:
        if number < requests and ready and len(under_way) < AT_ONCE and (not under_way or random.random() < 0.6):
            session = ready.pop(random.randrange(len(ready)))
            request = AgentRequest(session.name, session.messages, AgentMessage("assistant", _span(random, ANSWER)))
            session.messages = (*request.messages, request.answer)
            under_way[number] = session
            yield Began(number, request)
            number += 1
            continue
        ended = random.choice(list(under_way))
        session = under_way.pop(ended)
        yield Ended(ended)
        session.messages = (*session.messages, AgentMessage("user", _span(random, session.growth)))
        session.turns -= 1
        if session is not main:
            if session.turns:
                ready.append(session)
            elif not ready and not under_way:
                ready.append(main)
        elif random.random() < 0.4:
            at_work = sum(each is not main for each in [*ready, *under_way.values()])
            for _ in range(random.randint(1, AT_ONCE) - at_work):
                helpers += 1
                task = (system, AgentMessage("user", _span(random, HELPER)))
                ready.append(_Session(f"helper-{helpers}", task, HELPER_GROWTH, random.randint(*HELPER_TURNS)))
            if not ready or random.random() < 0.2:  # the helpers work in the background
                ready.append(main)
        else:
            ready.append(main)


class _Session:
    def __init__(self, name: str, messages: tuple[AgentMessage, ...], growth: tuple[int, int], turns: int) -> None:
        self.name, self.messages, self.growth, self.turns = name, messages, growth, turns


def _span(random: Random, span: tuple[int, int]) -> str:
    return _text(random, random.randint(*span))


def _text(random: Random, words: int) -> str:
    return " ".join(random.choices(VOCABULARY, k=words))
