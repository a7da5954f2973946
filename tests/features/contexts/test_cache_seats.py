"""Questions about the prompts' cache, and which conversation sits in which slot."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.core.records.progress import EngineSlot
from appliance.errors import BadRequest
from appliance.features.contexts.core.cache import CacheQuestion, CacheSession, parse_cache_question, seated

NOW = datetime(2026, 11, 27, tzinfo=UTC)


def session(row: int, tokens: int, model: str = "m") -> CacheSession:
    return CacheSession(model, f"c{row}", "curl", 1, row, NOW, tokens, 0, tokens)


def slot(number: int, task: int, tokens: int | None, *, busy: bool = False) -> EngineSlot:
    return EngineSlot(id=number, id_task=task, n_prompt_tokens=tokens, is_processing=busy)


def seats(sessions: list[CacheSession], slots: list[EngineSlot], since: float = 0.0) -> list[int | None]:
    return [each.slot for each in seated(sessions, {"m": slots}, {"m": since})]


def test_a_session_sits_where_its_tokens_are_and_those_alike_in_the_order_of_their_use():
    assert seats([session(2, 76), session(1, 50)], [slot(0, 3, 75), slot(1, 9, 49)]) == [0, 1]
    assert seats([session(2, 76), session(1, 76)], [slot(0, 3, 75), slot(1, 9, 75)]) == [1, 0]
    assert seats([session(2, 76), session(1, 76)], [slot(0, 3, 75), slot(1, -1, None)]) == [None, None]
    assert seats([session(2, 76)], [slot(0, 3, 75, busy=True)]) == [None]
    assert seats([session(2, 76)], [slot(0, 3, 75)], since=NOW.timestamp() + 1) == [None], "of an earlier process"
    assert seats([session(2, 76, "elsewhere")], [slot(0, 3, 75)]) == [None]
    assert seats([session(1, 1)], [slot(0, -1, 0)]) == [None], "an empty slot"


@given(
    st.lists(st.builds(session, st.integers(1, 99), st.integers(1, 4)), max_size=6, unique_by=lambda one: one.id),
    st.lists(
        st.builds(slot, st.integers(0, 9), st.integers(0, 99), st.none() | st.integers(0, 4)),
        max_size=6,
        unique_by=lambda one: one.id,
    ),
)
def test_a_slot_has_at_most_one_session_and_holds_its_tokens(sessions: list[CacheSession], slots: list[EngineSlot]):
    found = seated(sessions, {"m": slots}, {})
    assert [one.id for one in found] == [one.id for one in sessions]
    taken = [one.slot for one in found if one.slot is not None]
    assert len(taken) == len(set(taken))
    held = {one.id: one.n_prompt_tokens for one in slots}
    assert all(held[one.slot] == one.tokens - 1 for one in found if one.slot is not None)


def test_questions():
    assert parse_cache_question({}, NOW) == CacheQuestion("client", int(NOW.timestamp()) - 86_400)
    assert parse_cache_question({"by": "model", "span": "1h"}, NOW) == CacheQuestion(
        "model", int(NOW.timestamp()) - 3600
    )
    for wrong in ({"by": "day"}, {"span": "long"}):
        with pytest.raises(BadRequest) as refused:
            parse_cache_question(wrong, NOW)
        assert refused.value.param in wrong
