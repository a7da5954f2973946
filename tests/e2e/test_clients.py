"""The official clients, pointed at the program and given nothing else."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest
from program import STARTER_QUESTION, Server, http

if TYPE_CHECKING:  # and in the fixtures: they take two seconds of each process that collects the tests
    import anthropic
    import openai

QUESTION = [{"role": "user", "content": STARTER_QUESTION}]


@pytest.fixture
def openai_client(server: Server) -> Generator[openai.OpenAI]:
    import openai

    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture
def anthropic_client(server: Server) -> Generator[anthropic.Anthropic]:
    import anthropic

    with anthropic.Anthropic(base_url=server.url, api_key="unused", max_retries=0, timeout=60) as client:
        yield client


def test_openai_chat_whole_and_streamed_say_the_same(openai_client: openai.OpenAI) -> None:
    whole = openai_client.chat.completions.create(model="starter", messages=QUESTION, temperature=0)  # type: ignore[arg-type]
    assert whole.choices[0].finish_reason == "stop"
    text = whole.choices[0].message.content
    assert text
    assert len(text.split()) >= 3
    stream = openai_client.chat.completions.create(model="starter", messages=QUESTION, temperature=0, stream=True)  # type: ignore[arg-type]
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == text
    assert len(chunks) > 3
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"


def test_openai_responses(openai_client: openai.OpenAI) -> None:
    whole = openai_client.responses.create(model="starter", input=STARTER_QUESTION, temperature=0)
    assert whole.status == "completed"
    assert whole.output_text
    with openai_client.responses.create(model="starter", input=STARTER_QUESTION, temperature=0, stream=True) as stream:
        events = list(stream)
    assert events[-1].type == "response.completed"
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole.output_text


def test_openai_completions(openai_client: openai.OpenAI) -> None:
    completion = openai_client.completions.create(model="starter", prompt="Hello", max_tokens=5, temperature=0)
    assert completion.choices[0].finish_reason in ("length", "stop")
    assert 0 < completion.usage.completion_tokens <= 5


def test_anthropic_whole_and_streamed_say_the_same(anthropic_client: anthropic.Anthropic) -> None:
    whole = anthropic_client.messages.create(model="starter", max_tokens=200, messages=QUESTION)  # type: ignore[arg-type]
    assert whole.stop_reason == "end_turn"
    block = whole.content[0]
    assert block.type == "text"
    assert len(block.text.split()) >= 3
    with anthropic_client.messages.stream(model="starter", max_tokens=200, messages=QUESTION) as stream:  # type: ignore[arg-type]
        assert "".join(stream.text_stream) == block.text
        assert stream.get_final_message().stop_reason == "end_turn"


def test_the_page_is_there(server: Server) -> None:
    answer = http(server, "GET", "/", Accept="text/html")
    assert answer.status == 200
    assert b"<!doctype html>" in answer.body


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/completion", "/api/chat"])
def test_the_activity_log_explains_what_came_from_the_prompt_cache(server: Server, path: str) -> None:
    """As the real engines count it: the same question again is read from the cache, but for its last token or so."""
    words = f"{path} " + " ".join(str(number) for number in range(60))
    body = {"model": "starter", "max_tokens": 2, "n_predict": 2, "temperature": 0, "stream": False}
    asked = {**body, "messages": [{"role": "user", "content": words}], "prompt": words}
    told: list[str] = []
    for _ in range(2):
        assert http(server, "POST", path, asked).status == 200
        told.append(http(server, "GET", "/api/metrics/activity?limit=1").json()["data"][0]["metadata"]["prompt_cache"])
    (first, of), (again, of_again) = (
        map(int, words.split(" prompt tokens came from the cache")[0].split(" of ")) for words in told
    )
    assert of == of_again > 60
    assert first < of / 2, told
    reasons = "differs from token", "had nothing that begins like it", "the model was loaded", "has been loaded"
    assert any(reason in told[0] for reason in reasons), told
    assert of - 16 <= again < of, told
    assert told[1].endswith("came from the cache")
