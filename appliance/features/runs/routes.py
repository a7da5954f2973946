"""Runs over HTTP: ``/api/runs`` and ``/api/workers``.

The body of ``POST /api/runs`` becomes a task: every mistake is named before anything begins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import partial
from typing import Annotated, Literal

import msgspec
import trio
from msgspec import Meta, Raw, Struct, field
from quart import Response, request

from appliance.core.bodies.head import check_json
from appliance.core.bodies.schema_check import schema_problem
from appliance.core.config.additions import RunsConfig
from appliance.core.lenient_json import decoded
from appliance.core.near_names import meant_or_all
from appliance.core.openai import FunctionDefinition, ToolDefinition
from appliance.core.tools.box import Toolbox, ToolSpec
from appliance.core.turns.bios import BIOS_FACTS, unknown_fact
from appliance.core.turns.messages import MAX_ITERATIONS, Task, Tool
from appliance.errors import BadRequest, NotReady
from appliance.features.runs.owner import Agents
from appliance.features.runs.record import RunResult, RunStatus, RunTimeouts, result_of, status_of
from appliance.features.runs.rules import parse_run_query, select_runs
from appliance.http import errors
from appliance.http.control.answers import EVENT_STREAM, endless_answer, json_answer, parameters, parse_as, read_body
from appliance.http.control.routes import FOLLOWS, Routes, large
from appliance.http.control.stream_body import StreamBody, read_offset
from appliance.http.kernel import Kernel
from appliance.http.route_facts import RouteFacts

OWNED = ("messages", "tools", "stream", "model", "parallel_tool_calls")
"""Members that ``params`` must not hold: the run sets them itself."""
MAX_DEFINITIONS = 1 << 20  # bytes of all definitions of one run: each is checked for being a schema
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


class _Role(Struct):
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
        model=asked.model, messages=tuple(_messages(asked)), tools=tuple(_tools(asked, toolbox)), params=asked.params,
        max_tool_iterations=asked.max_tool_iterations, repeated_line_limit=asked.repeated_line_limit,
        parallel_tool_calls=asked.parallel_tool_calls, bios=asked.bios,
    )  # fmt: skip
    times = asked.timeouts or _Timeouts()
    connect, headers, stall = times.connect, times.headers, times.stall
    return task, RunTimeouts(connect or settings.connect, headers or settings.headers, stall or settings.stall)


def _messages(asked: RunRequest) -> list[Raw]:
    prompts = asked.system_prompt is not None or asked.user_prompt is not None
    if asked.messages is not None:
        if prompts:
            raise BadRequest("give either 'messages' or the prompts, not both", param="messages")
        for at, message in enumerate(asked.messages):
            try:
                msgspec.json.decode(message, type=_Role)
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
        if "function" in definition:
            function = msgspec.json.decode(raw, type=ToolDefinition).function
        else:
            function = msgspec.json.decode(raw, type=FunctionDefinition)
    except msgspec.ValidationError as error:
        form = '{"type": "function", "function": {"name", "description", "parameters"}}'
        told = f"a definition in '{param}' cannot be used: {error}; it looks like {form}"
        raise BadRequest(told, param=param) from None
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
            told = f"the result of call '{result.tool_call_id}' needs 'content' or 'error', one of them"
            raise BadRequest(told, param="results")
    texts = ((result, decoded(str, result.content)) for result in results)  # any other JSON stays as its text
    return {
        result.tool_call_id: (text if text is not None else bytes(result.content).decode(), result.error)
        for result, text in texts
    }


def _refuse_unknown(given: Iterable[str], known: tuple[str, ...]) -> None:
    for name in given:
        if name not in known:
            raise BadRequest(f"there is no key '{name}' in this request{meant_or_all(name, known)}", param=name)


def run_routes(kernel: Kernel, agents: Agents) -> Routes:
    """Return the routes of runs, and of the workers that they use."""
    routes, targets, feeds = Routes("runs"), kernel.traffic.targets, kernel.traffic.lifetime.feeds
    reading = trio.CapacityLimiter(1)

    def shown(run_id: str) -> Response:
        return json_answer(status_of(agents.find(run_id).record()))

    @routes.post("/api/runs", facts=large(RunRequest))
    async def submit_run() -> Response:
        """202 at once; the model's name is resolved, and its slots are asked, before."""
        from appliance.features.runs.run import RequestedRun  # with the loop of tools

        read = partial(read_run, await read_body(), agents.toolbox, agents.settings)
        task, limits = await trio.to_thread.run_sync(read, limiter=reading)  # checking schemas takes its time
        worker = await targets.worker(task.model)
        run = agents.submit(RequestedRun(task=task, worker=worker, limits=limits))
        answer = json_answer({"id": run.id, "state": run.record().outcome.state}, 202)
        answer.headers["Location"] = f"{RUNS}/{run.id}"
        return answer

    @routes.get("/api/runs")
    async def list_runs() -> Response:
        runs = [status_of(record) for record in agents.list()]
        return json_answer({"data": select_runs(parse_run_query(parameters()), runs)})

    @routes.get("/api/runs/<run_id>", facts=RouteFacts(gives=RunStatus))
    async def show_run(run_id: str) -> Response:
        return shown(run_id)

    @routes.delete("/api/runs/<run_id>")
    async def cancel_run(run_id: str) -> Response:
        """Cancel the run; harmless if it has ended already."""
        agents.cancel(run_id)
        return shown(run_id)

    @routes.get("/api/runs/<run_id>/result", facts=RouteFacts(gives=RunResult))
    async def result_of_run(run_id: str) -> Response:
        record = agents.find(run_id).record()
        if record.ended:
            return json_answer(result_of(record))
        return json_answer({"error": errors.describe(NotReady(run_id)), "partial": result_of(record)}, 409)

    @routes.get("/api/runs/<run_id>/events", facts=FOLLOWS)
    async def events_of_run(run_id: str) -> Response:
        """Send the events from the byte offset ``?from=`` on, past ones included; ``sse_ids=1`` numbers the records."""
        feed = agents.find(run_id).feed
        numbered = request.args.get("sse_ids") in ("1", "true")
        offset = read_offset(request.headers.get("Last-Event-ID") if numbered else None, request.args.get("from"))
        if offset < feed.ring.dropped:
            told = f"the events before offset {feed.ring.dropped} are not held any more (runs.eventBytes); begin there,"
            raise BadRequest(f"{told} GET {RUNS}/{run_id}/result has all of the output", param="from")
        return endless_answer(StreamBody(feed.reader(offset), offset, numbered=numbered), EVENT_STREAM, feeds)

    @routes.post("/api/runs/<run_id>/tool_results", facts=large(ToolResults))
    async def tool_results(run_id: str) -> Response:
        run = agents.answer(run_id, read_results(await read_body()))
        return json_answer(status_of(run.record()))

    @routes.get("/api/workers")
    async def list_workers() -> Response:
        return json_answer({"data": agents.workers()})

    @routes.post("/api/workers/<path:model>/reset")
    async def reset_worker(model: str) -> Response:
        return json_answer(agents.reset(model))

    return routes
