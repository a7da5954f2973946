"""A request while it is under way, and when it is over: its phase, its tokens, the parts of its time."""

from __future__ import annotations

import json
from itertools import pairwise

import msgspec
import pytest
from ended_requests import ended
from hypothesis import example, given
from hypothesis import strategies as st

from appliance.core.records.accounting import Usage
from appliance.core.records.activity import Tokens
from appliance.core.records.ended import MOST_PARTS, Step, parts_of, parts_text
from appliance.core.records.progress import (
    APART,
    MAX_CLIENT,
    SLOWEST_FIRST,
    AnswerSoFar,
    EngineSlot,
    Held,
    Phase,
    client_words,
    paired,
    progress_of,
    slowest,
)

HELD: tuple[Held, ...] = ("waiting", "downloading", "loading")
slots = st.builds(
    EngineSlot,
    id=st.integers(0, 8),
    is_processing=st.booleans(),
    id_task=st.integers(-1, 1000),
    n_prompt_tokens=st.none() | st.integers(0, 10_000),
)
answers = st.builds(AnswerSoFar, st.none() | st.floats(0.01, 1e4), st.integers(0, 1 << 20), st.binary(max_size=300))


def slot(decoded: int, held: int = 10) -> EngineSlot:
    told = {"id": 3, "is_processing": True, "id_task": 7, "n_prompt_tokens": held, "n_ctx": 8192}
    return msgspec.convert({**told, "next_token": [{"n_decoded": decoded}]}, EngineSlot)


def record(**told: object) -> bytes:
    return b"data: " + json.dumps({"choices": [{"delta": {"content": "x"}}], **told}).encode() + b"\n\n"


@given(st.none() | st.sampled_from(HELD), answers, st.none() | slots, st.booleans())
def test_what_holds_a_request_back_is_its_phase_whatever_else_is_known(
    held: Held | None, answer: AnswerSoFar, found: EngineSlot | None, streams: bool
):
    told = progress_of(held, answer, found, streams=streams)
    assert told.phase in SLOWEST_FIRST
    assert (told.phase == held) == (held is not None)
    assert told.tokens is None or told.tokens >= 0


@given(st.binary(max_size=200), st.integers(1, 50), st.integers(0, 10_000))
def test_tokens_are_estimated_by_the_size_where_all_records_are_alike(text: bytes, seen: int, before: int):
    one = record(pad=text.hex())
    answer = AnswerSoFar(2.0, (seen + before) * len(one), one * seen)
    told = progress_of(None, answer, streams=True)
    assert (told.phase, told.estimated) == ("answering", True)
    assert told.tokens == (seen + before if seen > 1 else 1)
    assert told.tokens_per_second == (told.tokens or 0) / 2


@given(st.integers(1, 10_000), st.integers(0, 9), st.binary(max_size=40).filter(lambda part: b"\n" not in part))
def test_an_engines_own_count_beats_every_other(count: int, before: int, torn: bytes):
    timed = record(timings={"predicted_n": count, "predicted_per_second": 12.5})
    latest = record() * before + timed + torn  # the next record has begun
    told = progress_of(None, AnswerSoFar(9.0, 12345, latest), slot(99), streams=True)
    assert (told.tokens, told.tokens_per_second, told.estimated) == (count, 12.5, False)


def test_a_slot_counts_where_the_stream_does_not():
    told = progress_of(None, AnswerSoFar(4.0, 999, record()), slot(20), streams=True)
    assert (told.phase, told.tokens, told.tokens_per_second, told.estimated, told.slot) == (
        "answering", 20, 5.0, False, 3,
    )  # fmt: skip
    late = progress_of(None, AnswerSoFar(4.0, 999, record()), slot(0), streams=True)
    assert (late.phase, late.tokens, late.estimated) == ("answering", 1, True)


@given(st.integers(0, 1000), st.integers(0, 1000))
def test_a_stream_tells_how_much_of_the_prompt_is_read(done: int, total: int):
    reading = record(prompt_progress={"total": total, "cache": 0, "processed": done})
    told = progress_of(None, AnswerSoFar(1.0, 100, reading), streams=True)
    assert (told.phase, told.prompt_processed, told.prompt_total) == ("prompt", done, total)
    told = progress_of(None, AnswerSoFar(1.0, 100, reading + record()), streams=True)
    assert (told.phase, told.prompt_processed) == ("answering", None)


def test_before_the_first_byte_only_a_slot_can_tell_reading_from_answering():
    nothing = AnswerSoFar()
    assert progress_of(None, nothing, streams=True).phase == "prompt"
    assert progress_of(None, nothing, streams=False).phase == "working"
    told = progress_of(None, nothing, slot(0, held=640), streams=False)
    assert (told.phase, told.prompt_processed, told.slot) == ("prompt", 640, 3)
    told = progress_of(None, nothing, slot(5), streams=False)
    assert (told.phase, told.tokens, told.tokens_per_second) == ("answering", 5, None)


@given(st.lists(st.sampled_from(SLOWEST_FIRST)))
def test_the_slowest_phase_is_the_one_furthest_from_an_answer(phases: list[Phase]):
    found = slowest(phases)
    assert (found is None) == (not phases)
    assert all(found is not None and SLOWEST_FIRST.index(found) <= SLOWEST_FIRST.index(one) for one in phases)


