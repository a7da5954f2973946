"""The Responses API on real engines, and with OpenAI's own client in a process of its own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import sdk_types
import trio
from chat_templates import write_model
from fleet_harness import InOrder
from http_harness import Appliance, OpenServer, model
from msgspec import structs

from appliance.core.engine import EMBEDDED
from appliance.features.embedded import available
from appliance.features.engines.found import find_engine

pytestmark = pytest.mark.skipif(not available(), reason="the wheel xllamacpp is not installed")
PATH = "/v1/responses"
SWITCH = {
    "type": "object",
    "properties": {"on": {"type": "boolean"}},
    "required": ["on"],
    "additionalProperties": False,
}
PATCH = {"type": "custom", "name": "patch"}
TOOL = {"type": "function", "name": "switch", "description": "d", "parameters": SWITCH, "strict": True}


@pytest.fixture
def real() -> InOrder:
    """The embedded engine with one thread."""
    return InOrder(structs.replace(find_engine(EMBEDDED), seat="cpu", args=("--threads", "1")))


async def test_the_first_turn_of_codex_on_a_template_with_one_system_message(
    open_server: OpenServer, real: InOrder, tmp_path: Path
):
    def said(role: str, text: str) -> dict[str, object]:
        return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}

    asks = {
        "model": "alpha",
        "instructions": "You are a coding agent.",
        "input": [said("developer", "<permissions/>"), said("user", "<environment/>"), said("user", "hi")],
        "tools": [{"type": "web_search"}, {"type": "custom", "name": "apply_patch", "format": {"type": "text"}}],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "0192",
        "max_output_tokens": 4,
        "stream": True,
    }
    file = write_model(tmp_path, "one-system-first")
    async with open_server(chooser=real, models=[model(file, "alpha")]) as server:
        answer = await server.good("POST", PATH, asks, patience=60)
        last = sdk_types.events(answer.body)[-1]
        assert last.response.usage.output_tokens == 4
        whole = sdk_types.whole((await server.good("POST", PATH, {**asks, "stream": False})).body)
        assert whole.usage.input_tokens_details.cached_tokens > 0
        assert whole.usage.input_tokens == last.response.usage.input_tokens
        counted = await server.good("POST", f"{PATH}/input_tokens", asks)
        assert counted.json["input_tokens"] == whole.usage.input_tokens
        long = await server.ask("POST", PATH, {**asks, "stream": False, "input": "t1 " * 20_000}, patience=60)
        assert (long.status, long.error["code"]) == (400, "context_length_exceeded")


async def test_a_real_engine_reads_calls_and_results_of_tools(open_server: OpenServer, real: InOrder, tmp_path: Path):
    """A call and its result are in its prompt; the model of the tests is too silly to call a tool itself."""
    async with open_server(chooser=real, models=[model(write_model(tmp_path, "one-system-first"), "alpha")]) as server:
        asks: dict[str, Any] = {"model": "alpha", "instructions": "i", "tools": [TOOL, PATCH], "max_output_tokens": 3}
        items: list[Any] = [
            {"role": "user", "content": "hi"},
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"type": "function_call", "call_id": "c1", "name": "switch", "arguments": '{"on":true}'},
            {"type": "function_call_output", "call_id": "c1", "output": "it is on"},
            {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": "+a\n"},
            {"type": "custom_tool_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "done"}]},
        ]
        counts = []
        for upto in (1, 4, 6):
            body = {**asks, "input": items[:upto]}
            counts.append((await server.good("POST", f"{PATH}/input_tokens", body)).json["input_tokens"])
        assert counts[0] < counts[1] < counts[2]
        for choice in ("auto", {"type": "function", "name": "switch"}):
            answer = await server.good("POST", PATH, {**asks, "input": items, "tool_choice": choice})
            assert sdk_types.whole(answer.body).usage.output_tokens == 3


CLIENT = """
import sys, typing
import openai, pydantic

class Switch(pydantic.BaseModel):
    on: bool
    colour: typing.Literal["red", "green"]

with openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="-", max_retries=0, timeout=60) as client:
    asked = dict(model="alpha", temperature=0, max_output_tokens=12)
    whole = client.responses.create(input="hi", **asked)
    with client.responses.create(input="hi", stream=True, **asked) as events:
        told = list(events)
    said = "".join(one.delta for one in told if one.type == "response.output_text.delta")
    assert said == whole.output_text == told[-1].response.output_text != "", (said, whole)
    assert whole.status == "incomplete", whole.status
    with client.responses.stream(model="alpha", input="hi", max_output_tokens=100, text_format=Switch) as stream:
        for _ in stream:
            pass
        streamed = stream.get_final_response().output_parsed
    parsed = client.responses.parse(model="alpha", input="hi", max_output_tokens=100, text_format=Switch).output_parsed
    assert isinstance(parsed, Switch) and isinstance(streamed, Switch), (parsed, streamed)
    assert client.responses.input_tokens.count(model="alpha", input="hi").input_tokens == whole.usage.input_tokens
    for wrong in (dict(input=[{"type": "item_reference", "id": "x"}]), dict(input="hi", previous_response_id="r")):
        try:
            client.responses.create(model="alpha", **wrong)
        except openai.BadRequestError as error:
            assert error.param in ("input[0]", "previous_response_id"), error.param
        else:
            raise AssertionError(wrong)
"""


async def test_openais_own_client_in_a_process_of_its_own(open_server: OpenServer, real: InOrder, tmp_path: Path):
    async def ask(server: Appliance) -> None:
        done = await trio.run_process(
            [sys.executable, "-c", CLIENT, server.url], capture_stderr=True, check=False, stdin=b""
        )
        assert done.returncode == 0, done.stderr.decode()

    file = write_model(tmp_path, "one-system-first")
    async with open_server(chooser=real, models=[model(file, "alpha")]) as server:
        await ask(server)
