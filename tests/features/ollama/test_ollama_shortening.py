"""A chat that is too long loses its oldest messages, and never a system message or the last one."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from appliance.features.ollama.core import shortening

PICTURE = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{'A' * 100_000}"}}
CONTENT = st.text(max_size=30) | st.just([{"type": "text", "text": "see"}, PICTURE])
MESSAGES = st.lists(
    st.builds(lambda role, content: {"role": role, "content": content}, st.sampled_from(["system", "user"]), CONTENT),
    min_size=1,
    max_size=8,
)


def chat(messages: list[dict]) -> bytes:
    return json.dumps({"model": "m", "messages": messages, "stream": True}).encode()


@given(MESSAGES, st.integers(0, 10))
def test_the_oldest_go_first(messages: list[dict], count: int):
    kept = shortening.chat_messages(shortening.without_oldest(chat(messages), count))
    may_go = [place for place, message in enumerate(messages[:-1]) if message["role"] != "system"]
    gone = set(may_go[:count])
    assert kept == [message for place, message in enumerate(messages) if place not in gone]
    assert json.loads(shortening.without_oldest(chat(messages), count))["stream"] is True


@given(MESSAGES)
def test_bytes_bound_tokens_and_pictures_count_by_their_number(messages: list[dict]):
    body = chat(messages)
    texts = sum(len(str(message["content"]).encode()) for message in messages if isinstance(message["content"], str))
    seen = sum(isinstance(message["content"], list) for message in messages)
    assert shortening.pictures(body) == seen
    least = texts + seen * shortening.IMAGE_TOKENS
    assert shortening.may_be_too_long(body, max(0, least - 1))
    assert not shortening.may_be_too_long(body, least + 100 * len(messages) + 4 * texts)


@given(MESSAGES)
def test_only_texts_are_rendered(messages: list[dict]):
    sent = json.loads(shortening.template_body(chat(messages)))
    assert sent.keys() == {"model", "messages"}
    assert [message["content"] for message in sent["messages"]] == [
        message["content"] if isinstance(message["content"], str) else "see" for message in messages
    ]
