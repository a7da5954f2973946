"""The messages of MCP: JSON-RPC 2.0, one message in one line or one server-sent event; and the offers that they carry.

Bytes in, values out. A server's tools get the program's form, and so do the results of using one. Its prompts, which
people fill in, and its resources, which they read, become text. Source: the Model Context Protocol's revisions
2024-11-05 to 2026-07-28, JSON-RPC 2.0, and llama-server b11434.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from appliance.core.lenient_json import UNREADABLE, decoded
from appliance.core.openai import NO_PARAMETERS
from appliance.core.tools.box import ToolOutcome, ToolSpec

MAX_LINE = 8 << 20  # bytes of one message; a longer one is dropped, as llama-server does

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603

Id = int | float | str  # JSON-RPC's; 1 and 1.0 are one number
MAX_TOOLS = 1000  # for one server
MAX_OFFERS = 500  # prompts, and resources, of one server
MAX_TEXT = 4 << 20  # characters of one prompt or resource
PROTOCOL = "2024-11-05"  # the revision to request from servers on standard input and output, as llama-server does
CLIENT_INFO = {"name": "llama.cpp", "version": "1.0"}
T = TypeVar("T")
_NO_TEXT = "MCP tool returned an error"


class McpError(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The ``error`` of an answer."""

    code: int
    message: str = ""
    data: Raw | UnsetType = UNSET


class RpcAnswer(Struct, frozen=True, kw_only=True):
    """An answer to a request of ours: a result, or an error."""

    id: Id
    result: Raw | None = None
    error: McpError | None = None


class RpcRequest(Struct, frozen=True, kw_only=True):
    """A request of the other side, which waits for an answer."""

    id: Id
    method: str


class _LooseError(Struct):
    """Optional members, which servers leave out."""

    code: int | float | str | None = None
    message: str | None = None
    data: Raw | UnsetType = UNSET


class _RpcMessage(Struct):
    id: Id | UnsetType | None = UNSET
    method: str | UnsetType = UNSET
    result: Raw | UnsetType = UNSET
    error: _LooseError | str | UnsetType | None = UNSET


_MESSAGE = msgspec.json.Decoder(_RpcMessage)


def read_message(data: bytes) -> RpcAnswer | RpcRequest | None:
    """Read a message; None for a notification, and for anything that is not a message."""
    found = decoded(_MESSAGE, data)
    if found is None or found.id is UNSET or found.id is None:
        return None
    if isinstance(found.method, str):
        return RpcRequest(id=found.id, method=found.method)
    if found.result is not UNSET:
        return RpcAnswer(id=found.id, result=found.result)
    match found.error:
        case UnsetType():
            return None
        case _LooseError(code, message, more):
            number = int(code) if isinstance(code, int | float) else INTERNAL_ERROR
            error = McpError(code=number, message=message or f"error {number}", data=more)
        case message:
            error = McpError(code=INTERNAL_ERROR, message=message or "error without a message")
    return RpcAnswer(id=found.id, error=error)


def request(number: int, method: str, params: object = None) -> bytes:
    """Encode a request of ours, without a line end."""
    return msgspec.json.encode({"jsonrpc": "2.0", "id": number, "method": method, "params": params or {}})


def notification(method: str, params: object = None) -> bytes:
    message: dict[str, object] = {"jsonrpc": "2.0", "method": method}
    return msgspec.json.encode(message | ({"params": params} if params else {}))


def result(number: Id | None, value: object) -> bytes:
    """Encode the answer to a request of the other side."""
    return msgspec.json.encode({"jsonrpc": "2.0", "id": number, "result": value})


def refusal(number: Id | None, error: McpError) -> bytes:
    """Encode the answer that says why there is no result."""
    return msgspec.json.encode({"jsonrpc": "2.0", "id": number, "error": error})


def reply(asked: RpcRequest) -> bytes:
    """Return the answer of a client that offers nothing: to ``ping``, or that it has no such method."""
    if asked.method == "ping":
        return result(asked.id, {})
    name = asked.method[:100]
    return refusal(asked.id, McpError(code=METHOD_NOT_FOUND, message=f"this client has no method '{name}'"))


