"""The beginning that two bodies share: of messages and long texts, whatever the API, and without Anthropic's marks."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.core.bodies.blocks import BLOCK, HEAD, LONGEST_MESSAGE, Prefix, prefix_of

WORDS = st.lists(
    st.sampled_from(["a", "b", 'quoted "text"', "line\nline", "größer", "x" * LONGEST_MESSAGE]), max_size=8
)
SYSTEM = "You are a coding agent. " * 100
MARK = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}


def body(**members: Any) -> bytes:
    return json.dumps({"model": "m", "stream": True, "temperature": 0.5, **members}).encode()


def said(*texts: str) -> list[dict[str, str]]:
    return [{"role": "user" if at % 2 == 0 else "assistant", "content": text} for at, text in enumerate(texts)]


def size(*members: Any) -> int:
    return sum(len(json.dumps(member)) for member in members)


@given(WORDS, WORDS, st.sampled_from(["messages", "input"]))
def test_two_conversations_share_the_messages_that_they_begin_with(
    first: list[str], second: list[str], member: str
) -> None:
    """Of a long message they also share the whole blocks before the first difference."""
    one, other = (prefix_of(body(**{member: said(*texts)})) for texts in (first, second))
    alike = next(
        (at for at, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(map(len, (first, second)))
    )
    expected = size(*said(*first)[:alike])
    assert one.shared(other) == other.shared(one) == expected
    assert one.size == size(*said(*first))
    assert one.shared(one) == one.size


@given(WORDS, WORDS, st.sampled_from(["messages", "input"]), st.sampled_from([{}, {"tools": ["look"]}]))
def test_an_edit_is_at_the_first_message_that_is_another(
    before: list[str], after: list[str], member: str, head: dict[str, Any]
) -> None:
    """A conversation that goes on, or goes back to an earlier message, was not edited."""
    last, prompt = (prefix_of(body(**{member: said(*texts)}, **head)) for texts in (before, after))
    edited = [at for at, (a, b) in enumerate(zip(before, after, strict=False), 1) if a != b]
    assert prompt.edited_since(last) == (edited[0] if edited else None)
    if before and after:
        assert prompt.edited_since(prefix_of(body(**{member: said(*before)}, tools=["find"]))) in (HEAD, 1)
    assert Prefix(prompt.digests, prompt.ends).edited_since(last) is None, "a file does not tell messages"
    texts = (prefix_of(body(prompt=" ".join(texts))) for texts in (before, after))
    assert next(texts).edited_since(next(texts)) is None, "a text has no messages"


@given(st.integers(0, 5 * BLOCK), st.integers(0, 5 * BLOCK), st.sampled_from(["prompt", "message", "input"]))
def test_a_long_text_that_differs_late_shares_its_whole_blocks(length: int, at: int, kind: str) -> None:
    def whole(text: str) -> Prefix:
        return prefix_of(body(messages=said(text)) if kind == "message" else body(**{kind: text}))

    at = min(at, length)
    text = "".join(chr(97 + place % 23) for place in range(length))
    edited = f"{text[:at]}#{text[at + 1 :]}"
    shared = whole(text).shared(whole(edited))
    if text == edited:
        assert shared == whole(text).size
    else:
        assert shared <= at + size(*said(""))
        assert shared % BLOCK == 0
        assert shared >= at - BLOCK or (kind != "prompt" and size(*said(text)) <= LONGEST_MESSAGE)


@pytest.mark.parametrize(
    "member", ["tools", "system", "instructions", "chat_template_kwargs", "reasoning_effort", "lora"]
)
def test_a_prompt_with_another_beginning_shares_nothing(member: str) -> None:
    plain, other = (prefix_of(body(messages=said("hello"), **{member: value})) for value in ("one", "two"))
    assert plain.shared(other) == 0
    assert plain.shared(prefix_of(body(messages=said("hello", "yes"), **{member: "one"}))) == plain.size


def test_members_that_never_reach_the_prompt_do_not_count() -> None:
    assert prefix_of(body(messages=said("hello"), seed=7, max_tokens=5)) == prefix_of(body(messages=said("hello")))


def block(text: str, *, marked: bool, first: bool = False) -> dict[str, Any]:
    plain = {"type": "text", "text": text}
    return (MARK | plain if first else plain | MARK) if marked else plain


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=6))
def test_anthropic_marks_change_nothing(marks: list[tuple[bool, bool]]) -> None:
    def request(marks: list[tuple[bool, bool]]) -> bytes:
        turns = [{"role": "user", "content": [block(f"t{at}", marked=m, first=f)]} for at, (m, f) in enumerate(marks)]
        return body(system=[block(SYSTEM, marked=marks[0][0])], tools=[{"name": "ls"} | MARK], messages=turns)

    assert prefix_of(request(marks)) == prefix_of(request([(False, False)] * len(marks)))


def test_text_that_speaks_of_a_mark_is_text() -> None:
    one, other = (body(messages=said(f'set "cache_control": {value} there')) for value in ("null", "{}"))
    assert prefix_of(one).shared(prefix_of(other)) == 0


def test_the_checksum_in_claude_codes_system_prompt_does_not_count() -> None:
    header = "x-anthropic-billing-header: cc_version=2.1.37.0d9; cc_entrypoint=cli; cch={};"
    one, other, third = (
        prefix_of(body(system=[{"type": "text", "text": text}, {"type": "text", "text": SYSTEM}], messages=said("hi")))
        for text in (header.format("fa690"), header.format("1c8b4"), header.format("fa690").replace("cli", "sdk"))
    )
    assert one == other
    assert one.shared(third) == 0


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"7", b'"text"', b"{}", b'{"messages": 7}', b'{"messages": null}', b"\xff{", b"[" * 9999],
)
def test_a_body_without_a_prompt_is_empty(content: bytes) -> None:
    found = prefix_of(content)
    assert found == Prefix()
    assert found.size == found.shared(prefix_of(body(prompt="text"))) == 0


@given(st.binary(max_size=300))
def test_any_bytes_have_a_prefix(content: bytes) -> None:
    assert prefix_of(content).shared(prefix_of(body(prompt="text"))) == 0


def test_digests_are_the_same_in_every_process() -> None:
    """Files of kept contexts carry them: with other digests, all kept contexts are lost to an update."""
    found = prefix_of(b'{"system": "be brief", "messages": [{"role":"user","content":"hello"}]}')
    assert [each.hex() for each in found.digests] == ["ba113b93228ac058", "41ee83b1e725976b"]
    assert found.ends == (10, 43)
