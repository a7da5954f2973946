"""A tool and the outcome of its use. Source: llama-server README and tools, b11434."""

from __future__ import annotations

from typing import Literal

from msgspec import Raw, Struct

from appliance.errors import ApplianceError

NO_PARAMETERS = Raw(b'{"type":"object","properties":{}}')
"""The schema of a tool that takes no arguments."""


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
