"""Agent runs and plugins over HTTP: ``/api/runs``, ``/api/workers`` and ``/api/agents``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

import trio
from msgspec import Struct
from quart import Response, request
from quart_trio import QuartTrio
from quart_trio.wrappers import TrioRequest

from appliance.agents.owner import Agents
from appliance.agents.record import PastRun, RunResult, RunStatus, WorkerStatus, result_of, status_of
from appliance.agents.run import Asked, Run
from appliance.errors import BadRequest, NotReady
from appliance.http import errors
from appliance.http.control.answers import endless_answer, json_answer, read_body
from appliance.http.control.run_request import read_results, read_run
from appliance.http.control.stream_routes import CONTENT_TYPE, StreamBody, read_offset
from appliance.plugins.registry import Listed, Plugins
from appliance.traffic.request import CONVERSATIONS
from appliance.traffic.targets import Targets

if TYPE_CHECKING:
    from hypercorn.typing import HTTPScope
    from werkzeug.datastructures import Headers


class AgentList(Struct, frozen=True, kw_only=True):
    """The answer to ``GET /api/agents``.

    ``problems`` are folders that cannot be read, and plugins of the configuration that are not there. ``off`` is None,
    or why there are no plugins at all, and how there would be some.
    """

    agents: list[Listed]
    folders: tuple[str, ...]
    problems: tuple[str, ...]
    off: str | None


def agents_of(plugins: Plugins) -> AgentList:
    """Return the plugins as known now."""
    return AgentList(
        agents=plugins.listed(),
        folders=tuple(str(folder) for folder in plugins.choice.folders),
        problems=plugins.problems,
        off=plugins.choice.off,
    )


def add_agent_routes(app: QuartTrio, plugins: Plugins) -> None:
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


RUNS = "/api/runs"
LARGE = (RUNS, CONVERSATIONS)
"""Beginnings of the paths whose bodies may have `MAX_RUN` bytes."""
MAX_RUN = 16 << 20
"""Bytes of a run's body, and of tool results: a conversation with a few pictures in it."""


class _Begun(Struct):
    id: str
    state: str


class _Runs(Struct):
    data: list[RunStatus]


class _Workers(Struct):
    data: list[WorkerStatus]


class _Unready(Struct):
    error: errors.ErrorInfo
    partial: RunResult


class RunRoutes:
    """Every method is one route."""

    def __init__(self, targets: Targets, agents: Agents) -> None:
        self._targets = targets
        self._agents = agents
        self._reading = trio.CapacityLimiter(1)

    async def submit(self) -> Response:
        """202 at once; the model's name is resolved, and its slots are asked, before."""
        read = partial(read_run, await read_body(), self._agents.toolbox, self._agents.settings)
        task, limits = await trio.to_thread.run_sync(read, limiter=self._reading)  # checking schemas takes its time
        worker = await self._targets.worker(task.model)
        run = self._agents.submit(Asked(task=task, worker=worker, limits=limits))
        answer = json_answer(_Begun(run.id, run.record().outcome.state), 202)
        answer.headers["Location"] = f"{RUNS}/{run.id}"
        return answer

    async def list(self) -> Response:
        return json_answer(_Runs([status_of(record) for record in self._agents.list()]))

    async def show(self, run_id: str) -> Response:
        return json_answer(status_of(self._agents.find(run_id).record()))

    async def result(self, run_id: str) -> Response:
        record = self._agents.find(run_id).record()
        if record.ended:
            return json_answer(result_of(record))
        return json_answer(_Unready(errors.describe(NotReady(run_id)), result_of(record)), 409)

    async def events(self, run_id: str) -> Response:
        """Send the events from the byte offset ``?from=`` on, past ones included; ``sse_ids=1`` numbers the records."""
        run: Run | PastRun = self._agents.find(run_id)
        numbered = request.args.get("sse_ids") in ("1", "true")
        offset = read_offset(request.headers.get("Last-Event-ID") if numbered else None, request.args.get("from"))
        if offset < run.feed.dropped:
            raise BadRequest(
                f"the events before offset {run.feed.dropped} are not held any more (runs.eventBytes); "
                f"begin there, GET {RUNS}/{run_id}/result has all of the output",
                param="from",
            )
        return endless_answer(StreamBody(run.feed.reader(offset), numbered=numbered), CONTENT_TYPE)

    async def tool_results(self, run_id: str) -> Response:
        run = self._agents.answer(run_id, read_results(await read_body()))
        return json_answer(status_of(run.record()))

    async def cancel(self, run_id: str) -> Response:
        """Cancel the run; harmless if it has ended already."""
        self._agents.cancel(run_id)
        return await self.show(run_id)

    async def workers(self) -> Response:
        return json_answer(_Workers(self._agents.workers()))

    async def reset(self, model: str) -> Response:
        return json_answer(self._agents.reset(model))


class RunsRequest(TrioRequest):
    """A request of the program's application; a conversation may be longer than what its other routes take."""

    def __init__(
        self,
        method: str,
        scheme: str,
        path: str,
        query_string: bytes,
        headers: Headers,
        root_path: str,
        http_version: str,
        scope: HTTPScope,
        *,
        max_content_length: int | None = None,
        body_timeout: int | None = None,
        send_push_promise: Callable[[str, Headers], Awaitable[None]],
    ) -> None:
        limit = MAX_RUN if path.startswith(LARGE) else max_content_length
        super().__init__(
            method,
            scheme,
            path,
            query_string,
            headers,
            root_path,
            http_version,
            scope,
            max_content_length=limit,
            body_timeout=body_timeout,
            send_push_promise=send_push_promise,
        )


def add_run_routes(app: QuartTrio, targets: Targets, agents: Agents) -> None:
    """Register everything here on the program's application."""
    routes = RunRoutes(targets, agents)
    app.request_class = RunsRequest
    app.add_url_rule("/api/runs", "submit run", routes.submit, methods=["POST"])
    app.add_url_rule("/api/runs", "list runs", routes.list)
    app.add_url_rule("/api/runs/<run_id>", "show run", routes.show)
    app.add_url_rule("/api/runs/<run_id>", "cancel run", routes.cancel, methods=["DELETE"])
    app.add_url_rule("/api/runs/<run_id>/result", "result of run", routes.result)
    app.add_url_rule("/api/runs/<run_id>/events", "events of run", routes.events)
    app.add_url_rule("/api/runs/<run_id>/tool_results", "tool results", routes.tool_results, methods=["POST"])
    app.add_url_rule("/api/workers", "list workers", routes.workers)
    app.add_url_rule("/api/workers/<path:model>/reset", "reset worker", routes.reset, methods=["POST"])
