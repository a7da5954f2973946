"""``/mcp``: the program as an MCP server over streamable HTTP. Off unless switched on.

It offers the program's models, its agents, and those of its own tools that the user chose. Nothing is kept between
requests, so there is no session to be lost. An answer is JSON; it becomes a stream of events for a client that wants
progress reports, and for one that waits so long that proxies would cut the connection.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from itertools import count
from typing import TypeVar

import msgspec
import trio
from msgspec import Raw, Struct

from appliance.core.bodies.sse import PING, ErrorInfo, SseEvent, encode
from appliance.core.models.swap_listing import ListedModel
from appliance.core.tools.box import ToolContext, ToolSpec
from appliance.core.turns.tasks import Tell
from appliance.errors import ApplianceError, Busy, Forbidden
from appliance.features.tools import mcp_offered
from appliance.features.tools.core import mcp_serving
from appliance.features.tools.core.mcp_messages import INVALID_PARAMS, McpError, notification, refusal, result
from appliance.features.tools.core.specs import schema_of
from appliance.http import errors
from appliance.http.control.listing import View, list_models
from appliance.http.kernel import Kernel
from appliance.http.way.context import RequestContext
from appliance.http.way.explaining import refuse
from appliance.http.way.progress import EVENT_STREAM, UNBUFFERED
from appliance.traffic.request import Headers, Request, Sink, send_whole
from appliance.trio_parts import every

T = TypeVar("T")
Work = Callable[[bytes, Tell | None], Awaitable[mcp_offered.Result]]

_TOLD_OF_A_MODEL = ("id", "aliases", "name", "description", "tags", "architecture", "capabilities")
MAX_AT_ONCE = 64
NO_METHOD = ErrorInfo(
    message="POST is the only method here: there are no sessions to end and no streams to open",
    type="invalid_request_error",
    code=405,
    reason="method_not_allowed",
)
NOT_ACCEPTABLE = ErrorInfo(
    message="the answer is application/json or text/event-stream; the Accept header allows neither",
    type="invalid_request_error",
    code=406,
    reason="not_acceptable",
)
JSON: Headers = ((b"Content-Type", b"application/json"), (b"Cache-Control", b"no-store"))
STREAM: Headers = (EVENT_STREAM, *UNBUFFERED)


class Offered(Struct, frozen=True):
    """One tool as ``tools/list`` tells it, and what does its work."""

    name: str
    title: str
    description: str
    schema: Mapping[str, object] | Raw
    reads_only: bool
    work: Work

    def listed(self) -> dict[str, object]:
        return {
            "name": self.name,
            "title": self.title,
            "description": self.description,
            "inputSchema": self.schema,
            "annotations": {"readOnlyHint": self.reads_only},
        }


def server_tools(kernel: Kernel) -> dict[str, Offered]:
    """Return what the settings offer, by name.

    Raises BadRequest for a word in the settings that means none of the program's tools (see `Toolbox.select`).
    """
    owners, inward, run_task = kernel.owners, kernel.inward, kernel.run_task
    view = View(owners.fleet, owners.catalog, owners.peers, kernel.traffic.profile)

    def offered(spec: ToolSpec) -> Offered:
        async def work(arguments: bytes, tell: Tell | None) -> mcp_offered.Result:
            found = await owners.tools.call(spec.name, arguments, ToolContext())
            failed, text = mcp_offered.failed_result, mcp_offered.text_result
            return failed(found.error) if found.error is not None else text(found.text)

        # reads_only: of an MCP server nobody knows
        return Offered(spec.name, spec.display_name, spec.description, spec.parameters, False, work)

    async def models(arguments: bytes, tell: Tell | None) -> mcp_offered.Result:
        _read(arguments, mcp_offered.Nothing)
        return mcp_offered.json_result({"models": [_shown(entry) for entry in list_models(view).data]})

    async def chat(arguments: bytes, tell: Tell | None) -> mcp_offered.Result:
        return await mcp_offered.chat(inward, _read(arguments, mcp_offered.Chat), tell)

    async def embed(arguments: bytes, tell: Tell | None) -> mcp_offered.Result:
        return await mcp_offered.embed(inward, _read(arguments, mcp_offered.Embed))

    listed = "Tells which language models this machine has, and which of them are loaded."
    asks = "Asks a language model on this machine. A model that is not loaded is loaded first."
    turns = "Turns texts into vectors with an embedding model on this machine."
    found = {spec.name: offered(spec) for spec in owners.tools.select(kernel.settings.mcp_server_tools)}
    allowed = frozenset(found)
    own = [
        Offered("list_models", "List models", listed, schema_of(mcp_offered.Nothing), True, models),
        Offered("chat", "Ask a model", asks, schema_of(mcp_offered.Chat), True, chat),
        Offered("embed", "Embed texts", turns, schema_of(mcp_offered.Embed), True, embed),
    ]
    if run_task is not None:

        async def run(arguments: bytes, tell: Tell | None) -> mcp_offered.Result:
            return await mcp_offered.run_agent(run_task, _read(arguments, mcp_offered.RunAgent), allowed, tell)

        schema = mcp_offered.run_schema(allowed)
        own.append(Offered("run_agent", "Run an agent", mcp_offered.DESCRIPTION, schema, not allowed, run))
    return found | {tool.name: tool for tool in own}  # of two with one name the own one counts


async def used(tool: Offered, arguments: bytes, tell: Tell | None) -> mcp_offered.Result:
    """Turn the program's own errors into results that a model can read; bugs stay exceptions."""
    try:
        return await tool.work(arguments, tell)
    except (ApplianceError, mcp_offered.EngineRefused) as error:
        return mcp_offered.failed_result(str(error))
    except msgspec.ValidationError as error:
        return mcp_offered.failed_result(f"the arguments cannot be used: {error}")


