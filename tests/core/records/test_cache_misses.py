"""The reasons of misses: each follows from what is known, and nothing is said to be known that is not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from appliance.core.records.cache_misses import (
    MAX_CONVERSATIONS,
    CacheRoom,
    CacheUse,
    CacheUses,
    CacheVerdict,
    SlotNews,
)

ROOM = CacheRoom(1.0, slots=1)
NEXT = CacheRoom(2.0, slots=1)


def use(conversation: str = "a", at: float = 0.0, cached: int = 0, prompt: int = 100, **facts: Any) -> CacheUse:
    given: dict[str, Any] = {"room": ROOM, "began": at, "ended": at + 0.5, **facts}
    return CacheUse(conversation=conversation, prompt=prompt, cached=cached, **given)


def last(*uses: CacheUse) -> CacheVerdict:
    table = CacheUses()
    *_, verdict = [table.judge("m", each) for each in uses]
    return verdict


FIRST, BACK = use(), SlotNews(came_back="12 MiB, 0.3 s")
CASES: list[tuple[tuple[CacheUse, ...], str | None, int, str]] = [
    ((use(loaded=True),), "loaded", 0, "0 of 100 prompt tokens came from the cache: the model was loaded for it"),
    ((FIRST,), "loaded", 0, "the model has been loaded since"),
    ((FIRST, use("b", 1)), "new", 0, "its conversation is new here"),
    ((FIRST, use("", 1, 30)), "unknown", 0, "it differs from token 31 on from all that the engine still had"),
    ((FIRST, use("", 1)), "unknown", 0, "the engine had nothing that begins like it"),
    ((FIRST, use("", 1, 50)), None, 0, "50 of 100 prompt tokens came from the cache"),
    ((FIRST, use("a", 1, 99)), None, 1, "99 of 100 prompt tokens came from the cache"),
    ((FIRST, use("a", 1, 90, 5000)), None, 10, "90 of 5000 prompt tokens came from the cache"),
    ((FIRST, use("a", 1, 7, 120)), "changed", 93, "nothing came in between, so its prompt differs from token 8 on"),
    ((FIRST, use("a", 1, 7, alone=False)), "others", 93, "other requests were under way"),
    ((FIRST, use("b", 1), use("a", 2)), "evicted", 100, "conversation 'b' took the model's only slot"),
    ((FIRST, use("", 1), use("a", 2)), "evicted", 100, "a request without a conversation took the model's only slot"),
    ((FIRST, use("b", 1, -1, -1), use("a", 2)), "others", 100, "conversation 'b' came in between: its place was"),
    ((FIRST, use("b", 1, 0, 0), use("a", 2)), "others", 100, "conversation 'b' came in between: its place was taken"),
    ((FIRST, use("b", 1, 0, 1), use("a", 2)), "evicted", 100, "conversation 'b' took the model's only slot"),
    ((FIRST, use("b", 1), use("c", 2, -1, -1), use("a", 3)), "evicted", 100, "conversation 'b' took"),
    ((FIRST, use("a", 0.2)), "busy", 100, "an earlier request of its conversation was still at work"),
    ((FIRST, use("a", 1, moved=True)), "moved", 100, "it went on with another engine"),
    ((FIRST, use("a", 1, room=NEXT)), "loaded", 100, "the model has been loaded since"),
    ((use(build="cpu"), use(at=1, room=NEXT, loaded=True, build="gpu")), "engine", 100, "from the engine cpu to gpu"),
    ((use(room=None), use("a", 1, room=None)), "unknown", 100, "nothing is known of the process"),
    ((FIRST, use("a", 1, 7, news=SlotNews("b"))), "evicted", 93, ": conversation 'b' took its slot"),
    ((FIRST, use("a", 1, 7, news=SlotNews(""))), "evicted", 93, ": a request without a conversation took its slot"),
    ((FIRST, use("a", 1, 7, news=SlotNews("b", 7))), "changed", 93, ": its prompt was edited at message 7"),
    ((FIRST, use("a", 1, news=SlotNews(edited=0))), "changed", 100, "system prompt or template options have changed"),
    ((FIRST, use("a", 1, room=NEXT, news=SlotNews("b", 7))), "loaded", 100, "the model has been loaded since"),
    ((FIRST, use("a", 1, 99, room=NEXT, loaded=True, news=BACK)), None, 1, "99 of 100 prompt tokens came back from a"),
    ((FIRST, use("a", 1, 2, loaded=True, news=BACK)), "loaded", 98, "a file (12 MiB, 0.3 s): the model was loaded for"),
]


@pytest.mark.parametrize(("uses", "miss", "again", "words"), CASES)
def test_each_reason(uses: tuple[CacheUse, ...], miss: str | None, again: int, words: str):
    found = last(*uses)
    assert (found.miss, found.again) == (miss, again)
    assert words in found.why


def test_a_cache_that_the_request_switches_off_is_the_reason_whatever_else_happened():
    assert last(FIRST, use("b", 1), use("a", 2, off=True)).miss == "off"
    assert last(FIRST, use("a", 2, 99, off=True)).miss is None


ROOMS = st.sampled_from([ROOM, CacheRoom(1.0, slots=4), CacheRoom(1.0, slots=1, kept=9), CacheRoom(1.0)])


NEWS = st.builds(
    SlotNews, st.sampled_from([None, "", "b"]), st.sampled_from([None, 0, 7]), st.sampled_from(["", "12 MiB, 0.3 s"])
)


@st.composite
def histories(draw: st.DrawFn) -> list[CacheUse]:
    """A model's processes follow each other: one that has ended never answers again."""
    uses, room = list[CacheUse](), None
    for number in range(draw(st.integers(1, 8))):
        if draw(st.booleans()):
            room = structs.replace(draw(ROOMS), since=float(number))
        uses.append(
            CacheUse(
                conversation=draw(st.sampled_from(["", "a", "b", "c"])),
                prompt=draw(st.integers(-1, 60)),
                cached=draw(st.integers(-1, 60)),
                began=number - draw(st.sampled_from([0.0, 1.5])),
                ended=number + 0.5,
                build=draw(st.sampled_from(["", "cpu", "gpu"])),
                room=room,
                loaded=draw(st.booleans()),
                off=draw(st.booleans()),
                moved=draw(st.booleans()),
                alone=draw(st.booleans()),
                news=draw(NEWS),
            )
        )
    return uses


