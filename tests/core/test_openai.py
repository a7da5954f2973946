"""OpenAI's chat shapes: what is written is read again, and errors give their words in every form."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from appliance.core.openai import QUOTED, ChatMessage, ToolCall, error_text, tool_call

TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
WRAPPED = st.recursive(
    TEXTS.flatmap(lambda text: st.sampled_from(((text, text), (text, {"message": text, "code": 400})))),
    lambda inner: inner.map(lambda pair: (pair[0], {"error": pair[1], "message": "outer"})),
    max_leaves=3,
)


@given(WRAPPED)
def test_the_words_of_an_error_are_found_in_every_form(given_: tuple[str, object]):
    text, error = given_
    assert error_text(msgspec.json.encode(error)) == text


@given(st.binary(max_size=2 * QUOTED))
def test_any_other_error_is_quoted(body: bytes):
    assert len(error_text(body)) <= QUOTED
    assert error_text(b"<" + body).startswith("<")


def test_an_error_that_is_nested_too_deeply_is_quoted():
    assert error_text(b'{"error":' * 100_000) == ('{"error":' * QUOTED)[:QUOTED]


@given(st.builds(tool_call, TEXTS, TEXTS, TEXTS, st.none() | st.integers(0, 9)), st.none() | TEXTS, TEXTS)
def test_a_message_is_read_as_it_was_written(call: ToolCall, content: str | None, thoughts: str):
    message = ChatMessage(role="assistant", content=content, reasoning_content=thoughts or None, tool_calls=[call])
    written = msgspec.json.encode(message)
    assert (b'"content":null' in written) == (content is None)
    read = msgspec.json.decode(written, type=ChatMessage)
    assert (read.text, read.thoughts, read.tool_calls) == (content or "", thoughts, [call])
    assert call.type == "function"


@given(st.dictionaries(TEXTS, TEXTS), st.lists(st.none() | TEXTS))
def test_parts_of_a_text_and_arguments_that_are_an_object_are_read(arguments: dict[str, str], parts: list[str | None]):
    body = msgspec.json.encode(
        {
            "content": [{"type": "text", "text": text} for text in parts],
            "tool_calls": [{"function": {"name": "f", "arguments": arguments}}],
        }
    )
    read = msgspec.json.decode(body, type=ChatMessage)
    assert read.text == "".join(text or "" for text in parts)
    [call] = read.tool_calls or ()
    assert msgspec.json.decode(call.function.argument_text) == arguments