class LineCutter:
    """Cuts a stream into lines; it drops a line that is longer than ``limit``."""

    def __init__(self, limit: int = MAX_LINE) -> None:
        self._limit = limit
        self._held = bytearray()
        self._dropping = False
        self.dropped = 0  # number of lines that were too long

    @property
    def held(self) -> int:
        """Bytes of the unfinished line."""
        return len(self._held)

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines that these bytes complete, without their ends and without empty ones."""
        *ended, rest = chunk.split(b"\n")
        found: list[bytes] = []
        for part in ended:
            self._hold(part)
            if not self._dropping and (line := bytes(self._held).strip()):
                found.append(line)
            self._held.clear()
            self._dropping = False
        self._hold(rest)
        return found

    def _hold(self, part: bytes) -> None:
        if self._dropping:
            return
        if len(self._held) + len(part) > self._limit:
            self._dropping = True
            self.dropped += 1
            self._held.clear()
        else:
            self._held += part


class _ServerTool(Struct):
    name: str
    title: str | None = None
    description: str | None = None
    inputSchema: Raw | UnsetType = UNSET


class _Page(Struct):
    tools: list[Raw]
    nextCursor: str | None = None


class _ContentPart(Struct):
    type: str = ""
    text: str | None = None


class _CallResult(Struct):
    content: list[Raw] | None = None
    structuredContent: Raw | UnsetType = UNSET
    isError: bool | None = None


class _Schema(Struct):
    type: str | None = None
    properties: dict[str, Raw] | None = None


class ToolPage(Struct, frozen=True, kw_only=True):
    """One answer to ``tools/list``: each tool as it is offered, and its name on the server."""

    tools: tuple[tuple[ToolSpec, str], ...]
    warnings: tuple[str, ...] = ()
    cursor: str | None = None  # the cursor of the next page


_PAGE = msgspec.json.Decoder(_Page)
_TOOL = msgspec.json.Decoder(_ServerTool)
_RESULT = msgspec.json.Decoder(_CallResult)
_PART = msgspec.json.Decoder(_ContentPart)
_SCHEMA = msgspec.json.Decoder(_Schema)


def read_tools(server: str, answer: Raw) -> ToolPage | None:
    """Return None if the answer is not a list of tools. An unreadable tool is left out, with a warning."""
    if (page := decoded(_PAGE, answer)) is None:
        return None
    tools: list[tuple[ToolSpec, str]] = []
    warnings: list[str] = []
    for raw in page.tools[: MAX_TOOLS + 1]:
        try:
            tool = _TOOL.decode(raw)
        except UNREADABLE as error:
            warnings.append(f"a tool of MCP server '{server}' is left out: {error}")
            continue
        if not tool.name:
            warnings.append(f"a tool of MCP server '{server}' is left out: it has no name")
            continue
        spec = ToolSpec(
            name=f"{server}_{tool.name}",
            display_name=tool.title or tool.name,
            description=tool.description or "",
            parameters=_parameters(tool.inputSchema),
            kind="mcp",
            server=server,
        )
        tools.append((spec, tool.name))
    return ToolPage(tools=tuple(tools), warnings=tuple(warnings), cursor=page.nextCursor or None)


def _parameters(schema: Raw | UnsetType) -> Raw:
    """Return the schema, as an object with properties if it is something else: engines need that."""
    if schema is UNSET:
        return NO_PARAMETERS
    try:
        found = _SCHEMA.decode(schema)
        if found.type == "object" and found.properties is not None:
            return Raw(bytes(schema))
        members = msgspec.json.decode(schema, type=dict[str, Raw])
    except UNREADABLE:
        return NO_PARAMETERS
    added = {"type": Raw(b'"object"')} | ({} if found.properties is not None else {"properties": Raw(b"{}")})
    return Raw(msgspec.json.encode(members | added))


def call_params(tool: str, arguments: bytes) -> dict[str, object]:
    """Encode a use. Raises ValueError for arguments that are not a JSON object."""
    try:
        arguments.decode()
        compact = msgspec.json.format(arguments or b"{}", indent=-1)  # a line break would end the message
        msgspec.json.decode(compact, type=dict[str, Raw])
    except UNREADABLE as error:
        raise ValueError(f"the arguments are not a JSON object: {error}") from None
    return {"name": tool, "arguments": Raw(compact)}


def outcome(answer: RpcAnswer) -> ToolOutcome:
    """Return the result of ``tools/call`` in llama-server's form."""
    if answer.error is not None:
        return failed(answer.error.message)
    try:
        found = _RESULT.decode(answer.result or b"{}")
        text = _text(found)
    except UNREADABLE as error:
        return failed(f"the MCP server's answer cannot be read: {error}")
    if found.isError:
        return failed(text or _NO_TEXT)
    return ToolOutcome(body=msgspec.json.encode({"plain_text_response": text}), text=text)


