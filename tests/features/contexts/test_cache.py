"""The prompts' cache: its figures by their definitions, the seats of conversations, and both over HTTP."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import pytest
from http_harness import CHAT, Appliance, chat
from hypothesis import given
from hypothesis import strategies as st
from kept_files import kept_of, kept_one
from msgspec import structs

from appliance.core.records.activity import Row, Tokens
from appliance.core.records.progress import EngineSlot
from appliance.errors import BadRequest
from appliance.features.contexts.core.cache import (
    CacheAnswer,
    CacheQuestion,
    CacheSession,
    parse_cache_question,
    seated,
)
from appliance.features.contexts.routes import cache_answer
from appliance.store.activity_schema import open_memory
from appliance.store.activity_table import ActivityTable

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


async def told(server: Appliance, query: str = "") -> dict[str, Any]:
    return (await server.good("GET", f"/api/cache?{query}")).json


async def asks(server: Appliance, model: str, *, headers: tuple[tuple[str, str], ...] = (), **body: object) -> None:
    cached = body.pop("cached", 0)
    await server.good("POST", CHAT, {**chat(model, cached=cached), **body}, headers)


async def test_reasons_figures_and_seats(server: Appliance) -> None:
    """`tests/core/records/test_cache_misses.py` has the reasons."""
    nothing = await told(server)
    assert set(nothing["total"].values()) == {"", 0, None}
    assert (nothing["by"], nothing["sessions"]) == ([], [])
    await asks(server, "alpha", prompt_cache_key="a")
    await asks(server, "alpha", session_id="a", cached=1000)
    await asks(server, "alpha", headers=(("X-Session-ID", "b"),))
    await asks(server, "alpha", headers=(("X-Conversation-Id", "a"),), messages=[{"role": "user", "content": "ho"}])
    await asks(server, "alpha", prompt_cache_key="a", cache_prompt=False)
    await asks(server, "alpha", user="a", stream=True)
    await asks(server, "alpha", prompt_cache_key=["a"], headers=(("User-Agent", "other/1.0"),))
    found = await told(server, "span=1h&by=model")
    rows = list(reversed(await server.rows()))
    assert [row["cache_miss"] for row in rows] == ["loaded", "", "new", "others", "off", "unknown", "unknown"]
    assert [row["conversation"] for row in rows] == ["a", "a", "b", "a", "a", "", ""]
    prompts = [row["tokens"]["input_tokens"] + row["tokens"]["cache_tokens"] for row in rows]
    assert rows[1]["metadata"]["prompt_cache"] == f"{prompts[1]} of {prompts[1]} prompt tokens came from the cache"
    assert [row["again_tokens"] for row in rows] == [0, 0, 0, *prompts[3:5], 0, 0]
    total = found["total"]
    assert (total["requests"], total["prompt"], total["cached"]) == (7, sum(prompts), prompts[1])
    assert found["by"] == [{**total, "name": "alpha"}]
    assert found["reasons"] == {"unknown": 2, "loaded": 1, "new": 1, "off": 1, "others": 1}
    told_of = [(row["id"], row["metadata"]["prompt_cache"]) for row in reversed(rows) if row["cache_miss"]]
    assert [(miss["id"], miss["why"]) for miss in found["misses"]] == told_of
    sessions = {(each["conversation"], each["client"]): each["requests"] for each in found["sessions"]}
    here, other = "127.0.0.1", "other/1.0, 127.0.0.1"
    assert sessions == {("a", here): 4, ("b", here): 1, ("", here): 1, ("", other): 1}


async def test_the_slot_of_a_conversation_is_told_where_it_is_sure(server: Appliance) -> None:
    await asks(server, "alpha", prompt_cache_key="first")
    await asks(server, "alpha", prompt_cache_key="longer", messages=[{"role": "user", "content": "hi " * 50}])
    found = await told(server)
    assert [(each["conversation"], each["slot"]) for each in found["sessions"]] == [("longer", 0), ("first", None)]
    await server.ask("POST", "/models/unload", {"model": "alpha", "wait": True})
    assert [each["slot"] for each in (await told(server))["sessions"]] == [None, None]


async def test_a_wrong_question_is_refused_with_its_parameter(server: Appliance) -> None:
    for query, name in (("by=day", "by"), ("span=long", "span")):
        assert (await server.refuses(400, None, "GET", f"/api/cache?{query}")).error["param"] == name


async def test_kept_contexts_are_listed_and_removed_by_model_or_alias(server: Appliance) -> None:
    contexts = kept_of(server.opened.owners.fleet)
    one, _ = [await kept_one(contexts, model=model) for model in ("alpha", "beta")]
    await contexts.used(one.name, 30)
    listed = (await told(server))["kept"]
    assert [each["model"] for each in listed] == ["alpha", "beta"]
    assert (listed[0]["tokens"], listed[0]["size"], listed[0]["saved_tokens"]) == (one.tokens, one.size, 30)
    assert listed[0]["token_seconds"] == one.token_seconds
    assert listed[0]["used"] >= listed[1]["used"] >= listed[1]["made"]
    folders = {each["kind"]: each for each in (await server.ask("GET", "/api/disk")).json["folders"]}
    assert folders["contexts"]["path"] == str(contexts.folder)
    assert folders["contexts"]["bytes"] >= 2 * one.size
    gone = {"contexts": 1, "size": one.size}
    for query, answer in (("?model=al", gone), ("?model=al", {"contexts": 0, "size": 0}), ("", gone)):
        assert (await server.good("DELETE", f"/api/cache/kept{query}")).json == answer
    assert (await told(server))["kept"] == []
