"""Agent runs and plugins over HTTP: ``/api/runs``, ``/api/workers`` and ``/api/agents``.

The body of ``POST /api/runs`` becomes a task: every mistake is named before anything begins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import trio
from msgspec import Meta, Raw, Struct, field, structs
from quart import Response, request

from appliance.agents.owner import Agents
from appliance.agents.record import (
    PastRun,
    RunResult,
    RunStatus,
    RunTimeouts,
    result_of,
    status_of,
)
from appliance.agents.run import AgentRun, RequestedRun
from appliance.core.bodies.head import check_json
from appliance.core.bodies.schema_check import schema_problem
from appliance.core.config.additions import RunsConfig
from appliance.core.mcp.offers import Offers
from appliance.core.near_names import meant_or_all
from appliance.core.openai import FunctionDefinition, ToolDefinition
from appliance.core.runs.listing import parse_run_query, select_runs
from appliance.core.secrets import without_secret_values
from appliance.core.tools.box import Toolbox, ToolSpec
from appliance.core.turns.bios import BIOS_FACTS, unknown_fact
from appliance.core.turns.messages import MAX_ITERATIONS, Task, Tool
from appliance.errors import BadRequest, NotFound, NotReady
from appliance.http import errors
from appliance.http.control.answers import (
    EVENT_STREAM,
    endless_answer,
    json_answer,
    parameters,
    parse_as,
    read_as,
    read_body,
)
from appliance.http.control.routes import FOLLOWS, RouteFacts, Routes, large
from appliance.http.control.stream_routes import StreamBody
from appliance.http.way.resumable import read_offset
from appliance.plugins.registry import ListedPlugin, Plugins
from appliance.tools.box import OpenToolbox
from appliance.traffic.targets import Targets
from appliance.traffic.traffic import Feeds

if TYPE_CHECKING:
    from appliance.tools.mcp_client import McpClient

OWNED = ("messages", "tools", "stream", "model", "parallel_tool_calls")
"""Members that ``params`` must not hold: the run sets them itself."""
MAX_DEFINITIONS = 1 << 20
"""Bytes of all definitions of one run: each is checked for being a schema."""
RESULT_KEYS = ("results",)
RUNS = "/api/runs"


class _Timeouts(Struct, forbid_unknown_fields=True):
    connect: Annotated[float, Meta(gt=0)] | None = None
    headers: Annotated[float, Meta(gt=0)] | None = None
    stall: Annotated[float, Meta(gt=0)] | None = None


class RunRequest(Struct, frozen=True, kw_only=True):
    """The body; ``tools`` are names, ``mcp:<server>``, or definitions of functions that the caller executes."""

    model: str
    messages: list[Raw] | None = None
    system_prompt: str | None = None
    user_prompt: str | None = None
    tools: list[str | dict[str, Raw]] = []
    exit_tools: list[dict[str, Raw]] = []
    params: dict[str, Raw] = {}
    max_tool_iterations: Annotated[int, Meta(ge=0, le=MAX_ITERATIONS)] = 8
    timeouts: _Timeouts | None = None
    repeated_line_limit: Annotated[int, Meta(ge=0)] = 0
    parallel_tool_calls: bool = False
    bios: bool | str = True


KEYS = RunRequest.__struct_fields__
_decode_keys = msgspec.json.Decoder(dict[str, Raw]).decode
_encode = msgspec.json.encode


class _Message(Struct):
    role: str


def read_run(body: bytes, toolbox: Toolbox, settings: RunsConfig) -> tuple[Task, RunTimeouts]:
    """Raises BadRequest."""
    check_json(body)  # says what is wrong with it, and where
    _refuse_unknown(_decode_keys(body), KEYS)
    asked = parse_as(body, RunRequest)
    if not asked.model:
        raise BadRequest("'model' is empty; GET /v1/models lists what there is", param="model")
    if owned := [name for name in OWNED if name in asked.params]:
        raise BadRequest(f"'params.{owned[0]}' is for the run to say; give it beside 'params'", param="params")
    if (name := unknown_fact(asked.bios)) is not None:
        raise BadRequest(f"'bios' names ${{{name}}}, which is not known{meant_or_all(name, BIOS_FACTS)}", param="bios")
    task = Task(
        model=asked.model,
        messages=tuple(_messages(asked)),
        tools=tuple(_tools(asked, toolbox)),
        params=asked.params,
        max_tool_iterations=asked.max_tool_iterations,
        repeated_line_limit=asked.repeated_line_limit,
        parallel_tool_calls=asked.parallel_tool_calls,
        bios=asked.bios,
    )
    return task, _limits(asked.timeouts, settings)


def _limits(asked: _Timeouts | None, settings: RunsConfig) -> RunTimeouts:
    times = asked or _Timeouts()
    return RunTimeouts(
        connect=times.connect or settings.connect,
        headers=times.headers or settings.headers,
        stall=times.stall or settings.stall,
    )


def _messages(asked: RunRequest) -> list[Raw]:
    prompts = asked.system_prompt is not None or asked.user_prompt is not None
    if asked.messages is not None:
        if prompts:
            raise BadRequest("give either 'messages' or the prompts, not both", param="messages")
        for at, message in enumerate(asked.messages):
            try:
                msgspec.json.decode(message, type=_Message)
            except msgspec.ValidationError as error:
                raise BadRequest(f"message {at} cannot be used: {error}", param="messages") from None
        if not asked.messages:
            raise BadRequest("'messages' is empty; give at least one, or 'user_prompt'", param="messages")
        return asked.messages
    if not asked.user_prompt:
        raise BadRequest("there is nothing to answer; give 'messages', or 'user_prompt'", param="messages")
    told = [] if asked.system_prompt is None else [{"role": "system", "content": asked.system_prompt}]
    return [Raw(_encode(message)) for message in (*told, {"role": "user", "content": asked.user_prompt})]


def _tools(asked: RunRequest, toolbox: Toolbox) -> list[Tool]:
    named = [tool for tool in asked.tools if isinstance(tool, str)]
    clients = [tool for tool in asked.tools if not isinstance(tool, str)]
    if sum(len(value) for each in (*clients, *asked.exit_tools) for value in each.values()) > MAX_DEFINITIONS:
        raise BadRequest(f"the definitions of tools are larger than {MAX_DEFINITIONS} bytes", param="tools")
    tools = [
        *(_tool(spec, "server") for spec in toolbox.select(named)),
        *(_tool(_function(each, "tools"), "client") for each in clients),
        *(_tool(_function(each, "exit_tools"), "exit") for each in asked.exit_tools),
    ]
    names = Counter(tool.name for tool in tools)
    if twice := [name for name in names if names[name] > 1]:
        raise BadRequest(f"there are two tools called '{twice[0]}'", param="tools")
    return tools


def _tool(said: FunctionDefinition | ToolSpec, runner: Literal["server", "client", "exit"]) -> Tool:
    return Tool(name=said.name, description=said.description, parameters=said.parameters, runner=runner)


def _function(definition: dict[str, Raw], param: str) -> FunctionDefinition:
    raw = _encode(definition)
    try:
        function = (
            msgspec.json.decode(raw, type=ToolDefinition).function
            if "function" in definition
            else msgspec.json.decode(raw, type=FunctionDefinition)
        )
    except msgspec.ValidationError as error:
        form = '{"type": "function", "function": {"name", "description", "parameters"}}'
        raise BadRequest(
            f"a definition in '{param}' cannot be used: {error}; it looks like {form}", param=param
        ) from None
    if problem := schema_problem(bytes(function.parameters)):
        raise BadRequest(f"the parameters of '{function.name}' are not a schema: {problem}", param=param)
    return function


class _Result(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The outcome of one call: exactly one of ``content`` and ``error``."""

    tool_call_id: str
    content: Raw = field(default_factory=Raw)
    error: str | None = None