def failed(message: str) -> ToolOutcome:
    """Return the outcome of a failed use; the model sees the reason."""
    return ToolOutcome(body=msgspec.json.encode({"error": message}), text=f"Error: {message}", error=message)


def _text(found: _CallResult) -> str:
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


class Argument(Struct, frozen=True):
    """One field of a prompt's form."""

    name: str
    description: str | None = None
    required: bool = False


class McpPrompt(Struct, frozen=True):
    """A text that the server makes, by the values of its arguments."""

    name: str
    title: str | None = None
    description: str | None = None
    arguments: tuple[Argument, ...] | None = None


class Resource(Struct, frozen=True):
    """A text or file that the server can read."""

    uri: str
    name: str = ""
    title: str | None = None
    description: str | None = None
    mimeType: str | None = None


class Offers(Struct, frozen=True, kw_only=True):
    """Everything of one server; ``error`` where it could not be asked."""

    server: str
    prompts: tuple[McpPrompt, ...] = ()
    resources: tuple[Resource, ...] = ()
    error: str | None = None


class _Content(Struct):
    type: str = ""
    text: str | None = None
    resource: Raw | UnsetType = UNSET


class _PromptMessage(Struct):
    role: str
    content: _Content


class _Messages(Struct):
    messages: list[_PromptMessage] = []


class _Held(Struct):
    uri: str = ""
    text: str | None = None
    blob: str | None = None
    mimeType: str | None = None


class _ResourceContents(Struct):
    contents: list[_Held] = []


def read_offers(answer: RpcAnswer | None, member: str, kind: type[T]) -> tuple[T, ...]:
    """Return those that can be understood; a server that knows none answers with an error, and has none."""
    found = decoded(dict[str, Raw], answer.result) if answer is not None and answer.result is not None else None
    offers = decoded(list[Raw], (found or {}).get(member, b"[]")) or []
    return tuple(one for raw in offers[:MAX_OFFERS] if (one := decoded(kind, raw)) is not None)


def prompt_text(result: Raw) -> str:
    """Return the text of a prompt's messages. Raises ValueError where there is none."""
    found = decoded(_Messages, result)
    if found is None:
        raise ValueError("its answer is not a prompt")
    texts = [_text_of(message.content) for message in found.messages]
    if not (text := "\n\n".join(text for text in texts if text)):
        raise ValueError("the prompt has no text")
    return text[:MAX_TEXT]


def _text_of(content: _Content) -> str:
    if content.resource is not UNSET:
        held = decoded(_Held, content.resource)
        return held.text or "" if held is not None else ""
    return content.text or ""


def resource_text(result: Raw) -> str:
    """Return the text of a resource. Raises ValueError for anything but text."""
    found = decoded(_ResourceContents, result)
    if found is None or not found.contents:
        raise ValueError("its answer is not a resource")
    texts = [held.text for held in found.contents if held.text is not None]
    if not texts:
        kinds = ", ".join(held.mimeType or "unknown" for held in found.contents)
        raise ValueError(f"the resource is not text ({kinds})")
    return "\n".join(texts)[:MAX_TEXT]
