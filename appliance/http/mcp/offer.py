"""The offer of the program's MCP server: its models, its agents, and those of its own tools that the user chose."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

import msgspec
from msgspec import Raw, Struct

from appliance.core.runs.inward import Asker
from appliance.core.tools.tool import ToolContext, ToolSpec
from appliance.errors import ApplianceError
from appliance.http.control.listing import list_models
from appliance.http.control.view import View
from appliance.http.mcp.agents import DESCRIPTION, RunAgent, run_agent, run_schema
from appliance.http.mcp.models import (
    CHAT_SCHEMA,
    EMBED_SCHEMA,
    NO_ARGUMENTS,
    Chat,
    Embed,
    EngineRefused,
    Nothing,
    Result,
    Tell,
    chat,
    embed,
    failed_result,
    json_result,
    text_result,
)
from appliance.http.owners import Owners
from appliance.traffic.traffic import Traffic

T = TypeVar("T")
Work = Callable[[bytes, Tell | None], Awaitable[Result]]

_TOLD_OF_A_MODEL = ("id", "aliases", "name", "description", "tags", "architecture", "capabilities")


class Offered(Struct, frozen=True, kw_only=True):
    """One tool as ``tools/list`` tells it, and what does its work."""

    name: str
    title: str
    description: str
    schema: Mapping[str, object] | Raw
    reads_only: bool
    work: Work

    def told(self) -> dict[str, object]:
        return {
            "name": self.name,
            "title": self.title,
            "description": self.description,
            "inputSchema": self.schema,
            "annotations": {"readOnlyHint": self.reads_only},
        }


class Offer:
    """Raises BadRequest for a word in ``words`` that means none of the program's tools (see `Toolbox.select`)."""

    def __init__(self, owners: Owners, traffic: Traffic, inward: Asker, words: Sequence[str]) -> None:
        self._owners = owners
        self._targets = traffic.targets
        self._inward = inward
        self._view = View(owners.fleet, owners.catalog, owners.peers, traffic.profile)
        chosen = [self._tool(spec) for spec in owners.tools.select(words)]
        self._allowed = frozenset(tool.name for tool in chosen)
        own = self._own()
        self._tools = {tool.name: tool for tool in (*chosen, *own)}  # of two with one name the own one counts

    def told(self) -> list[dict[str, object]]:
        return [tool.told() for tool in self._tools.values()]

    def find(self, name: str) -> Offered | None:
        return self._tools.get(name)

    def _own(self) -> list[Offered]:
        return [
            Offered(
                name="list_models",
                title="List models",
                description="Tells which language models this machine has, and which of them are loaded.",
                schema=NO_ARGUMENTS,
                reads_only=True,
                work=self._list_models,
            ),
            Offered(
                name="chat",
                title="Ask a model",
                description="Asks a language model on this machine. A model that is not loaded is loaded first.",
                schema=CHAT_SCHEMA,
                reads_only=True,
                work=self._chat,
            ),
            Offered(
                name="embed",
                title="Embed texts",
                description="Turns texts into vectors with an embedding model on this machine.",
                schema=EMBED_SCHEMA,
                reads_only=True,
                work=self._embed,
            ),
            Offered(
                name="run_agent",
                title="Run an agent",
                description=DESCRIPTION,
                schema=run_schema(self._allowed),
                reads_only=not self._allowed,
                work=self._run_agent,
            ),
        ]

    def _tool(self, spec: ToolSpec) -> Offered:
        async def work(arguments: bytes, tell: Tell | None) -> Result:
            found = await self._owners.tools.call(spec.name, arguments, ToolContext())
            return failed_result(found.error) if found.error is not None else text_result(found.text)

        return Offered(
            name=spec.name,
            title=spec.display_name,
            description=spec.description,
            schema=spec.parameters,
            reads_only=False,  # of an MCP server nobody knows
            work=work,
        )

    async def _list_models(self, arguments: bytes, tell: Tell | None) -> Result:
        _read(arguments, Nothing)
        entries = msgspec.convert(list_models(self._view)["data"], list[dict[str, object]])
        return json_result({"models": [_shown(entry) for entry in entries]})

    async def _chat(self, arguments: bytes, tell: Tell | None) -> Result:
        return await chat(self._inward, _read(arguments, Chat), tell)

    async def _embed(self, arguments: bytes, tell: Tell | None) -> Result:
        return await embed(self._inward, _read(arguments, Embed))

    async def _run_agent(self, arguments: bytes, tell: Tell | None) -> Result:
        return await run_agent(self._owners.agents, self._targets, _read(arguments, RunAgent), self._allowed, tell)


async def used(tool: Offered, arguments: bytes, tell: Tell | None) -> Result:
    """Whatever the program says on purpose becomes a result that a model can read; bugs stay exceptions."""
    try:
        return await tool.work(arguments, tell)
    except (ApplianceError, EngineRefused) as error:
        return failed_result(str(error))
    except msgspec.ValidationError as error:
        return failed_result(f"the arguments cannot be used: {error}")


def _read(arguments: bytes, kind: type[T]) -> T:
    """Raises msgspec.ValidationError."""
    return msgspec.json.decode(arguments, type=kind)


def _shown(entry: Mapping[str, object]) -> dict[str, object]:
    """Describe a model to somebody who chooses one; without its command line."""
    status = msgspec.convert(entry.get("status", {}), dict[str, object])
    found = {key: entry[key] for key in _TOLD_OF_A_MODEL if entry.get(key)}
    return found | {"status": status.get("value", "unloaded")}
