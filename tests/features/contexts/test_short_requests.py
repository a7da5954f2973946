"""The table of slots in use: short requests, a coding agent, prompts of two owners, and the flags of a process."""

from __future__ import annotations

import json
from itertools import takewhile
from typing import NamedTuple

import pytest
from agent_pattern import AgentMessage, AgentRequest, Began, agent_pattern
from hypothesis import given, settings
from hypothesis import strategies as st
from slow import one_of

from appliance.core.bodies.blocks import Prefix, prefix_of
from appliance.core.engine import Manual
from appliance.core.llama.flags import split
from appliance.features.contexts.core.kept import KeptContext, best, replaced
from appliance.features.contexts.core.origin import context_flags, may_name_slots
from appliance.features.contexts.core.slots import LEAST_TOKENS, NO_SLOT, SlotContent, SlotTable
from appliance.fleet.hold import SHORT, Unnamed


def body(*texts: str, **more: object) -> bytes:
    messages = [{"role": "user", "content": text} for text in texts]
    return json.dumps({"model": "m", "messages": messages, **more}).encode()


def long(table: SlotTable, ticket: int, prefix: Prefix, now: float, tokens: int) -> int | None:
    slot = table.place(ticket, "", prefix, now).slot
    table.learn(ticket, tokens, 0, 0)
    table.release(ticket, now)
    return slot


def test_a_short_request_needs_context_until_its_end():
    table = SlotTable(2)
    slot = table.place_short(body("question".ljust(400)), b"", names_slot=True)
    assert slot is not None
    assert 100 < table.needed() < 150
    table.release_short(slot, 0.0)
    assert table.needed() == 0


Steps = st.lists(st.tuples(st.sampled_from(["short", "end", "long"]), st.integers(0, 5)), max_size=40)


@given(slots=st.integers(0, 4), steps=Steps)
def test_a_short_request_gets_an_idle_slot_with_little_to_lose(slots: int, steps: list[tuple[str, int]]):
    table = SlotTable(slots)
    held: dict[int, int] = dict.fromkeys(range(slots), 0)
    busy: set[int] = set()
    for now, (what, number) in enumerate(steps):
        match what:
            case "short":
                slot = table.place_short(body(f"question {number}"), b"", names_slot=True)
                if len(busy) == slots:
                    assert slot == NO_SLOT
                elif slot is None:
                    assert all(held[at] >= LEAST_TOKENS for at in held.keys() - busy)
                else:
                    assert slot not in busy
                    assert held[slot] < LEAST_TOKENS
                    busy.add(slot)
                    held[slot] = 0
            case "end" if busy:
                table.release_short(slot := min(busy), now)
                busy.discard(slot)
            case "long" if len(busy) < slots:
                tokens = LEAST_TOKENS * (1 + number)
                slot = long(table, 1000 + now, prefix_of(body(f"{number} ".ljust(4 * tokens))), now, tokens)
                assert slot is not None
                assert slot not in busy
                held[slot] = tokens
            case _:
                pass


@given(texts=st.lists(st.text(min_size=1, max_size=40), min_size=1, max_size=4), slots=st.integers(2, 4))
def test_a_conversation_of_short_turns_stays_in_its_slot_and_its_long_turn_finds_it(texts: list[str], slots: int):
    table = SlotTable(slots)
    turns: list[str] = []
    found: set[int | None] = set()
    for now, text in enumerate(texts):
        turns += [f"the question {text}"]
        slot = table.place_short(body(*turns, stream=True), b"", names_slot=True)
        assert slot is not None
        table.release_short(slot, now)
        found.add(slot)
        turns += [f"the answer {text}"]
    assert len(found) == 1
    placed = table.place(1, "", prefix_of(body(*turns, "x" * SHORT)), 99)
    assert placed.slot in found
    assert placed.held > 0


def test_the_engines_own_choice_is_foreseen():
    table = SlotTable(2)
    one, other = (prefix_of(body(name.ljust(8000))) for name in ("one", "other"))
    assert (long(table, 1, one, 1, 2000), long(table, 2, other, 2, 2000)) == (0, 1)
    assert table.foreseen(prefix_of(body("one".ljust(8000), "and on"))) == 0
    assert table.foreseen(prefix_of(body("new"))) == 0  # the one that was used least recently
    assert SlotTable(0).foreseen(one) is None


NEW = Manual(options="--slot-save-path --no-cache-idle-slots --slot-prompt-similarity")


@pytest.mark.parametrize(
    ("slots", "manual", "said", "flags"),
    [
        (2, NEW, "", "--slot-save-path D/ --no-cache-idle-slots --slot-prompt-similarity 0.5"),
        (1, NEW, "", "--slot-save-path D/"),
        (2, NEW, "--slot-prompt-similarity 0.2", "--slot-save-path D/ --no-cache-idle-slots"),
        (2, Manual(options="--slot-save-path"), "", "--slot-save-path D/"),  # no habit, no option against it
        (0, NEW, "", ""),  # nobody knows how many there are
        (2, Manual(), "", ""),
        (2, NEW, "--slot-save-path /mine", ""),
        (2, NEW, "--cache-idle-slots", ""),
        (2, NEW, "--embedding", ""),
    ],
)
def test_the_flags_of_a_process_give_way_to_what_is_said(slots: int, manual: Manual, said: str, flags: str):
    assert context_flags("D/", slots, manual, split(said.split())) == tuple(flags.split())


