"""The table of slots: its rules one by one, and as a state machine beside a simple model of them."""

from __future__ import annotations

import json
import math
from functools import lru_cache
from itertools import takewhile
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from appliance.core.bodies.blocks import Prefix, prefix_of
from appliance.core.records.cache_misses import SlotNews
from appliance.features.contexts.core.slots import MAX_TAKEN, Placement, SlotContent, SlotTable

AFTER = 4.0
T = TypeVar("T")


@lru_cache
def prompt(texts: tuple[str, ...]) -> Prefix:
    return prefix_of(json.dumps({"messages": [{"role": "user", "content": text} for text in texts]}).encode())


def text(name: str, tokens: int) -> str:
    """Four bytes of a message are one token."""
    return name.ljust(4 * tokens - len(json.dumps({"role": "user", "content": ""})), ".")


def begin_alike(one: tuple[T, ...], other: tuple[T, ...]) -> tuple[T, ...]:
    return tuple(mine for mine, _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


SYSTEM = text("system", 800)
MAIN = prompt((SYSTEM, text("main", 11_200)))
LONGER = prompt((SYSTEM, text("main", 11_200), text("answer", 100), text("next", 100)))


def helper(number: int, tokens: int = 1200) -> Prefix:
    return prompt((SYSTEM, text(f"helper {number}", tokens)))


def ask(
    table: SlotTable, ticket: int, session: str, prefix: Prefix, now: float, answer: int = 100
) -> tuple[int | None, int]:
    placement = table.place(ticket, session, prefix, now)
    table.learn(ticket, prefix.size // 4, placement.held, answer)
    table.release(ticket, now)
    return placement.slot, placement.held


def listed(table: SlotTable, now: float) -> list[tuple[str, int, float | None, bool]]:
    """The session, tokens, seconds without use and state of each slot."""
    return [
        (
            slot.asked.session if slot.in_use and slot.asked else slot.content.session,
            slot.content.tokens,
            None if slot.in_use or math.isinf(slot.used_at) else now - slot.used_at,
            slot.in_use,
        )
        for slot in table.slots.values()
    ]


def sessions(table: SlotTable) -> list[str]:
    return [session for session, *_ in listed(table, 0)]


def test_a_kept_context_goes_before_a_shorter_one_that_is_not() -> None:
    table = SlotTable(2)
    ask(table, 1, "main", MAIN, 0)
    ask(table, 2, "other", prompt((text("else", 5000),)), 1)
    due = table.due(1 + AFTER, AFTER)
    assert due == {
        0: SlotContent("main", MAIN, 12_000, 12_100),
        1: SlotContent("other", prompt((text("else", 5000),)), 5000, 5100),
    }
    table.kept(0, due[0], 12_100)
    assert list(table.due(1 + AFTER, AFTER)) == [1]
    assert ask(table, 3, "third", prompt((text("third", 100),)), 2 + AFTER) == (0, 0)


def test_a_file_of_what_the_slot_held_before_says_nothing_of_it_now() -> None:
    table = SlotTable(1)
    ask(table, 1, "main", MAIN, 0)
    saved = table.due(AFTER, AFTER)[0]
    ask(table, 2, "other", prompt((text("other", 5000),)), 5)
    table.kept(0, saved, 12_100)
    assert list(table.due(99, AFTER)) == [0]


@given(st.permutations(range(4)), st.sets(st.integers(0, 3)))
def test_contents_move_to_the_slots_that_the_engine_chose(order: list[int], strange: set[int]) -> None:
    """The table believes the content of each slot in the one that ``order`` has; the strange ones hold others."""
    table, tokens = SlotTable(4), [1000 * (at + 1) for at in range(4)]
    for real in range(4):
        table.place(real, f"{real}", prompt((text(f"{real}", 9),)), real, order[real])
        table.learn(real, tokens[real], 0, 0)
        table.release(real, real)
    table.correct({at: 50 if at in strange else tokens[at] + 1 for at in range(4)})
    expected = ["" if at in strange else f"{at}" for at in range(4)]
    assert sessions(table) == expected
    assert [content.session for content in table.due(99, 0).values()] == [each for each in expected if each]


def test_a_request_in_another_slot_than_foreseen_is_found() -> None:
    table = SlotTable(2)
    for ticket, session in enumerate("xy"):
        table.place(ticket, session, prompt((text(session, 9),)), ticket, ticket)
        table.learn(ticket, 1000 * (ticket + 1), 0, 0)
        table.release(ticket, ticket)
    table.place(3, "z", prompt((text("z", 9),)), 3, 1)
    table.correct({1: 1000})  # the engine has it in slot 0
    assert table.used_by(3) == 0
    assert sessions(table) == ["z", "x"]
    table.release(3, 4)
    assert not any(slot.in_use for slot in table.slots.values())


def test_a_context_is_due_again_when_it_has_grown_by_a_tenth() -> None:
    table = SlotTable(1)
    ask(table, 1, "", MAIN, 0)
    table.kept(0, table.due(AFTER, AFTER)[0], 12_100)
    ask(table, 2, "", LONGER, 10, answer=1109)  # 12 200 and the answer: one token less than a tenth
    assert table.due(99, AFTER) == {}
    table.restored(0, "", LONGER, 12_099)
    ask(table, 3, "", LONGER, 10, answer=1110)
    assert list(table.due(99, AFTER)) == [0]


def test_the_oldest_request_that_waits_takes_the_first_free_slot() -> None:
    table = SlotTable(2)
    for ticket in range(5):
        placement = table.place(ticket, f"s{ticket}", helper(ticket), 0, wanted=0 if ticket == 2 else None)
        assert placement.slot == (ticket if ticket < 2 else None)
    assert table.place(3, "again", MAIN, 0) == Placement()
    table.release(1, 1)
    assert sessions(table) == ["s0", "s3"], "the third waits for slot 0"
    table.release(4, 2)  # gives up while it waits
    table.release(0, 2)
    table.release(3, 2)
    assert [(session, in_use) for session, _, _, in_use in listed(table, 2)] == [("s2", True), ("s3", False)]


def test_an_answer_that_says_nothing_leaves_an_estimate_that_is_not_saved() -> None:
    table = SlotTable(1)
    ask(table, 1, "main", MAIN, 0)
    table.kept(0, table.due(AFTER, AFTER)[0], 12_100)
    table.place(2, "main", prompt((SYSTEM,)), 10)
    table.learn(2, 1600, 800, 0)  # two bytes a token
    table.release(2, 10)
    table.place(2, "main", helper(2), 10)
    table.learn(2, 0, 0, 0)
    table.release(2, 11)
    assert listed(table, 12) == [("main", 4000, 1.0, False)]
    assert table.due(99, AFTER) == {}
    assert table.place(3, "refused", prompt(("else",)), 20) == Placement(0)
    table.release(3, 20, refused=True)
    assert listed(table, 21) == [("main", 4000, 10.0, False)]


@given(st.integers(0, 3), st.integers(-2, 5))
def test_a_table_knows_only_its_own_slots(count: int, at: int) -> None:
    table = SlotTable(count)
    table.restored(at, "s", MAIN, 600)
    table.kept(at, SlotContent("s", MAIN, 600, 600), 0)
    inside = 0 <= at < count
    assert [slot.content.tokens for slot in table.slots.values()] == [
        600 if inside and each == at else 0 for each in range(count)
    ]
    table.lost(at)
    assert listed(table, 0) == [("", 0, None, False)] * count
    assert table.place(1, "s", MAIN, 0, wanted=at).slot == (at if inside else None)


def test_a_prompt_that_keeps_less_than_half_of_a_slot_goes_elsewhere() -> None:
    table = SlotTable(2)
    ask(table, 1, "", prompt((SYSTEM, text("long", 801))), 0, answer=0)
    assert ask(table, 2, "", helper(2), 1) == (1, 0)
    table = SlotTable(2)
    ask(table, 1, "", prompt((SYSTEM, text("long", 800))), 0, answer=0)
    assert ask(table, 2, "", helper(2), 1) == (0, 800)


def test_tokens_count_half_after_ten_minutes() -> None:
    for seconds, slot in ((540, 1), (660, 0)):
        table = SlotTable(2)
        ask(table, 1, "", prompt((text("long", 2000),)), 0, answer=0)
        ask(table, 2, "", prompt((text("short", 1000),)), seconds, answer=0)
        assert ask(table, 3, "", MAIN, seconds) == (slot, 0)


def test_of_two_empty_slots_the_one_that_rested_longer_is_taken() -> None:
    table = SlotTable(2)
    ask(table, 1, "", MAIN, 0)
    ask(table, 2, "", helper(2), 9)
    ask(table, 3, "", LONGER, 10)
    table.lost(0)
    table.lost(1)
    assert ask(table, 4, "", helper(4), 11) == (1, 0)


def test_a_conversation_learns_who_took_its_slot_and_where_its_prompt_differs() -> None:
    table = SlotTable(1)
    assert table.news("main", MAIN) == SlotNews()
    ask(table, 1, "main", MAIN, 0)
    assert table.news("main", LONGER) == SlotNews()
    assert table.news("main", helper(1)) == SlotNews(None, 2)
    ask(table, 2, "other", helper(2), 1)
    ask(table, 3, "", helper(3), 2)
    assert table.news("main", LONGER) == SlotNews("other")
    assert table.news("main", helper(1)) == SlotNews("other", 2)
    assert table.news("other", prompt((SYSTEM, text("else", 700)))) == SlotNews(""), "half of it is what it was"
    assert table.news("", LONGER) == SlotNews()
    table.restored(0, "main", MAIN, 12_000)
    assert table.news("main", LONGER) == SlotNews()
    table.lost(0)
    assert table.news("main", LONGER) == SlotNews(), "nobody took it"
    ask(table, 4, "small", helper(4, 100), 3)
    assert table.news("small", MAIN) == SlotNews(), "most of what it had is the same"


def test_conversations_without_a_slot_are_forgotten_in_the_end() -> None:
    table = SlotTable(1)
    for number in range(MAX_TAKEN + 2):
        ask(table, number, f"s{number}", helper(number), number)
    assert [table.news(f"s{at}", helper(at)).taker for at in (0, 1, MAX_TAKEN)] == [None, "s2", f"s{MAX_TAKEN + 1}"]


TEXTS = [text("system", 30), text("a", 300), text("b", 600), text("c", 2000), text("d", 9000)]
PLACES = st.integers(0, len(TEXTS) - 1)
SESSIONS = st.sampled_from(["", "", "x", "y", "z"])
WAITS = st.sampled_from([0, 1, 30, 600])
Texts = tuple[str, ...]


class ModelSlot:
    """A slot as the rules have it: texts, not digests."""

    def __init__(self) -> None:
        self.in_use, self.ticket, self.used_at = False, 0, -math.inf
        self.asked: tuple[str, Texts] | None = None
        self.hold("", (), 0, 0, 0)

    def hold(self, session: str, texts: Texts, prompt: int, tokens: int, kept: int) -> None:
        self.session, self.texts, self.prompt, self.tokens, self.kept = session, texts, prompt, tokens, kept

    def held(self, texts: Texts) -> int:
        alike = begin_alike(self.texts, texts)
        if not alike:
            return 0
        if len(alike) == len(self.texts) < len(texts):
            return self.tokens
        return self.prompt * prompt(alike).size // prompt(self.texts).size

    def cost(self, texts: Texts, now: float) -> float:
        lost = sum(0.1 if at < self.kept else 1.0 for at in range(self.held(texts), self.tokens))
        return lost * 0.5 ** ((now - self.used_at) / 600)


class Slots(RuleBasedStateMachine):
    """Requests, answers and files in any order, possible or not."""

    @initialize(count=st.integers(0, 4))
    def begin(self, count: int) -> None:
        self.table, self.now, self.number = SlotTable(count), 0.0, 0
        self.slots = [ModelSlot() for _ in range(count)]
        self.waiting = dict[int, tuple[str, Texts]]()

    @rule(session=SESSIONS, texts=st.lists(PLACES, min_size=1, max_size=4))
    def place(self, session: str, texts: list[int]) -> None:
        self._place(session, tuple(TEXTS[at] for at in texts))

    @rule(session=SESSIONS, texts=st.lists(PLACES, min_size=1, max_size=4), late=st.booleans(), wait=WAITS)
    def ask(self, session: str, texts: list[int], late: bool, wait: int) -> None:
        """The usual course of a request that finds a slot."""
        found = self._place(session, tuple(TEXTS[at] for at in texts))
        self.now += wait
        for step in ("release", "learn") if late else ("learn", "release"):
            if step == "learn":
                self._learn(self.number, found.held, 80)
            else:
                self._release(self.number, refused=False)

    @rule(at=st.integers(0, 3), message=PLACES)
    def return_at_once(self, at: int, message: int) -> None:
        """A conversation that goes on finds everything that it left."""
        if at >= len(self.slots) or self.slots[at].in_use or not self.slots[at].texts:
            return
        slot = self.slots[at]
        alone = slot.session and [each.session for each in self.slots].count(slot.session) == 1
        found = self._place(slot.session, (*slot.texts, TEXTS[message]))
        if alone:
            assert (found.slot, found.held) == (at, slot.tokens)

    @rule(data=st.data(), cached=st.integers(0, 9000), predicted=st.integers(0, 900))
    def learn(self, data: st.DataObject, cached: int, predicted: int) -> None:
        self._learn(self._ticket(data), cached, predicted)

    @rule(data=st.data(), refused=st.booleans())
    def release(self, data: st.DataObject, refused: bool) -> None:
        self._release(self._ticket(data), refused=refused)

    @rule(data=st.data())
    def place_again(self, data: st.DataObject) -> None:
        ticket = self._ticket(data)
        if ticket in self.waiting or any(slot.in_use and slot.ticket == ticket for slot in self.slots):
            assert self.table.place(ticket, "again", prompt(tuple(TEXTS)), self.now) == Placement()

    @rule(at=st.integers(-1, 4), texts=st.lists(PLACES, min_size=1, max_size=3), full=st.booleans())
    def replace(self, at: int, texts: list[int], full: bool) -> None:
        held = tuple(TEXTS[each] for each in texts)
        tokens = 3000 if full else 0
        if full:
            self.table.restored(at, "x", prompt(held), tokens)
        else:
            self.table.lost(at)
        if 0 <= at < len(self.slots):
            slot = self.slots[at]
            slot.hold(*(("x", held) if full else ("", ())), tokens, tokens, tokens)
            if not slot.in_use:
                slot.asked = None

    @rule(after=st.sampled_from([0, 5, 60]))
    def save(self, after: float) -> None:
        due = self.table.due(self.now, after)
        for at, slot in enumerate(self.slots):
            grown = slot.tokens - slot.kept >= max(256, slot.kept / 10)
            quiet = not slot.in_use and not slot.asked and self.now - slot.used_at >= after
            assert (at in due) == (quiet and grown and slot.tokens >= 512)
        for at, content in due.items():
            self.table.kept(at, content, content.tokens)
            self.slots[at].kept = content.tokens
        assert self.table.due(self.now, after) == {}

    @rule(seconds=WAITS)
    def wait(self, seconds: int) -> None:
        self.now += seconds

    @invariant()
    def the_table_lists_what_is_so(self) -> None:
        assert listed(self.table, self.now) == [
            (
                slot.asked[0] if slot.in_use and slot.asked else slot.session,
                slot.tokens,
                None if slot.in_use or math.isinf(slot.used_at) else self.now - slot.used_at,
                slot.in_use,
            )
            for slot in self.slots
        ]
        assert not self.waiting or all(slot.in_use for slot in self.slots)

    @invariant()
    def only_requests_in_slots_need_context(self) -> None:
        needed = [
            self.table.tokens_of(prompt(slot.asked[1])) if slot.asked else slot.tokens
            for slot in self.slots
            if slot.in_use
        ]
        assert self.table.needed() == sum(needed)

    def _place(self, session: str, texts: Texts) -> Placement:
        self.number += 1
        found = self.table.place(self.number, session, prompt(texts), self.now)
        idle = [slot for slot in self.slots if not slot.in_use]
        if not idle:
            assert found == Placement()
            self.waiting[self.number] = (session, texts)
            return found
        assert found.slot is not None
        slot = self.slots[found.slot]
        assert not slot.in_use, "a slot was given to two requests"
        assert found.held == slot.held(texts)
        own = [each for each in idle if session and each.session == session]
        alike = [each for each in idle if each.tokens and each.held(texts) * 2 >= each.tokens]
        if own or alike:
            assert slot in (own or alike)
            assert all(each.held(texts) <= found.held for each in own or alike)
        else:
            cheapest = min(each.cost(texts, self.now) for each in idle)
            assert slot.cost(texts, self.now) == pytest.approx(cheapest), "a cheaper slot was idle"
        gone = slot.tokens - max(found.held, slot.kept)
        assert (found.evicted is not None) == (gone >= 512 and slot.asked is None)
        slot.in_use, slot.ticket, slot.asked = True, self.number, (session, texts)
        return found

    def _ticket(self, data: st.DataObject) -> int:
        known = {0, self.number + 1, *self.waiting, *(slot.ticket for slot in self.slots)}
        return data.draw(st.sampled_from(sorted(known)))

    def _learn(self, ticket: int, cached: int, predicted: int) -> None:
        tokens = sum(prompt(slot.asked[1]).size // 4 for slot in self.slots if slot.ticket == ticket and slot.asked)
        self.table.learn(ticket, tokens or 7, cached, predicted)
        for slot in self.slots:
            if slot.ticket == ticket and slot.asked:
                slot.hold(*slot.asked, tokens, tokens + predicted, min(slot.kept, cached, tokens))
                slot.asked = None

    def _release(self, ticket: int, *, refused: bool) -> None:
        self.table.release(ticket, self.now, refused=refused)
        self.waiting.pop(ticket, None)
        for at, slot in enumerate(self.slots):
            if slot.in_use and slot.ticket == ticket:
                slot.in_use = False
                if refused:
                    slot.asked = None
                else:
                    slot.used_at = self.now
                if slot.asked:
                    estimate = self.table.slots[at].content.tokens
                    assert estimate >= slot.held(slot.asked[1])
                    slot.hold(*slot.asked, estimate, estimate, min(slot.kept, slot.held(slot.asked[1])))
                if self.waiting:
                    slot.ticket = next(iter(self.waiting))
                    slot.asked, slot.in_use = self.waiting.pop(slot.ticket), True


TestSlots = Slots.TestCase


@given(st.integers(1, 3), st.lists(st.tuples(SESSIONS, st.lists(PLACES, min_size=1, max_size=4)), max_size=20))
def test_news_are_what_the_slots_have_been_through(count: int, asked: list[tuple[str, list[int]]]) -> None:
    table, held, takers, lasts = SlotTable(count), dict[int | None, str](), dict[str, str](), dict[str, Texts]()
    for number, (session, places) in enumerate(asked):
        texts = tuple(TEXTS[at] for at in places)
        last = lasts.get(session, ())
        alike = begin_alike(last, texts)
        is_edited = 2 * prompt(alike).size < min(prompt(last).size, prompt(texts).size)
        edited = len(alike) + 1 if is_edited and len(alike) < min(len(last), len(texts)) else None
        assert table.news(session, prompt(texts)) == SlotNews(takers.get(session), edited)
        slot, _ = ask(table, number, session, prompt(texts), number)
        if held.get(slot, "") not in ("", session):
            takers[held[slot]] = session
        takers.pop(session, None)
        held[slot] = session
        if session:
            lasts[session] = texts