@example(
    [0.0, APART], [EngineSlot(id=1, id_task=7, is_processing=True), EngineSlot(id=0, id_task=8, is_processing=True)]
)
@given(st.lists(st.floats(0, 100), max_size=5), st.lists(slots, max_size=6))
def test_a_slot_is_given_to_a_request_only_where_that_is_sure(came: list[float], told: list[EngineSlot]):
    came.sort()
    found = paired(came, told)
    assert len(found) == len(came)
    busy = [each for each in told if each.is_processing]
    sure = len(busy) == len(came) and all(later - earlier >= APART for earlier, later in pairwise(came))
    tasks = [each.id_task for each in found if each is not None]
    assert len(tasks) == (len(came) if sure else 0)
    assert tasks == sorted(tasks)


@given(st.none() | st.text(max_size=80), st.text(max_size=20))
def test_a_client_is_named_in_one_short_line(agent: str | None, address: str):
    assert len(client_words(agent, address)) <= MAX_CLIENT + 2 + len(address)


def test_clients_by_their_user_agents():
    chrome = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/139.0.0.0 Safari/537.36"
    assert client_words(chrome, "10.0.0.1") == "Chrome, 10.0.0.1"
    assert client_words(f"{chrome} Edg/139.0", "10.0.0.1") == "Edge, 10.0.0.1"
    assert client_words("OpenAI/Python 1.99.1", "10.0.0.1") == "OpenAI/Python, 10.0.0.1"
    assert client_words(None, "10.0.0.1") == "10.0.0.1"


WHOLE = {"streaming": False, "first_token": 9.9}
LOAD = (Step("wait", 1.0, 6.0, load=(4.0, 1.0)),)
TOOLS = (Step("wait", 1.0, 1.0), Step("tool", 4.0, 5.0, "see"), Step("wait", 5.0, 5.0))
FALLS = (Step("fallback", 4.0, 5.0, "continued"), Step("wait", 5.0, 7.0, load=(2.0, 0.0)))


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({"first_token": 4.0}, "prompt 0-4, answer 4-10"),
        # of a whole answer the engine tells how long it wrote
        ({**WHOLE, "usage": Usage(tokens=Tokens(output_tokens=30), answer_ms=3000.0)}, "prompt 0-7, answer 7-10"),
        (WHOLE, "answer 0-10"),
        ({"steps": LOAD, "first_token": 8.0}, "wait 1-2, load 2-5, wait 5-6, prompt 6-8, answer 8-10"),
        # a request that ends in the queue has no answer
        ({"steps": (Step("wait", 1.0),), "status": 503}, "wait 1-10"),
        ({"known": False, "status": 404}, ""),
        ({"steps": TOOLS, "first_token": 2.0}, "prompt 1-2, answer 2-4, tool see 4-5, answer 5-10"),
        ({"steps": FALLS, "first_token": 2.0}, "prompt 0-2, answer 2-4, fallback continued 4-5, load 5-7, answer 7-10"),
    ],
)
def test_the_parts_of_a_request(facts: dict[str, object], told: str):
    """In seconds after the request's beginning."""
    parts = parts_of(ended(**facts))
    found = [f"{f'{part.name} {part.label}'.strip()} {part.began:g}-{part.ended:g}" for part in parts]
    assert ", ".join(found) == told


def test_the_row_has_the_parts_in_words_where_more_than_one_engine_was_asked():
    assert parts_text(ended(first_token=4.0)) == ""
    assert parts_text(ended(steps=LOAD)) == "wait 1000, load 3000, wait 1000, answer 4000"
    assert parts_text(ended(steps=FALLS)) == "answer 4000, fallback 1000, load 2000, answer 3000"
    odd = (Step("wait", 0.0, 0.0), Step("tool", 1.0, 2.5, "a, 9;b"))
    assert parts_text(ended(steps=odd)) == "answer 1000, tool a_ 9_b 1500"
    many = tuple(Step("tool", float(at), at + 1.0, "t") for at in range(2 * MOST_PARTS))
    assert parts_text(ended(steps=many, known=False)).count("tool t 1000") == MOST_PARTS


@pytest.mark.parametrize(
    ("facts", "milliseconds"),
    [
        ({"first_token": 0.25}, 250),
        ({}, -1),
        ({"first_token": 0.25, "status": 502}, -1),
        ({"first_token": 0.25, "usage": None}, -1),
        ({"streaming": False}, -1),
        ({"streaming": False, "usage": Usage(tokens=Tokens(), answer_ms=3000.0)}, 7000),
        ({"streaming": False, "usage": Usage(tokens=Tokens(), answer_ms=30000.0)}, 0),
        ({"streaming": False, "usage": Usage(tokens=Tokens(), answer_ms=0.0)}, 10000),
    ],
)
def test_the_first_token_of_a_good_answer(facts: dict[str, object], milliseconds: int):
    assert ended(**({"usage": Usage(tokens=Tokens())} | facts)).first_token_ms() == milliseconds
