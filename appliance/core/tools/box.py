"""A box of tools, as those see it that use one: agents, chats, clients, and the MCP server.

Refuses to know where a tool works, and how it is called.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from msgspec import Raw, Struct

from appliance.errors import ApplianceError, BadRequest, NotFound

EVERY = ("*", "mcp:*")
"""Words that mean all there are, though there may be none."""


class ToolSpec(Struct, frozen=True, kw_only=True):
    """One tool as it is offered. ``parameters`` is the JSON schema of its arguments, an object."""

    name: str
    display_name: str
    description: str
    parameters: Raw
    kind: Literal["builtin", "mcp"] = "builtin"
    server: str = ""
    """The MCP server that has it."""
    writes: bool = False
    """True if it changes something on the machine, as far as is known."""
    uses_cwd: bool = False
    streams: bool = False
    """True if it can send partial output while it works."""

    @property
    def size(self) -> int:
        """Return the approximate size of its description in bytes."""
        return len(self.name) + len(self.display_name) + len(self.description) + len(self.parameters)


class ToolContext(Struct, frozen=True, kw_only=True):
    """The circumstances of one use. ``cwd`` is where relative paths begin; None is the program's own."""

    cwd: str | None = None
    runtime: str | None = None
    """The place of commands and files, in llama-server's words: ``docker-container:<id>``, ``ssh:<target>``."""
    base64: bool = False
    """Wants file content as base64, for files that are not text."""


class ToolOutcome(Struct, frozen=True, kw_only=True):
    """The outcome of one use. A tool that failed at its task gives an ``error``, not an exception."""

    body: bytes
    """The JSON object with which ``POST /tools`` answers."""
    text: str
    """The text for the model."""
    error: str | None = None


class ToolProblem(ApplianceError):
    """A tool that could not be used at all: the runtime is unknown, the process could not be started."""

    reason = "tool_failed"

    def __init__(self, name: str, why: str) -> None:
        super().__init__(name, why)
        self.name = name
        self.why = why

    def __str__(self) -> str:
        return f"tool '{self.name}': {self.why}"


class Toolbox(Protocol):
    """The tools that are switched on. ``enabled``: somebody asked for tools, though there may be none."""

    @property
    def enabled(self) -> bool: ...

    def specs(self) -> Sequence[ToolSpec]:
        """Never blocks."""
        ...

    def select(self, words: Sequence[str]) -> Sequence[ToolSpec]:
        """Return the tools that names, ``*``, ``mcp:*`` and ``mcp:<server>`` mean, each once. Raises BadRequest."""
        ...

    async def call(self, name: str, arguments: bytes, context: ToolContext) -> ToolOutcome:
        """Use one of its tools. ``arguments`` is the JSON text of the arguments object.

        Raises NotFound, BadRequest for arguments that cannot be used, and ToolProblem when the tool could not even
        begin. Cancelling stops the tool and ends its processes.
        """
        ...


def none_switched_on(name: str) -> str:
    """Say why there is no such tool, where there are none at all."""
    return f"there is no tool '{name}': none are switched on (--tools, --mcp-servers-config)"


class NoTools:
    """The box of a program without tools."""

    enabled = False

    def specs(self) -> Sequence[ToolSpec]:
        return ()

    def select(self, words: Sequence[str]) -> Sequence[ToolSpec]:
        for word in words:
            if word not in EVERY:
                raise BadRequest(none_switched_on(word), param="tools")
        return ()

    async def call(self, name: str, arguments: bytes, context: ToolContext) -> ToolOutcome:
        raise NotFound(none_switched_on(name))
