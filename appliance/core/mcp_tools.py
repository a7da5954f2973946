"""A server's tools in the program's form, and the results of using one. Source: MCP; llama-server b11434."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from appliance.core.mcp_messages import Answer
from appliance.core.tooling import NO_PARAMETERS, ToolOutcome, ToolSpec

MAX_TOOLS = 1000
"""For one server."""
PROTOCOL = "2024-11-05"
"""The revision to request from servers on standard input and output, as llama-server does."""
CLIENT_INFO = {"name": "llama.cpp", "version": "1.0"}

_NO_TEXT = "MCP tool returned an error"


class _Tool(Struct):
    name: str
    title: str | None = None
    description: str | None = None
    inputSchema: Raw | UnsetType = UNSET


class _Page(Struct):
    tools: list[Raw]
    nextCursor: str | None = None


class _Part(Struct):
    type: str = ""
    text: str | None = None


class _Result(Struct):
    content: list[Raw] | None = None
    structuredContent: Raw | UnsetType = UNSET
    isError: bool | None = None


class _Schema(Struct):
    type: str | None = None
    properties: dict[str, Raw] | None = None


class ToolPage(Struct, frozen=True, kw_only=True):
    """One answer to ``tools/list``. ``names`` are the server's own, one for each spec."""

    specs: tuple[ToolSpec, ...]
    names: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    cursor: str | None = None
    """The cursor of the next page."""


_PAGE = msgspec.json.Decoder(_Page)
_TOOL = msgspec.json.Decoder(_Tool)
_RESULT = msgspec.json.Decoder(_Result)
_PART = msgspec.json.Decoder(_Part)
_SCHEMA = msgspec.json.Decoder(_Schema)
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def initialize_params(version: str = PROTOCOL) -> dict[str, object]:
    return {"protocolVersion": version, "capabilities": {}, "clientInfo": CLIENT_INFO}


def read_tools(server: str, answer: Raw) -> ToolPage | None:
    """Return None if the answer is not a list of tools. An unreadable tool is left out, with a warning."""
    try:
        page = _PAGE.decode(answer)
    except _UNREADABLE:
        return None
    specs: list[ToolSpec] = []
    names: list[str] = []
    warnings: list[str] = []
    for raw in page.tools[: MAX_TOOLS + 1]:
        try:
            tool = _TOOL.decode(raw)
        except _UNREADABLE as error:
            warnings.append(f"a tool of MCP server '{server}' is left out: {error}")
            continue
        if not tool.name:
            warnings.append(f"a tool of MCP server '{server}' is left out: it has no name")
            continue
        specs.append(_spec(server, tool))
        names.append(tool.name)
    return ToolPage(specs=tuple(specs), names=tuple(names), warnings=tuple(warnings), cursor=page.nextCursor or None)


def _spec(server: str, tool: _Tool) -> ToolSpec:
    return ToolSpec(
        name=f"{server}_{tool.name}",
        display_name=tool.title or tool.name,
        description=tool.description or "",
        parameters=_parameters(tool.inputSchema),
        kind="mcp",
        server=server,
    )


def _parameters(schema: Raw | UnsetType) -> Raw:
    """Return the schema, as an object with properties if it is something else: engines need that."""
    if schema is UNSET:
        return NO_PARAMETERS
    try:
        found = _SCHEMA.decode(schema)
        if found.type == "object" and found.properties is not None:
            return Raw(bytes(schema))
        members = msgspec.json.decode(schema, type=dict[str, Raw])
    except _UNREADABLE:
        return NO_PARAMETERS
    added = {"type": Raw(b'"object"')} | ({} if found.properties is not None else {"properties": Raw(b"{}")})
    return Raw(msgspec.json.encode(members | added))


def call_params(tool: str, arguments: bytes) -> dict[str, object]:
    """Encode a use. Raises ValueError for arguments that are not a JSON object."""
    try:
        arguments.decode()
        compact = msgspec.json.format(arguments or b"{}", indent=-1)  # a line break would end the message
        msgspec.json.decode(compact, type=dict[str, Raw])
    except _UNREADABLE as error:
        raise ValueError(f"the arguments are not a JSON object: {error}") from None
    return {"name": tool, "arguments": Raw(compact)}


def outcome(answer: Answer) -> ToolOutcome:
    """Return the result of ``tools/call`` in llama-server's form."""
    if answer.error is not None:
        return failed(answer.error.message)
    try:
        found = _RESULT.decode(answer.result or b"{}")
        text = _text(found)
    except _UNREADABLE as error:
        return failed(f"the MCP server's answer cannot be read: {error}")
    if found.isError:
        return failed(text or _NO_TEXT)
    return ToolOutcome(body=msgspec.json.encode({"plain_text_response": text}), text=text)


def failed(message: str) -> ToolOutcome:
    """Return the outcome of a failed use; the model sees the reason."""
    return ToolOutcome(body=msgspec.json.encode({"error": message}), text=f"Error: {message}", error=message)


def _text(found: _Result) -> str:
    """Join the parts that are text; if a result is structured only, return it as JSON."""
    parts = [_PART.decode(raw) for raw in found.content or ()]
    texts = [part.text for part in parts if part.type == "text" and part.text is not None]
    if not texts and found.structuredContent is not UNSET and not parts:
        return bytes(found.structuredContent).decode()
    others = [part.type for part in parts if part.type != "text"]
    if not texts and others:
        return f"[the tool returned no text but: {', '.join(dict.fromkeys(others))}]"
    return "\n".join(texts)


def unique(pages: Sequence[tuple[ToolSpec, str]], taken: set[str]) -> tuple[list[tuple[ToolSpec, str]], list[str]]:
    """Return the tools whose name is free, which it then no longer is, and warnings about the others."""
    kept: list[tuple[ToolSpec, str]] = []
    warnings: list[str] = []
    for spec, name in pages:
        if spec.name in taken:
            warnings.append(f"tool '{name}' of MCP server '{spec.server}' is skipped: '{spec.name}' exists already")
        else:
            taken.add(spec.name)
            kept.append((spec, name))
    return kept, warnings
