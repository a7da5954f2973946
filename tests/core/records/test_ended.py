"""A request that is over: the parts of its time, and when its first token was there."""

from __future__ import annotations

import pytest
from ended_requests import ended

from appliance.core.records.accounting import Usage
from appliance.core.records.ended import MOST_PARTS, Step, parts_of, parts_text
from appliance.wire import Tokens

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
    ],
)
def test_the_first_token_of_a_good_answer(facts: dict[str, object], milliseconds: int):
    assert ended(**({"usage": Usage(tokens=Tokens())} | facts)).first_token_ms() == milliseconds
