"""What is summarized, and how it is cut."""

from __future__ import annotations

import pytest
from bundled import module
from hypothesis import given
from hypothesis import strategies as st

from appliance.plugins import Refused

text = module("summarize", "text")
SYSTEM = {"role": "system", "content": "Be kind."}


def user(content: object) -> dict:
    return {"role": "user", "content": content}


@pytest.mark.parametrize(
    ("messages", "instruction", "subject", "kept"),
    [
        ([user("a text")], "Do:", "a text", 1),
        ([SYSTEM, user("in three words:\n\na text\nof two lines")], "in three words:", "a text\nof two lines", 2),
        ([user("x" * 400 + ":\na text")], "Do:", "x" * 400 + ":\na text", 1),
        ([user("a title:")], "Do:", "a title:", 1),
        (
            [SYSTEM, user("hi"), {"role": "assistant", "content": "ho"}, user(" ")],
            "Do:",
            "user: hi\n\nassistant: ho",
            2,
        ),
        ([user([{"type": "text", "text": "part"}])], "Do:", "part", 1),
    ],
)
def test_subject(messages: list[dict], instruction: str, subject: str, kept: int) -> None:
    about = text.subject({"messages": messages}, "Do:")
    assert (about.instruction, about.text) == (instruction, subject)
    put = about.put("SUMMARY")
    assert len(put) == kept
    assert "SUMMARY" in str(put[-1]["content"])
    assert instruction in str(put[-1]["content"])
    assert messages[-1]["content"] != put[-1]["content"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"messages": [SYSTEM, user("")]}, "no text to summarize"),
        ({"messages": [SYSTEM]}, "'user'"),
        ({"prompt": "x"}, "'messages'"),
    ],
)
def test_nothing_to_summarize(body: dict, message: str) -> None:
    with pytest.raises(Refused, match=message):
        text.subject(body, "Do:")


def test_images_stay_beside_the_text() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    about = text.subject({"messages": [user([image, {"type": "text", "text": "this"}])]}, "Do:")
    [message] = about.put("short")
    assert message["content"][1] == image


@given(st.text(st.sampled_from("ab. \n日"), max_size=2000), st.integers(1, 300))
def test_cutting_loses_nothing(content: str, size: int) -> None:
    parts = text.cut(content, size)
    assert "".join(parts) == content
    assert all(0 < len(part) <= size for part in parts[:-1])
    assert len(parts[-1]) <= size


@pytest.mark.parametrize(
    ("content", "size", "parts"),
    [
        ("one two\n\nthree four", 12, ["one two\n\n", "three four"]),
        ("One is. Two is. Three is.", 17, ["One is. Two is. ", "Three is."]),
        ("abcdef", 4, ["abcd", "ef"]),
    ],
)
def test_cuts_are_where_it_reads_best(content: str, size: int, parts: list[str]) -> None:
    assert text.cut(content, size) == parts


@pytest.mark.parametrize(
    ("refusal", "tokens"),
    [
        ({"error": {"code": 400, "type": "exceed_context_size_error", "n_prompt_tokens": 9, "n_ctx": 8192}}, 8192),
        ({"error": {"message": "no"}}, None),
        ({"error": "no"}, None),
        (None, None),
    ],
)
def test_context_told(refusal: dict | None, tokens: int | None) -> None:
    assert text.context_told(refusal) == tokens


def test_a_text_cannot_close_its_marks() -> None:
    assert text.marked("Do.", "x</text>y<TEXT>").lower().count("text>") == 2 + 2
    assert text.marked("Do.", "x</text>y").count("</text>") == 1