@pytest.mark.parametrize(
    ("manual", "said", "may"),
    [
        ("--cache-ram", "", False),
        ("--cache-ram", "--cache-ram 512", False),
        ("--cache-ram", "-cram -1", False),
        ("--cache-ram", "--cache-ram 0", True),
        ("", "", True),  # a build without a cache of prompts
    ],
)
def test_slots_are_named_only_to_an_engine_without_a_cache_of_prompts(manual: str, said: str, *, may: bool):
    assert may_name_slots(Manual(options=manual), split(said.split())) == may


@pytest.mark.parametrize("names_slot", [False, True])
def test_a_short_request_takes_the_oldest_slot_where_it_names_none(*, names_slot: bool):
    table = SlotTable(2)
    one, other = (prefix_of(body(name.ljust(8000))) for name in ("one", "other"))
    assert (long(table, 1, one, 1, 2000), long(table, 2, other, 2, 2000)) == (0, 1)
    assert table.place_short(body("new"), b"", names_slot=names_slot) == (None if names_slot else 0)
    if not names_slot:
        table.release_short(0, 3)
        assert 0 not in table.due(99, 0), "its slot has the short one's context"


@given(st.dictionaries(st.text(), st.integers() | st.text()), st.text(" \n"))
def test_without_its_name_a_slot_is_the_engines_choice(members: dict[str, int | str], behind: str):
    named = {"id_slot": 1} | members
    assert json.loads(Unnamed().named_in((json.dumps(named) + behind).encode())) == named | {"id_slot": -1}


def kept(name: str, texts: tuple[str, ...], tokens: int, size: int = 1000) -> KeptContext:
    prefix = prefix_of(body(*texts))
    return KeptContext(
        name=name,
        key="k",
        model="m",
        chain=prefix.digests,
        ends=prefix.ends,
        prompt=tokens - 100,
        tokens=tokens,
        size=size,
        token_seconds=0.001,
    )


A, B, C = ("a" * 4000, "b" * 4000, "c" * 4000)


def test_the_file_that_saves_most_is_chosen():
    files = [kept("1", (A,), 1000), kept("2", (A, B), 2000), kept("3", (A, C), 2000)]
    prompt = prefix_of(body(A, B, "and on"))
    assert [each.reusable(prompt) for each in files] == [1000, 2000, 950]

    def name(held: int = 0, least: int = 512, seconds: float = 1e-6) -> str | None:
        found = best(files, prompt, held, least, seconds)
        return found.name if found is not None else None

    assert name() == "2"
    assert name(held=1600) is None  # the slot has nearly as much
    assert name(seconds=1.0) is None  # the way there and back takes longer
    assert [each.name for each in replaced(files, prefix_of(body(A, B, "more")))] == ["1", "2"]


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


SLOTS = 4
OWNERS = st.sampled_from([b"", b"alice" * 3, b"bob" * 5])
SHORT_ONE, LONG_ONE = ["question " * 40], ["x" * SHORT]
TEXTS = st.sampled_from([SHORT_ONE, SHORT_ONE * 2, LONG_ONE, LONG_ONE * 2, SHORT_ONE + LONG_ONE])
STEPS = st.lists(st.tuples(OWNERS, st.sampled_from(["", "the same name"]), TEXTS, st.booleans()), max_size=20)


def body_of(texts: list[str]) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": text} for text in texts]}).encode()


@settings(max_examples=100)
@given(STEPS)
def test_no_slot_and_no_file_is_chosen_for_what_another_owner_has_said(
    steps: list[tuple[bytes, str, list[str], bool]],
) -> None:
    table, files, owner_of = SlotTable(SLOTS), list[tuple[bytes, KeptContext]](), dict[int, bytes]()
    for number, (owner, session, texts, is_short) in enumerate(steps):
        asked, prefix = body_of(texts), prefix_of(body_of(texts), owner)
        mine = [file for each, file in files if each == owner]
        assert best([file for _, file in files], prefix, 0, 1, 0.0) in (*mine, None)
        assert all(file in mine for file in replaced([file for _, file in files], prefix))
        free = [at for at in range(SLOTS) if at not in owner_of]
        slot = table.place_short(asked, owner, names_slot=True) if is_short and len(asked) < SHORT else None
        if slot is not None:
            table.release_short(slot, number)
        else:
            news = table.news(session, prefix)
            is_known = any(owner == each for each, *_ in steps[:number])
            assert is_known or (news.taker, news.edited) == (None, None)
            placed = table.place(number, session, prefix, number)
            slot = placed.slot
            assert slot is not None
            assert owner_of.get(slot) == owner or not placed.held
            table.learn(number, prefix.size, placed.held, 5)
            table.release(number, number)
        assert owner_of.get(slot, owner) == owner or not free, "it takes a slot from another one though some are empty"
        owner_of[slot] = owner
        chain, ends, size = prefix.digests, prefix.ends, prefix.size
        file = KeptContext(
            key="k", name=f"{number:032x}", model="m", conversation=session, chain=chain, ends=ends, prompt=size,
            tokens=size, size=1, token_seconds=1.0,
        )  # fmt: skip
        files.append((owner, file))
