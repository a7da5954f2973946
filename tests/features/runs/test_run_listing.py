"""The list of runs: filters, pages, and the beginnings of prompts."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw, Struct

from appliance.core.turns.messages import RunState
from appliance.errors import BadRequest
from appliance.features.runs.rules import MAX_PROMPT, STATES, RunQuery, parse_run_query, prompt_of, select_runs

MODELS = ("a", "b", "c")


class Listed(Struct, frozen=True):
    id: str
    model: str
    state: RunState


LISTS = st.lists(
    st.tuples(st.sampled_from(MODELS), st.sampled_from(STATES)), max_size=12
).map(lambda found: [Listed(f"run_{at}", *each) for at, each in enumerate(found)])  # fmt: skip
FILTERS = {name: st.lists(st.sampled_from(of), max_size=2) for name, of in (("model", MODELS), ("state", STATES))}
QUERIES = st.fixed_dictionaries({}, optional=FILTERS)
CONTENTS = st.text() | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": st.text()}), max_size=2)
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(("system", "user", "assistant", "tool")), "content": CONTENTS})
    | st.just({"role": "assistant", "content": ""}),
    max_size=5,
)


@given(LISTS, QUERIES, st.integers(1, 4))
def test_pages_together_are_the_list_in_its_order(runs: list[Listed], asked: dict[str, list[str]], limit: int):
    models, states = asked.get("model") or MODELS, asked.get("state") or STATES
    wanted = [run for run in runs if run.model in models and run.state in states]
    assert select_runs(parse_run_query(asked), runs) == wanted
    found: list[Listed] = []
    while True:
        page = {**asked, "limit": [str(limit)], "before": [found[-1].id if found else ""]}
        read = select_runs(parse_run_query(page), runs)
        assert len(read) <= limit
        found += read
        if len(read) < limit:
            break
    assert found == wanted


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [("state", "done", "completed, failed"), ("limit", "0", "at least 1"), ("limit", "x", "whole number")],
)
def test_a_parameter_that_cannot_be_used_is_named(name: str, text: str, told: str):
    with pytest.raises(BadRequest, match=told) as refused:
        parse_run_query({name: [text]})
    assert refused.value.param == name


def test_a_run_that_is_forgotten_does_not_begin_a_page():
    with pytest.raises(BadRequest, match="before: there is no run 'run_9'"):
        select_runs(RunQuery(before="run_9"), [Listed("run_1", "a", "failed")])


@given(MESSAGES)
def test_a_prompt_is_the_beginning_of_what_the_user_said_last(messages: list[dict[str, object]]):
    found = prompt_of([Raw(json.dumps(message).encode()) for message in messages])
    asked = [message["content"] for message in messages if message["role"] == "user"]
    assert len(found) <= MAX_PROMPT
    if not asked or not asked[-1]:
        assert found == ""
    elif isinstance(asked[-1], str):
        assert asked[-1].strip().startswith(found)
        assert bool(found) == bool(asked[-1].strip())


def test_of_a_question_in_parts_the_first_text_counts():
    parts = [{"type": "image_url", "image_url": {"url": "data:"}}, {"type": "text", "text": " What is this? "}]
    messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": "A cat."}]
    assert prompt_of([Raw(json.dumps(message).encode()) for message in messages]) == "What is this?"