def _read(arguments: bytes, kind: type[T]) -> T:
    """Raises msgspec.ValidationError."""
    return msgspec.json.decode(arguments, type=kind)


def _shown(entry: ListedModel) -> dict[str, object]:
    """Describe a model to somebody who chooses one; without its command line."""
    listed = {name: getattr(entry, name) for name in _TOLD_OF_A_MODEL}
    return {**{name: value for name, value in listed.items() if value}, "status": entry.status.value}


class McpServer:
    """Answers the route. Raises BadRequest for a tool in the settings that there is not."""

    def __init__(self, kernel: Kernel) -> None:
        self._settings = kernel.settings
        self._guard = kernel.edge.guard
        self._offer = server_tools(kernel) if kernel.settings.mcp_server else None
        self._under_way = 0

    async def answer(self, context: RequestContext) -> None:
        """The key and where the request comes from are checked already. Raises ApplianceError and ClientLeft."""
        request, sink = context.request, context.sink
        if self._offer is None:
            await refuse(sink, errors.disabled("--mcp-server"))
        elif not self._guard.asks_for_key and not self._settings.mcp_server_open:
            raise Forbidden("the MCP server needs an API key, and the configuration in force has none; add one")
        elif request.method != "POST":
            await refuse(sink, NO_METHOD, ((b"Allow", b"POST"),))
        elif not (accepted := _accepted(request)):
            await refuse(sink, NOT_ACCEPTABLE)
        else:
            body = await context.read_body()
            await self._answer(self._offer, body, request, sink, events="events" in accepted)

    async def _answer(
        self, offer: dict[str, Offered], body: bytes, request: Request, sink: Sink, *, events: bool
    ) -> None:
        match mcp_serving.read_request(body, request.headers):
            case None:
                await send_whole(sink, 202, ())
            case mcp_serving.Immediate(id=number, status=status, result=None, error=error):
                await _send(sink, status, refusal(number, error or McpError(code=INVALID_PARAMS)))
            case mcp_serving.Immediate(id=number, status=status, result=found):
                await _send(sink, status, result(number, found))
            case mcp_serving.ToolsListing(id=number, modern=modern):
                listed: mcp_offered.Result = {"tools": [tool.listed() for tool in offer.values()]}
                if modern:
                    listed = mcp_serving.stamped(listed | mcp_serving.cached())
                await _send(sink, 200, result(number, listed))
            case mcp_serving.ToolsCall() as call:
                await self._call(offer, call, sink, events=events)

    async def _call(self, offer: dict[str, Offered], call: mcp_serving.ToolsCall, sink: Sink, *, events: bool) -> None:
        if (tool := offer.get(call.name)) is None:
            error = McpError(code=INVALID_PARAMS, message=f"Unknown tool: {call.name[:200]}")
            await _send(sink, 400 if call.modern else 200, refusal(call.id, error))
            return
        if self._under_way >= MAX_AT_ONCE:
            raise Busy(f"the MCP server has {MAX_AT_ONCE} calls under way")
        self._under_way += 1
        try:
            await _answer_call(tool, call, sink, self._settings.ping_after if events else None)
        finally:
            self._under_way -= 1


async def _answer_call(tool: Offered, call: mcp_serving.ToolsCall, sink: Sink, ping_after: float | None) -> None:
    """``ping_after``: seconds of silence before a stream's comment; 0: never, None: no stream."""
    writing, numbers = trio.Lock(), count(1)

    async def write(data: bytes) -> None:
        async with writing:
            if sink.status is None:
                sink.start(200, STREAM)
            await sink.write(data)

    async def notify(words: str) -> None:
        params = {"progressToken": call.token, "progress": next(numbers), "message": words}
        await write(_event(notification("notifications/progress", params)))

    wants_progress = call.token is not None and ping_after is not None
    async with trio.open_nursery() as nursery:
        if ping_after:
            nursery.start_soon(every, ping_after, partial(write, PING))
        found = await used(tool, call.arguments, notify if wants_progress else None)
        async with writing:  # a ping is written whole, or not at all
            nursery.cancel_scope.cancel()
    message = result(call.id, mcp_serving.stamped(found) if call.modern else found)
    if sink.status is None:
        await _send(sink, 200, message)
    else:
        await sink.write(_event(message))
        await sink.end()


def _accepted(request: Request) -> set[str]:
    """The forms of an answer that the client takes. One that does not say takes JSON."""
    said = request.header(b"accept")
    if not said:
        return {"json"}
    kinds = {part.partition(";")[0].strip().lower() for part in said.split(",")}
    taken = {"json": {"application/json", "application/*", "*/*"}, "events": {"text/event-stream", "text/*"}}
    return {form for form, names in taken.items() if kinds & names}


def _event(message: bytes) -> bytes:
    return encode(SseEvent(message.decode(), "message"))


async def _send(sink: Sink, status: int, message: bytes) -> None:
    await send_whole(sink, status, JSON, message)