class ToolResults(Struct):
    results: list[_Result]


def read_results(body: bytes) -> dict[str, tuple[str, str | None]]:
    """The body of ``POST /api/runs/<id>/tool_results``: words for the model, or why a tool could not be used."""
    check_json(body)
    _refuse_unknown(_decode_keys(body), RESULT_KEYS)
    form = '{"results": [{"tool_call_id", "content" or "error"}]}'
    results = parse_as(body, ToolResults, param="results", form=form).results
    for result in results:
        if bool(result.content) == (result.error is not None):
            raise BadRequest(
                f"the result of call '{result.tool_call_id}' needs 'content' or 'error', one of them", param="results"
            )
    return {result.tool_call_id: (_text(result.content), result.error) for result in results}


def _text(content: Raw) -> str:
    """A string as it is, any other JSON as its text; nothing as an empty one."""
    try:
        return msgspec.json.decode(content or b'""', type=str)
    except msgspec.ValidationError:
        return bytes(content).decode()


def _refuse_unknown(given: Iterable[str], known: tuple[str, ...]) -> None:
    for name in given:
        if name not in known:
            raise BadRequest(f"there is no key '{name}' in this request{meant_or_all(name, known)}", param=name)


class AgentList(Struct, frozen=True, kw_only=True):
    """The answer to ``GET /api/agents``.

    ``problems`` are folders that cannot be read, and plugins of the configuration that are not there. ``off`` is None,
    or why there are no plugins at all, and how there would be some.
    """

    agents: list[ListedPlugin]
    folders: tuple[str, ...]
    problems: tuple[str, ...]
    off: str | None


