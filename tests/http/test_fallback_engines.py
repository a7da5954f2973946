"""Real engines and the starter model: one is killed in the middle of a story, and another one tells it to its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fleet_harness import InOrder
from http_harness import CHAT, Answer, Appliance, OpenServer, model
from msgspec import structs
from slow import one_of
from test_fallback import records, said

from appliance.core.engine import EMBEDDED
from appliance.features.engines.found import find_engine, list_engines

LENGTH = 600
"""Tokens: enough that an engine can be killed before it has said all of them."""
ENDLESS = ("--ignore-eos",)
"""An option of the engine, and not a member of the request, which Anthropic's requests do not have."""
USER = [{"role": "user", "content": "Tell me a story."}]
REQUESTS = {
    CHAT: {"messages": USER, "max_tokens": LENGTH, "stream_options": {"include_usage": True}},
    "/v1/completions": {"prompt": "Once upon a time", "max_tokens": LENGTH},
    "/completion": {"prompt": "Once upon a time", "n_predict": LENGTH},
    "/v1/messages": {"messages": USER, "max_tokens": LENGTH},
    "/v1/responses": {"input": "Tell me a story.", "max_output_tokens": LENGTH},
}


COMPILED = (pytest.mark.needs("llama-server"), pytest.mark.slow)


@pytest.fixture(
    params=["the same twice", *(pytest.param(f"{way} the embedded one", marks=COMPILED) for way in ("from", "to"))]
)
def engines(request: pytest.FixtureRequest) -> InOrder:
    """The embedded engine and a compiled one, or the embedded one twice."""
    pair = [find_engine(EMBEDDED)] * 2
    if request.param != "the same twice":
        pair[1] = next(engine for engine in list_engines() if engine.name != EMBEDDED)
    if request.param == "to the embedded one":
        pair.reverse()
    seated = [
        structs.replace(engine, seat=f"{engine.name}:{number}", args=("--threads", "1"))
        for number, engine in enumerate(pair)
    ]
    return InOrder(*seated)


def tokens_of(path: str, found: list[dict[str, Any]]) -> int:
    last = found[-1]
    match path:
        case "/completion":
            return last["tokens_predicted"]
        case "/v1/messages":
            return found[-2]["usage"]["output_tokens"]
        case "/v1/responses":
            return last["response"]["usage"]["output_tokens"]
        case _:
            return last["usage"]["completion_tokens"]


async def broken_off(server: Appliance, path: str, body: dict[str, object]) -> tuple[bytes, list[dict[str, Any]], int]:
    """A stream whose engine is killed after some records: its bytes, its records, and which one marks the break."""
    async with server.begun(body, path) as client:
        got = await client.until(b"data: ", 12)
        server.process("starter").kill()
        got += await client.rest()
    found = records(Answer(200, [], got, cut=False))
    assert "error" not in found[-1], found[-1]
    [at] = [number for number, one in enumerate(found) if "appliance" in one]
    return got, found, at


@pytest.mark.parametrize("path", one_of(REQUESTS))
async def test_a_story_goes_on_where_it_broke_off(
    open_server: OpenServer, starter_model: Path, engines: InOrder, path: str
):
    body = REQUESTS[path] | {"model": "starter", "stream": True, "temperature": 0}
    async with open_server(chooser=engines, models=[model(starter_model, "starter", args=ENDLESS)]) as server:
        _, found, at = await broken_off(server, path, body)
        first, rest = "".join(map(said, found[:at])), "".join(map(said, found[at:]))
        mark = found[at]["appliance"]["continued"]
        assert 0 < mark["after"] < LENGTH
        assert first
        assert rest
        assert not rest.startswith(first), "the second engine's echo of the first half was passed on"
        assert tokens_of(path, found) == LENGTH
        again = await server.ask("POST", path, body, patience=60)
        whole = "".join(map(said, records(again)))
        assert (first + rest)[:40] == whole[:40]
        noted = (await server.rows())[1]
        assert noted["metadata"]["fallback"].startswith("continued; from=")
        assert noted["tokens"]["output_tokens"] == tokens_of(path, found)


THINKS = """{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content.split('</think>')[-1] }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
<think>
{% endif %}"""
"""A template under which the model begins with a thought; the starter model never ends it."""


def thought(data: dict[str, Any]) -> str:
    for choice in data.get("choices", ()):
        return choice.get("delta", {}).get("reasoning_content") or ""
    delta = data.get("delta", "")
    if isinstance(delta, dict):
        return delta.get("thinking", "")
    return str(delta) if data.get("type") == "response.reasoning_text.delta" else ""


@pytest.mark.parametrize("path", one_of([CHAT, "/v1/messages", "/v1/responses"]))
async def test_a_thought_goes_on_where_it_broke_off(
    open_server: OpenServer, starter_model: Path, engines: InOrder, tmp_path: Path, path: str
):
    template = tmp_path / "thinks.jinja"
    template.write_text(THINKS)
    thinking = model(starter_model, "starter", args=(*ENDLESS, "--chat-template-file", str(template)))
    body = REQUESTS[path] | {"model": "starter", "stream": True, "temperature": 0}
    async with open_server(chooser=engines, models=[thinking]) as server:
        got, found, at = await broken_off(server, path, body)
        first, rest = "".join(map(thought, found[:at])), "".join(map(thought, found[at:]))
        assert len(first) > 8
        assert len(rest) > 8
        assert not rest.startswith(first)
        assert got.count(b"event: content_block_start") == (path == "/v1/messages")
        assert got.count(b"event: response.output_item.added") == (path == "/v1/responses")
