"""The ``appliance`` member of a chat request: tools of this server, used here on behalf of a plain client.

    {"model": ..., "messages": [...], "appliance": {"tools": ["read_file", "mcp:*"], "max_iterations": 8}}

The model is asked as often as it calls such tools; the client sees one answer. Functions of the client's own stay its
own: a turn that calls one ends the answer as always. The member never reaches an engine.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Raw, Struct

from appliance.core.bodies.head import EXTENSION
from appliance.core.bodies.json_text import Edit, Path, Step, apply_edits
from appliance.core.runs.messages import MAX_ITERATIONS, Task, Tool
from appliance.core.runs.slash import Family, family_of
from appliance.core.tools.tool import NO_PARAMETERS
from appliance.errors import BadRequest, Forbidden
from appliance.tools.box import Toolbox

_NEEDLE = f'"{EXTENSION}"'.encode()
_PATH = Path((Step(EXTENSION.encode()),))
_OWNED = frozenset((EXTENSION, "model", "messages", "tools", "stream", "stream_options", "parallel_tool_calls", "n"))
"""Members of the request that the loop says itself, for each of its turns."""


class Wanted(Struct, forbid_unknown_fields=True):
    """The member."""

    tools: list[str] = []
    max_iterations: Annotated[int, Meta(ge=0, le=MAX_ITERATIONS)] = 8


class _Function(Struct):
    name: Annotated[str, Meta(min_length=1)]
    description: str = ""
    parameters: Raw = NO_PARAMETERS


class _Definition(Struct):
    function: _Function


class _StreamOptions(Struct):
    include_usage: bool | None = None


class _Chat(Struct):
    model: str
    messages: list[Raw]
    tools: list[_Definition] | None = None
    parallel_tool_calls: bool | None = None
    stream_options: _StreamOptions | None = None
    n: int | None = None
    stream: bool | None = None


class ToolChat(Struct, frozen=True, kw_only=True):
    """A chat request whose tools are used here."""

    task: Task
    stream: bool
    include_usage: bool


_members = msgspec.json.Decoder(dict[str, Raw]).decode
_wanted = msgspec.json.Decoder(Wanted | None).decode
_chat = msgspec.json.Decoder(_Chat).decode


def read_tool_chat(body: bytes, route: str, toolbox: Toolbox, *, honoured: bool) -> tuple[bytes, ToolChat | None]:
    """The body without the member, and the chat if it asks for tools. Raises BadRequest, Forbidden.

    ``honoured``: False for the program's own requests, whose member is taken out and means nothing.
    """
    if _NEEDLE not in body:
        return body, None
    try:
        members = _members(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return body, None  # the engine says what is wrong with it
    if EXTENSION not in members:
        return body, None
    plain = apply_edits(body, (Edit(_PATH),))
    if EXTENSION in _members(plain):
        raise BadRequest(f"'{EXTENSION}' is there twice; say it once", param=EXTENSION)
    if not honoured:
        return plain, None
    if family_of(route) is not Family.CHAT:
        raise BadRequest(f"'{EXTENSION}' is for /v1/chat/completions; {route} has no tools", param=EXTENSION)
    try:
        wanted = _wanted(members[EXTENSION])
    except msgspec.ValidationError as error:
        form = '{"tools": [...], "max_iterations": 8}'
        raise BadRequest(f"'{EXTENSION}' cannot be used: {error}; it looks like {form}", param=EXTENSION) from None
    if wanted is None or not wanted.tools:
        return plain, None
    if not toolbox.enabled:
        raise Forbidden("tools are switched off; start the server with --tools or --mcp-servers-config")
    return plain, _read_chat(plain, members, wanted, toolbox)


def _read_chat(body: bytes, members: dict[str, Raw], wanted: Wanted, toolbox: Toolbox) -> ToolChat:
    try:
        chat = _chat(body)
    except msgspec.ValidationError as error:
        raise BadRequest(f"the request body cannot be used with tools of this server: {error}") from None
    if chat.n not in (None, 1):
        raise BadRequest("'n' must be 1 where tools of this server are used", param="n")
    task = Task(
        model=chat.model,
        messages=tuple(chat.messages),
        tools=(*_ours(wanted, toolbox), *_theirs(chat)),
        params={name: value for name, value in members.items() if name not in _OWNED},
        max_tool_iterations=wanted.max_iterations,
        parallel_tool_calls=bool(chat.parallel_tool_calls),
        bios=False,
        hands_over=True,
    )
    names = [tool.name for tool in task.tools]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise BadRequest(f"two tools are called '{twice}'; name the function differently", param="tools")
    include_usage = bool(chat.stream_options and chat.stream_options.include_usage)
    return ToolChat(task=task, stream=bool(chat.stream), include_usage=include_usage)


def _ours(wanted: Wanted, toolbox: Toolbox) -> list[Tool]:
    """Return the server's tools. Arguments are any object: the tool itself reports a mistake to the model."""
    return [
        Tool(
            name=spec.name,
            description=spec.description,
            parameters=spec.parameters,
            runner="server",
            arguments="object",
        )
        for spec in toolbox.select(wanted.tools)
    ]


def _theirs(chat: _Chat) -> list[Tool]:
    return [
        Tool(
            name=tool.function.name,
            description=tool.function.description,
            parameters=tool.function.parameters,
            runner="client",
            arguments="any",
        )
        for tool in chat.tools or ()
    ]
