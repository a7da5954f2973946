"""``/tools``: the tools of this server for its clients, in llama-server's shapes (b11434).

Answered by the gateway itself and not by Quart: a file to be written is larger than control bodies are, and a route
that uses a tool has to notice at once that its client leaves.
"""

from __future__ import annotations

import msgspec
from msgspec import Raw, Struct

from appliance.core.headers import EVENTS
from appliance.core.openai import FunctionDefinition, ToolDefinition
from appliance.core.tools.box import ToolContext, ToolOutcome, ToolSpec
from appliance.errors import ApplianceError, BadRequest, Busy, RouteNotFound, ShuttingDown
from appliance.features.tools.box import OpenToolbox
from appliance.http import errors
from appliance.http.way.context import RequestContext
from appliance.traffic.request import Request, Sink, send_whole
from appliance.traffic.traffic import Lifetime

METHODS = ("GET", "HEAD", "POST")
MAX_AT_ONCE = 64  # each may be a process
DISABLED = errors.disabled("--tools or --mcp-servers-config")
EMPTY = Raw(b"{}")


class ToolUseBody(Struct, frozen=True, kw_only=True):
    """Body of ``POST /tools``."""

    tool: str
    params: Raw = msgspec.field(default_factory=lambda: EMPTY)
    stream: bool = False


_USE = msgspec.json.Decoder(ToolUseBody)


class ToolRoutes:
    """An `EdgeAnswer`. The key and where the request comes from are checked already."""

    def __init__(self, tools: OpenToolbox, lifetime: Lifetime) -> None:
        self._tools = tools
        self._lifetime = lifetime
        self._under_way = 0

    async def answer(self, request_context: RequestContext) -> None:
        """Raises RouteNotFound, errors of reading the body, and ClientLeft; a tool's refusal is an answer."""
        request, sink = request_context.request, request_context.sink
        if request.method not in METHODS:
            raise RouteNotFound(request.method, request.path)
        if not self._tools.enabled:
            await _send(sink, 403, {"error": {"message": DISABLED.message, "type": DISABLED.type}}, close=True)
            return
        if request.method != "POST":
            await _send(sink, 200, [_entry(spec) for spec in self._tools.specs()])
            return
        body = await request_context.read_body()
        if self._under_way >= MAX_AT_ONCE:
            raise Busy(f"{MAX_AT_ONCE} uses of tools are under way; wait for one of them to end")
        self._under_way += 1
        try:
            await self._use(request, body, sink)
        finally:
            self._under_way -= 1

    async def _use(self, request: Request, body: bytes, sink: Sink) -> None:
        try:
            use = _read(body)
            context = ToolContext(
                cwd=_header(request, b"x-tool-cwd"),
                runtime=_header(request, b"x-tool-runtime"),
                base64=request.header(b"x-resp-type") == "base64",
            )
            # A command may run for minutes: the server's end does not wait for it.
            with self._lifetime.follower() as serving:
                if use.stream:
                    await self._stream(use, context, sink)
                    return
                outcome = await self._tools.call(use.tool, bytes(use.params), context)
            if serving.cancelled_caught:
                raise ShuttingDown
            await _send(sink, 200, Raw(outcome.body))
        except ApplianceError as error:
            if sink.status is not None:
                await _write(sink, {"done": True, "error": str(error)})
                await sink.end()
                return
            info = errors.describe(error)
            content = {"code": info.code, "message": info.message, "type": info.type}
            await _send(sink, info.code, {"error": content} if info.code == 404 else content, close=True)

    async def _stream(self, use: ToolUseBody, context: ToolContext, sink: Sink) -> None:
        """The answer begins once the tool has: an earlier refusal has a status of its own."""
        async with self._tools.stream(use.tool, bytes(use.params), context) as pieces:
            sink.start(200, [(b"Content-Type", EVENTS), (b"Cache-Control", b"no-cache")])
            done: dict[str, object] = {"done": True}
            async for piece in pieces:
                if not isinstance(piece, ToolOutcome):
                    await _write(sink, {"chunk": piece.decode()})
                elif piece.error is not None:
                    done["error"] = piece.error
        await _write(sink, done)
        await sink.end()


def _header(request: Request, name: bytes) -> str | None:
    """A path may hold more than a header's own letters: UTF-8, as clients send it."""
    text = request.header(name)
    return text.encode("latin-1").decode("utf-8", "replace") if text else None


def _read(body: bytes) -> ToolUseBody:
    """Raises BadRequest."""
    try:
        use = _USE.decode(body)
    except msgspec.ValidationError as error:
        raise BadRequest(f"the request body cannot be used: {error}") from None
    except RecursionError:
        raise BadRequest("the request body is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"the request body is not valid JSON: {error}") from None
    if bytes(use.params).lstrip().startswith(b"{"):
        return use
    if bytes(use.params).strip() != b"null":
        raise BadRequest("'params' is not an object", param="params")
    return ToolUseBody(tool=use.tool, stream=use.stream)


def _entry(spec: ToolSpec) -> dict[str, object]:
    return {
        "display_name": spec.display_name,
        "tool": spec.name,
        "type": spec.kind,
        "permissions": {"write": spec.writes},
        "uses_cwd": spec.uses_cwd,
        "definition": ToolDefinition(FunctionDefinition(spec.name, spec.description, spec.parameters)),
    }


async def _write(sink: Sink, record: dict[str, object]) -> None:
    await sink.write(b"data: %b\n\n" % msgspec.json.encode(record))


async def _send(sink: Sink, status: int, content: object, *, close: bool = False) -> None:
    await send_whole(sink, status, errors.headers(None, close=close), msgspec.json.encode(content))