class PromptRequest(Struct):
    server: str
    name: str
    arguments: dict[str, str] = {}


class ResourceRequest(Struct):
    server: str
    uri: str


def agents_of(plugins: Plugins) -> AgentList:
    """Return the plugins as known now, without the secrets in their settings."""
    return AgentList(
        agents=[structs.replace(each, values=without_secret_values(each.values)) for each in plugins.listed()],
        folders=tuple(str(folder) for folder in plugins.choice.folders),
        problems=plugins.problems,
        off=plugins.choice.off,
    )


def add_mcp_routes(app: Routes, tools: OpenToolbox) -> None:
    """Prompts and resources of the MCP servers that the program uses, for its page."""

    def named(name: str) -> McpClient:
        if (server := tools.servers.get(name)) is None:
            known = ", ".join(tools.servers) or "none"
            raise NotFound(f"there is no MCP server '{name}'; there is {known}")
        return server

    async def offers() -> Response:
        found: list[Offers] = []

        async def ask(server: McpClient) -> None:
            found.append(await server.offers())

        async with trio.open_nursery() as nursery:
            for server in tools.servers.values():
                nursery.start_soon(ask, server)
        return json_answer({"servers": sorted(found, key=lambda one: one.server)})

    async def prompt() -> Response:
        asked = await read_as(PromptRequest)
        return json_answer({"text": await named(asked.server).prompt(asked.name, asked.arguments)})

    async def resource() -> Response:
        asked = await read_as(ResourceRequest)
        return json_answer({"text": await named(asked.server).resource(asked.uri)})

    app.add_url_rule("/api/mcp", "mcp offers", offers)
    app.add_url_rule("/api/mcp/prompt", "mcp prompt", prompt, methods=["POST"], facts=RouteFacts(takes=PromptRequest))
    app.add_url_rule(
        "/api/mcp/resource", "mcp resource", resource, methods=["POST"], facts=RouteFacts(takes=ResourceRequest)
    )


def add_agent_routes(app: Routes, plugins: Plugins) -> None:
    """``GET /api/agents``, and ``POST /api/agents/reload``, which answers when all are loaded or cannot be."""

    async def show() -> Response:
        plugins.begin()
        return json_answer(agents_of(plugins))

    async def reload() -> Response:
        await plugins.look()
        await plugins.wait_loaded()
        return json_answer(agents_of(plugins))

    app.add_url_rule("/api/agents", "agents", show)
    app.add_url_rule("/api/agents/reload", "agents reload", reload, methods=["POST"])


