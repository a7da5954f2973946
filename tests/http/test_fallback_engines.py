"""Real engines and the starter model: one is killed in the middle of a story, and another one tells it to its end."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

import anthropic
import openai
import psutil
import pytest
import trio
from http_harness import CHAT, Answer, Appliance, OpenServer, model
from msgspec import structs

from appliance.core.bodies.sse import Decoder
from appliance.core.engines.machine import MachineLook
from appliance.engines.found import EMBEDDED, Engine, find_engine, list_engines

LENGTH = 600
"""Tokens: enough that an engine can be killed before it has said all of them."""
USER = [{"role": "user", "content": "Tell me a story."}]
REQUESTS = {
    CHAT: {"messages": USER, "max_tokens": LENGTH, "stream_options": {"include_usage": True}},
    "/v1/completions": {"prompt": "Once upon a time", "max_tokens": LENGTH},
    "/completion": {"prompt": "Once upon a time", "n_predict": LENGTH},
    "/v1/messages": {"messages": USER, "max_tokens": LENGTH},
    "/v1/responses": {"input": "Tell me a story.", "max_output_tokens": LENGTH},
}


class InOrder:
    """Engines in an order; one that failed goes to the end."""

    look: MachineLook | None = None

    def __init__(self, *engines: Engine) -> None:
        self.engines = [
            structs.replace(engine, seat=f"{engine.name}:{number}", args=("--threads", "1"))
            for number, engine in enumerate(engines)
        ]

    async def lacks(self, cards: tuple[str, ...]) -> str:
        await trio.lowlevel.checkpoint()
        return ""

    def choose(
        self, model: str = "", tried: Collection[str] = (), word: str = "", cards: tuple[str, ...] = ()
    ) -> Engine | None:
        return next((engine for engine in self.engines if engine.seat not in tried), None)

    def failed(self, engine: Engine, model: str, why: str) -> None:
        self.engines.remove(engine)
        self.engines.append(engine)

    def pardoned(self, seat: str, model: str) -> None:
        """They stay in their order."""

    async def check(self, engine: Engine) -> str:
        await trio.lowlevel.checkpoint()
        return ""


COMPILED = (pytest.mark.needs("llama-server"), pytest.mark.slow)


@pytest.fixture(
    params=["the same twice", *(pytest.param(f"{way} the embedded one", marks=COMPILED) for way in ("from", "to"))]
)
def engines(request: pytest.FixtureRequest) -> InOrder:
    """The embedded engine and a compiled one, or the embedded one twice."""
    embedded = find_engine(EMBEDDED)
    if request.param == "the same twice":
        return InOrder(embedded, embedded)
    pair = [embedded, next(engine for engine in list_engines() if engine.name != EMBEDDED)]
    return InOrder(*(pair if request.param == "from the embedded one" else reversed(pair)))


def kill(server: Appliance) -> None:
    status = server.fleet.known("starter")
    assert status is not None
    assert status.pid is not None
    psutil.Process(status.pid).kill()


def said(data: dict[str, object]) -> str:
    """What one record adds to the text."""
    for choice in data.get("choices", ()):  # pyright: ignore
        return choice.get("text") or choice.get("delta", {}).get("content") or ""
    delta = data.get("delta", "")
    if isinstance(delta, dict):
        return delta.get("text", "")
    return str(delta or data.get("content", ""))


def tokens_of(path: str, found: list[dict[str, object]]) -> int:
    last = json.loads(json.dumps(found[-1]))
    match path:
        case "/completion":
            return last["tokens_predicted"]
        case "/v1/messages":
            return found[-2]["usage"]["output_tokens"]  # pyright: ignore
        case "/v1/responses":
            return last["response"]["usage"]["output_tokens"]
        case _:
            return last["usage"]["completion_tokens"]


async def broken_off(server: Appliance, path: str, body: dict[str, object]) -> bytes:
    """A stream whose engine is killed after some records, to its end."""
    got = b""
    with trio.fail_after(60):
        async with server.connect() as client:
            await client.send("POST", path, json.dumps(body).encode())
            assert (await client.head()).status_code == 200
            while got.count(b"data: ") < 12:
                got += await client.data()
            kill(server)
            while data := await client.data():
                got += data
    return got


def records_of(stream: bytes) -> tuple[list[dict[str, object]], int]:
    """The records, and which one marks the place where it goes on."""
    found = [json.loads(event.data) for event in Decoder().feed(stream) if event.data != "[DONE]"]
    assert "error" not in found[-1], found[-1]
    [at] = [number for number, one in enumerate(found) if "appliance" in one]
    return found, at


@pytest.mark.parametrize("path", list(REQUESTS))
async def test_a_story_goes_on_where_it_broke_off(
    open_server: OpenServer, starter_model: Path, engines: InOrder, path: str
):
    body = REQUESTS[path] | {"model": "starter", "stream": True, "temperature": 0, "ignore_eos": True}
    async with open_server(chooser=engines, models=[model(starter_model, "starter")]) as server:
        got = await broken_off(server, path, body)
        found, at = records_of(got)
        first, rest = "".join(map(said, found[:at])), "".join(map(said, found[at:]))
        mark = found[at]["appliance"]["continued"]
        assert 0 < mark["after"] < LENGTH
        assert first
        assert rest
        assert not rest.startswith(first), "the second engine's echo of the first half was passed on"
        if path != "/v1/messages":  # ignore_eos is no member of Anthropic's
            assert tokens_of(path, found) == LENGTH
        again = await server.ask("POST", path, body, patience=60)
        whole = "".join(map(said, [json.loads(e.data) for e in Decoder().feed(again.body) if e.data != "[DONE]"]))
        assert (first + rest)[:40] == whole[:40]
        rows: Answer = await server.ask("GET", "/api/metrics/activity")
        noted = rows.json["data"][1]
        assert noted["metadata"]["fallback"].startswith("continued; from=")
        assert noted["tokens"]["output_tokens"] == tokens_of(path, found)


THINKS = """{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content.split('</think>')[-1] }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
<think>
{% endif %}"""
"""A template under which the model begins with a thought; the starter model never ends it."""


def thought(data: dict[str, object]) -> str:
    for choice in data.get("choices", ()):  # pyright: ignore
        return choice.get("delta", {}).get("reasoning_content") or ""
    delta = data.get("delta", "")
    if isinstance(delta, dict):
        return delta.get("thinking", "")
    return str(delta) if data.get("type") == "response.reasoning_text.delta" else ""


@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/v1/responses"])
async def test_a_thought_goes_on_where_it_broke_off(
    open_server: OpenServer, starter_model: Path, engines: InOrder, tmp_path: Path, path: str
):
    template = tmp_path / "thinks.jinja"
    template.write_text(THINKS)
    thinking = model(starter_model, "starter", args=("--chat-template-file", str(template)))
    body = REQUESTS[path] | {"model": "starter", "stream": True, "temperature": 0, "ignore_eos": True}
    async with open_server(chooser=engines, models=[thinking]) as server:
        got = await broken_off(server, path, body)
        found, at = records_of(got)
        first, rest = "".join(map(thought, found[:at])), "".join(map(thought, found[at:]))
        assert len(first) > 8
        assert len(rest) > 8
        assert not rest.startswith(first)
        assert got.count(b"event: content_block_start") == (path == "/v1/messages")
        assert got.count(b"event: response.output_item.added") == (path == "/v1/responses")


@pytest.mark.slow
async def test_the_official_clients_do_not_notice(open_server: OpenServer, starter_model: Path, engines: InOrder):
    texts: list[str] = []

    def with_openai(port: int, server: Appliance) -> None:
        with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="x", max_retries=0, timeout=60) as client:
            stream = client.chat.completions.create(
                model="starter",
                messages=USER,  # pyright: ignore
                max_tokens=LENGTH,
                stream=True,
                stream_options={"include_usage": True},
                extra_body={"ignore_eos": True},
            )
            parts: list[str] = []
            marks = 0
            usage = None
            for chunk in stream:
                marks += "appliance" in (chunk.model_extra or {})
                usage = chunk.usage or usage
                parts += [choice.delta.content or "" for choice in chunk.choices]
                if len(parts) == 12:
                    trio.from_thread.run_sync(kill, server)
            assert marks == 1
            assert usage is not None
            assert usage.completion_tokens == LENGTH
            texts.append("".join(parts))

    def with_anthropic(port: int, server: Appliance) -> None:
        with (
            anthropic.Anthropic(base_url=f"http://127.0.0.1:{port}", api_key="x", max_retries=0, timeout=60) as client,
            client.messages.stream(model="starter", max_tokens=LENGTH, messages=USER) as stream,  # pyright: ignore
        ):
            for number, _ in enumerate(stream.text_stream):
                if number == 2:
                    trio.from_thread.run_sync(kill, server)
            texts.append(stream.get_final_text())
            assert stream.get_final_message().usage.output_tokens > 3

    for client in (with_openai, with_anthropic):
        async with open_server(chooser=engines, models=[model(starter_model, "starter")]) as server:
            with trio.fail_after(90):
                await trio.to_thread.run_sync(client, server.port, server)
            row = (await server.ask("GET", "/api/metrics/activity")).json["data"][0]
            assert "error_msg" not in row
    assert all(len(text) > 40 for text in texts)
