"""The figures of the prompts' cache in real SQLite: they are those of the rows, by their definitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from appliance.features.contexts.core.cache import CacheAnswer, CacheQuestion
from appliance.features.contexts.routes import cache_answer
from appliance.store.activity import ActivityTable
from appliance.store.activity_schema import open_memory
from appliance.wire import Row, Tokens

START = 1_800_000_000


def row(
    at: int = START,
    model: str = "m",
    conversation: str = "",
    miss: str = "",
    again: int = 0,
    tokens: Tokens | None = None,
    status: int = 200,
) -> Row:
    return Row(
        timestamp=datetime.fromtimestamp(at, UTC),
        model=model,
        req_path="/v1/chat/completions",
        resp_status_code=status,
        tokens=tokens or Tokens(),
        duration_ms=1,
        metadata={"prompt_cache": f"words of {miss}"},
        client=f"curl, {model}",
        conversation=conversation,
        cache_miss=miss,
        again_tokens=again,
    )


COUNTS = st.integers(-1, 200)
ROWS = st.builds(
    row,
    st.integers(START - 5, START + 5),
    st.sampled_from("ab"),
    st.sampled_from(["", "x", "y"]),
    st.sampled_from(["", "new", "evicted"]),
    st.integers(0, 50),
    st.builds(
        Tokens,
        cache_tokens=COUNTS,
        input_tokens=COUNTS,
        output_tokens=COUNTS,
        prompt_per_second=st.sampled_from([-1.0, 0.0, 20.0, 333.0]),
    ),
    st.sampled_from([200, 499]),
)


def answered(rows: Sequence[Row], by: str = "model") -> CacheAnswer:
    with closing(open_memory()) as connection:
        ActivityTable(connection, None).add([structs.replace(each, id=number) for number, each in enumerate(rows, 1)])
        return cache_answer(connection, CacheQuestion("client" if by == "client" else "model", START))


def rate(rows: Sequence[Row], model: str) -> float | None:
    of = [one.tokens for one in rows if one.model == model]
    measured = [one for one in of if one.prompt_per_second > 0 and one.input_tokens >= 32]
    seconds = sum(one.input_tokens / one.prompt_per_second for one in measured)
    return sum(one.input_tokens for one in measured) / seconds if measured else None


@given(st.lists(ROWS, max_size=12))
def test_every_figure_is_what_its_definition_says(rows: list[Row]):
    found = answered(rows)
    counted = [
        (number, one)
        for number, one in enumerate(rows, 1)
        if one.timestamp.timestamp() >= START
        and one.resp_status_code == 200
        and min(one.tokens.cache_tokens, one.tokens.input_tokens) >= 0
        and one.tokens.cache_tokens + one.tokens.input_tokens > 0
    ]
    plain = [one for _, one in counted]
    assert found.total.requests == len(counted)
    assert found.total.again == sum(one.again_tokens for one in plain)
    for told in found.by:
        own, speed = [one for one in plain if one.model == told.name], rate(plain, told.name)
        cached, again = sum(one.tokens.cache_tokens for one in own), sum(one.again_tokens for one in own)
        prompt = cached + sum(one.tokens.input_tokens for one in own)
        assert (told.requests, told.prompt, told.cached, told.again) == (len(own), prompt, cached, again)
        if speed is None:
            assert told.saved_seconds is told.again_seconds is None
        else:
            assert told.saved_seconds == pytest.approx(cached / speed)
            assert told.again_seconds == pytest.approx(again / speed)
    assert {told.name for told in found.by} == {one.model for one in plain}
    assert found.reasons == Counter(one.cache_miss for one in plain if one.cache_miss)
    assert [miss.id for miss in found.misses] == [number for number, one in reversed(counted) if one.cache_miss]
    assert all(miss.why == f"words of {miss.miss}" for miss in found.misses)
    newest = {(one.model, one.conversation): number for number, one in counted}
    assert [each.id for each in found.sessions] == sorted(newest.values(), reverse=True)
    for each in found.sessions:
        tokens = rows[each.id - 1].tokens
        assert each.prompt == tokens.cache_tokens + tokens.input_tokens
        assert each.tokens == each.prompt + max(tokens.output_tokens, 0)
        assert each.requests == sum((one.model, one.conversation) == (each.model, each.conversation) for one in plain)


def test_by_client_and_without_rows():
    assert answered([]).total.saved_seconds is None
    tokens = Tokens(cache_tokens=5, input_tokens=5)
    assert [told.name for told in answered([row(tokens=tokens)], "client").by] == ["curl, m"]