class _Unready(Struct):
    error: errors.ErrorInfo
    partial: RunResult


class RunRoutes:
    """Every method is one route."""

    def __init__(self, targets: Targets, agents: Agents, feeds: Feeds) -> None:
        self._targets = targets
        self._agents = agents
        self._feeds = feeds
        self._reading = trio.CapacityLimiter(1)

    async def submit(self) -> Response:
        """202 at once; the model's name is resolved, and its slots are asked, before."""
        read = partial(read_run, await read_body(), self._agents.toolbox, self._agents.settings)
        task, limits = await trio.to_thread.run_sync(read, limiter=self._reading)  # checking schemas takes its time
        worker = await self._targets.worker(task.model)
        run = self._agents.submit(RequestedRun(task=task, worker=worker, limits=limits))
        answer = json_answer({"id": run.id, "state": run.record().outcome.state}, 202)
        answer.headers["Location"] = f"{RUNS}/{run.id}"
        return answer

    async def list(self) -> Response:
        runs = [status_of(record) for record in self._agents.list()]
        return json_answer({"data": select_runs(parse_run_query(parameters()), runs)})

    async def show(self, run_id: str) -> Response:
        return json_answer(status_of(self._agents.find(run_id).record()))

    async def result(self, run_id: str) -> Response:
        record = self._agents.find(run_id).record()
        if record.ended:
            return json_answer(result_of(record))
        return json_answer(_Unready(errors.describe(NotReady(run_id)), result_of(record)), 409)

    async def events(self, run_id: str) -> Response:
        """Send the events from the byte offset ``?from=`` on, past ones included; ``sse_ids=1`` numbers the records."""
        run: AgentRun | PastRun = self._agents.find(run_id)
        numbered = request.args.get("sse_ids") in ("1", "true")
        offset = read_offset(request.headers.get("Last-Event-ID") if numbered else None, request.args.get("from"))
        if offset < run.feed.ring.dropped:
            raise BadRequest(
                f"the events before offset {run.feed.ring.dropped} are not held any more (runs.eventBytes); "
                f"begin there, GET {RUNS}/{run_id}/result has all of the output",
                param="from",
            )
        return endless_answer(StreamBody(run.feed.reader(offset), offset, numbered=numbered), EVENT_STREAM, self._feeds)

    async def tool_results(self, run_id: str) -> Response:
        run = self._agents.answer(run_id, read_results(await read_body()))
        return json_answer(status_of(run.record()))

    async def cancel(self, run_id: str) -> Response:
        """Cancel the run; harmless if it has ended already."""
        self._agents.cancel(run_id)
        return await self.show(run_id)

    async def workers(self) -> Response:
        return json_answer({"data": self._agents.workers()})

    async def reset(self, model: str) -> Response:
        return json_answer(self._agents.reset(model))


def add_run_routes(app: Routes, targets: Targets, agents: Agents, feeds: Feeds) -> None:
    """Register everything here on the program's application."""
    routes = RunRoutes(targets, agents, feeds)
    app.add_url_rule("/api/runs", "submit run", routes.submit, methods=["POST"], facts=large(RunRequest))
    app.add_url_rule("/api/runs", "list runs", routes.list)
    app.add_url_rule("/api/runs/<run_id>", "show run", routes.show, facts=RouteFacts(gives=RunStatus))
    app.add_url_rule("/api/runs/<run_id>", "cancel run", routes.cancel, methods=["DELETE"])
    app.add_url_rule("/api/runs/<run_id>/result", "result of run", routes.result, facts=RouteFacts(gives=RunResult))
    app.add_url_rule("/api/runs/<run_id>/events", "events of run", routes.events, facts=FOLLOWS)
    results = f"{RUNS}/<run_id>/tool_results"
    app.add_url_rule(results, "tool results", routes.tool_results, methods=["POST"], facts=large(ToolResults))
    app.add_url_rule("/api/workers", "list workers", routes.workers)
    app.add_url_rule("/api/workers/<path:model>/reset", "reset worker", routes.reset, methods=["POST"])
