"""A source of tools, and chats that use it."""

from __future__ import annotations

import json
from collections.abc import Sequence

import trio
from msgspec import Raw

from appliance.core.tools.box import ToolContext, ToolOutcome, ToolProblem, ToolSpec

QUESTION = [{"role": "user", "content": "What do the notes say?"}]
PATH = Raw(b'{"type":"object","properties":{"path":{"type":"string"}},"required":["path"]}')
LOOKS = {"text": "Let me look.", "calls": [{"name": "read_file", "arguments": '{"path": "notes"}', "id": "c1"}]}
SAYS = {"reasoning": "So that is it.", "text": "Milk and eggs."}


class Files:
    """A source of tools: one reads, one never ends, one cannot be used, one is an MCP server's."""

    def __init__(self) -> None:
        self.used: list[tuple[str, object]] = []
        self.begun = trio.Event()
        self.stopped = trio.Event()
        self.gate = trio.Event()

    def specs(self) -> Sequence[ToolSpec]:
        names = ("read_file", "wait", "refuse")
        own = [ToolSpec(name=name, display_name=name, description=f"Does {name}.", parameters=PATH) for name in names]
        mcp = ToolSpec(name="web_search", display_name="", description="", parameters=PATH, kind="mcp", server="web")
        return [*own, mcp]

    async def call(self, name: str, arguments: bytes, context: ToolContext) -> ToolOutcome:
        self.used.append((name, json.loads(arguments)))
        if name == "refuse":
            raise ToolProblem(name, "there is no shell")
        if name == "wait":
            self.begun.set()
            try:
                await self.gate.wait()
            finally:
                self.stopped.set()
        return ToolOutcome(body=b"{}", text=f"{name}: {json.loads(arguments).get('path')}")


def asked(*script: object, tools: Sequence[str] = ("read_file",), **more: object) -> dict[str, object]:
    appliance: dict[str, object] = {"tools": list(tools)}
    if "max_iterations" in more:
        appliance["max_iterations"] = more.pop("max_iterations")
    fake = {"script": json.dumps(script)}
    return {"model": "alpha", "messages": QUESTION, "appliance": appliance, "fake": fake, **more}
