"""The official clients pointed at the program and given nothing else, embeddings, and what web pages may do."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from hollow_models import dense
from program import STARTER_QUESTION, Server, StartServer, http, one_engine
from random_models import write_random

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


def test_a_long_text_is_embedded_on_every_route_that_embeds(serve: StartServer, engine: str, tmp_path: Path) -> None:
    """llama-server computes a text for embeddings in one batch, and its own has 512 tokens."""
    folder = tmp_path / "models"
    folder.mkdir()
    sizes = {"layers": 1, "width": 64, "heads": 2, "kv_heads": 2, "head": 32, "forward": 128, "vocabulary": 2048}
    write_random(folder / "mean.gguf", dense(**sizes, weights="F32", keys={"pooling_type": 1}))
    write_random(tmp_path / "plain.gguf", dense(**sizes, weights="F32"))
    cmd = f"llama-server --embeddings --pooling mean -ub 4096 -b 4096 -m {tmp_path}/plain.gguf --port ${{PORT}} -t 1"
    config = tmp_path / "c.yaml"
    config.write_text(yaml.safe_dump({"models": {"configured": {"cmd": cmd, "engine": "auto"}}}))
    server = serve("--models-dir", str(folder), "--no-stores", "--config", str(config), engine=engine)
    listed = {entry["id"]: entry for entry in http(server, "GET", "/v1/models").json()["data"]}
    assert listed["mean"]["context_length"] == listed["mean"]["max_model_len"] == 8192
    text = "ab " * 700
    for model in ("mean", "configured"):
        answer = http(server, "POST", "/v1/embeddings", {"model": model, "input": text})
        assert answer.status == 200, answer.body
        assert answer.json()["usage"]["prompt_tokens"] > 3000
        assert len(http(server, "POST", "/api/embed", {"model": model, "input": text}).json()["embeddings"][0]) == 64
        assert http(server, "POST", "/api/show", {"model": model}).json()["capabilities"] == ["embedding"]


@one_engine
def test_the_one_model_tells_of_the_page_its_settings_and_the_proxy(single: StartServer) -> None:
    """`test_stand_in.py` has one without them."""
    server = single("-c", "256", "--ui-mcp-proxy", "--ui-config", '{"theme": "dark"}')
    props = http(server, "GET", "/props").json()
    assert (props["cors_proxy_enabled"], props["ui"], props["ui_settings"]) == (True, True, {"theme": "dark"})
    assert http(server, "GET", "/cors-proxy?url=http://127.0.0.1:1/").status == 502
