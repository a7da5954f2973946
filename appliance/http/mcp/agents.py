"""Agent runs as a tool of the program's MCP server: begin one, follow it, tell what came of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated

import msgspec
from msgspec import Meta, Raw, Struct

from appliance.agents.owner import Agents
from appliance.agents.record import result_of
from appliance.agents.run import Asked, Run
from appliance.core.bodies.sse import Decoder, Event
from appliance.errors import BadRequest
from appliance.http.control.run_request import read_run
from appliance.http.mcp.models import Result, Tell, failed_result, text_result
from appliance.traffic.targets import Targets

DESCRIPTION = "Lets a language model on this machine work on a task with tools, and waits for what comes of it."


class RunAgent(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of ``run_agent``."""

    model: str
    prompt: str
    system: str = ""
    tools: list[str] = []
    max_tool_iterations: Annotated[int, Meta(ge=0)] | None = None
    params: dict[str, Raw] = {}


class _Output(Struct):
    text: str = ""


class _Use(Struct):
    name: str = ""


def run_schema(tools: Collection[str]) -> Mapping[str, object]:
    """The arguments; ``tools`` are those that a run may be given."""
    return {
        "type": "object",
        "properties": {
            "model": {"type": "string", "description": "Name of the model; 'list_models' tells them."},
            "prompt": {"type": "string", "description": "The task."},
            "system": {"type": "string", "description": "Instructions that go before the task."},
            "tools": {
                "type": "array",
                "items": {"type": "string", **({"enum": sorted(tools)} if tools else {})},
                "description": "Tools of this machine that the model may use." if tools else "There are none.",
            },
            "max_tool_iterations": {"type": "integer", "minimum": 0, "description": "How often it may use tools."},
            "params": {"type": "object", "description": "Further parameters of /v1/chat/completions, as temperature."},
        },
        "required": ["model", "prompt"],
        "additionalProperties": False,
    }


async def run_agent(
    agents: Agents, targets: Targets, arguments: RunAgent, allowed: Collection[str], tell: Tell | None
) -> Result:
    """Run the task; a caller that stops waiting cancels the run. Raises BadRequest, and what `Agents.submit` raises."""
    for name in arguments.tools:
        if name not in allowed:
            raise BadRequest(
                f"the tool '{name}' is not for MCP clients; start the server with --mcp-server-tools {name}",
                param="tools",
            )
    task, limits = read_run(_body(arguments), agents.toolbox, agents.settings)
    worker = await targets.worker(task.model)
    run = agents.submit(Asked(task=task, worker=worker, limits=limits))
    try:
        await _follow(run, tell)
    finally:
        if not run.over:
            agents.cancel(run.id)
    found = result_of(run.record())
    structured = Raw(msgspec.json.encode(found))
    if found.state != "completed":
        why = found.detail or found.fail_reason or found.state
        return failed_result(f"run {found.id} {found.state}: {why}") | {"structuredContent": structured}
    return text_result(found.output, structured)


def _body(asked: RunAgent) -> bytes:
    body: dict[str, object] = {
        "model": asked.model,
        "user_prompt": asked.prompt,
        "tools": asked.tools,
        "params": asked.params,
    }
    if asked.system:
        body["system_prompt"] = asked.system
    if asked.max_tool_iterations is not None:
        body["max_tool_iterations"] = asked.max_tool_iterations
    return msgspec.json.encode(body)


async def _follow(run: Run, tell: Tell | None) -> None:
    """Until it has ended; what was too fast to be followed is not told."""
    reader, decoder = run.feed.reader(0), Decoder()
    while True:
        data = await reader.receive()
        if data:
            for event in decoder.feed(data):
                if tell is not None and (words := _words(event)):
                    await tell(words)
        elif reader.overtaken:
            reader, decoder = run.feed.reader(run.feed.dropped), Decoder()
        else:
            return


def _words(event: Event) -> str:
    match event.name:
        case "output":
            return msgspec.json.decode(event.data, type=_Output).text
        case "tool_call":
            return f"[uses {msgspec.json.decode(event.data, type=_Use).name}]"
        case _:
            return ""