@given(histories())
def test_a_reason_is_given_only_with_its_proof(uses: list[CacheUse]):
    found, latest, earlier = last(*uses), uses[-1], uses[:-1]
    own = [each for each in earlier if each.conversation == latest.conversation != ""]
    between = earlier[earlier.index(own[-1]) + 1 :] if own else []
    if latest.prompt <= 0 or latest.cached < 0:
        assert found == CacheVerdict(latest.conversation)
        return
    assert found.why.startswith(f"{latest.cached} of {latest.prompt} prompt tokens came ")
    assert ("came back from a file" in found.why) == bool(latest.news.came_back)
    assert (": " in found.why) == (found.miss is not None)
    assert 0 <= found.again <= latest.prompt
    assert found.again == 0 or own
    if 2 * latest.cached >= latest.prompt:
        assert found.miss is None
    match found.miss:
        case "new":
            assert latest.conversation
            assert not own
        case "engine":
            assert own[-1].build != latest.build
            assert own[-1].room != latest.room
        case "evicted" if latest.news.taker is not None:
            assert latest.news.edited is None
            assert own[-1].room == latest.room
        case "changed" if latest.news.edited is not None:
            assert own[-1].room == latest.room
        case "evicted":
            assert any(each.prompt > 0 for each in between)
            assert (latest.room.slots, latest.room.kept) == (1, 0)
            assert own[-1].room == latest.room
        case "changed":
            assert latest.news.taker is None
            assert latest.alone
            assert not between
            assert own[-1].room == latest.room is not None
            assert own[-1].ended <= latest.began
        case "others":
            assert between or not latest.alone
        case "busy":
            assert own[-1].ended > latest.began
        case "loaded":
            started = latest.room is not None and all(each.room != latest.room for each in earlier)
            assert latest.loaded or started or own[-1].room != latest.room
        case "moved":
            assert latest.moved
        case "unknown":
            assert not latest.conversation or latest.room is None
        case "off":
            assert latest.off
        case None:
            assert ": " not in found.why


@given(histories(), histories())
def test_models_do_not_know_of_each_other(ours: list[CacheUse], theirs: list[CacheUse]):
    table = CacheUses()
    for each in theirs:
        table.judge("other", each)
    assert [table.judge("m", each) for each in ours][-1] == last(*ours)


def test_what_is_remembered_has_an_end_and_the_oldest_conversation_goes():
    table = CacheUses()
    for number in range(MAX_CONVERSATIONS + 1):
        table.judge("m", use(str(number), number))
    assert table.judge("m", use("0", 9000)).miss == "new"
    assert table.judge("m", use("9", 9001)).miss == "evicted"
