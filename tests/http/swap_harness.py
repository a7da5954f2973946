"""llama-swap's routes and the loading stream on a Quart application, real connections, and a real fleet of fakes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import trio
from http_harness import Appliance, model
from hypercorn.app_wrappers import ASGIWrapper
from quart import Response, request
from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException

from appliance.catalog.catalog import Catalog, Snapshot
from appliance.catalog.sources import Sources as ModelSources
from appliance.core.captures import CaptureBuffer
from appliance.core.config.types import Config
from appliance.core.head import read_json
from appliance.core.log_lines import LogToStdout
from appliance.core.machine import Hardware
from appliance.core.model import Model
from appliance.core.settings import FleetSettings, HttpSettings
from appliance.core.sse import Dialect, error_record
from appliance.engines.found import Engine
from appliance.errors import ApplianceError, RouteNotFound
from appliance.fleet.owner import Fleet, open_fleet
from appliance.http import errors
from appliance.http.body import Bodies, Receive
from appliance.http.events import Sources
from appliance.http.inflight import Entry, InFlight
from appliance.http.lifetime import Lifetime
from appliance.http.loading import LoadingStream
from appliance.http.profile import ActiveProfile
from appliance.http.program_log import LogFeeds, ProgramLog
from appliance.http.record_routes import Records
from appliance.http.relay import relay
from appliance.http.request import Request, read_request
from appliance.http.rows import ActivityRows
from appliance.http.server import _Clients
from appliance.http.sink import AsgiSink, Headers
from appliance.http.swap_api import Reload, SwapApi, add_routes
from appliance.http.view import View
from appliance.peers.owner import Peers, open_peers
from appliance.platform.hardware import detect
from appliance.platform.samples import open_samples
from appliance.store.activity import Activity, open_activity
from appliance.upstream.client import exchange, forwardable


class Swap(Appliance):
    """The server under test and everything it tells of."""

    def __init__(self, fleet: Fleet, catalog: Catalog, peers: Peers, activity: Activity) -> None:
        super().__init__(0, fleet, catalog, trio.Event(), trio.Event())
        self.activity = activity
        self.lifetime = Lifetime()
        self.captures = CaptureBuffer(1 << 20)
        self.rows = ActivityRows()
        self.inflight = InFlight()
        self.profile = ActiveProfile()
        self.log = ProgramLog(fleet.logs)
        self.feeds = LogFeeds(self.log, fleet.logs, self._mode)
        self.view = View(fleet, catalog, peers, self.profile)
        self.sources = Sources(self.view, self.feeds, self.inflight, self.rows, self.lifetime)
        self.loading_state = False
        self.jokes = False
        self.position: int | None = None
        self.progress: float | None = None
        self.ping_after = 15.0

    def adopt(self, config: Config | None) -> None:
        """Put this configuration in force; the models stay."""
        self.catalog.snapshot = Snapshot(self.catalog.snapshot.models, config=config)

    def _mode(self) -> LogToStdout:
        config = self.catalog.snapshot.config
        return config.log_to_stdout if config is not None else "upstream"


OpenSwap = Callable[..., AbstractAsyncContextManager[Swap]]
"""`open_swap` with the fake engine filled in."""


@asynccontextmanager
async def open_swap(
    command: Sequence[str],
    model_file: Path,
    *,
    models: Sequence[Model] | None = None,
    config: Config | None = None,
    reload: Reload | None = None,
    sample_every: float | None = None,
    store: Path | None = None,
    detect: Callable[[], Awaitable[Hardware | None]] = detect,
) -> AsyncGenerator[Swap]:
    """Serve models ``alpha`` (alias ``al``) and ``org/beta``, or those given."""
    engine = Engine(name="fake", backend="cpu", version="b11434", command=tuple(command), source="the tests")
    catalog = Catalog(ModelSources(starter=None))
    known = models if models is not None else [model(model_file, "alpha", "al"), model(model_file, "org/beta")]
    catalog.snapshot = Snapshot(known, config=config)
    fleet_settings = FleetSettings(stop_timeout=2.0)
    async with (
        open_fleet(fleet_settings, engine) as fleet,
        open_activity(store, 100) as activity,
        open_peers(config) as peers,
        open_samples(sample_every) as samples,
    ):
        server = Swap(fleet, catalog, peers, activity)
        records = Records(activity, lambda: server.captures, samples, detect)
        app = _quart(SwapApi(server.sources, records, reload))
        clients = _Clients(ASGIWrapper(_Front(app, server)), 120.0)
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        server.port = listener.socket.getsockname()[1]
        async with listener, trio.open_nursery() as connections:
            connections.start_soon(clients.accept, listener, connections)
            yield server
            connections.cancel_scope.cancel()


def _quart(api: SwapApi) -> QuartTrio:
    app = QuartTrio("appliance.http", static_folder=None)
    app.config["RESPONSE_TIMEOUT"] = None
    app.config["PROVIDE_AUTOMATIC_OPTIONS"] = False
    app.url_map.strict_slashes = False
    app.url_map.merge_slashes = False
    add_routes(app, api)
    app.register_error_handler(ApplianceError, _refuse)
    app.register_error_handler(HTTPException, _refuse_http)
    return app


async def _refuse(error: ApplianceError) -> Response:
    info = errors.describe(error)
    return Response(errors.body(info), info.code, content_type="application/json")


async def _refuse_http(_: HTTPException) -> Response:
    return await _refuse(RouteNotFound(request.method, request.path))


class _Front:
    """Inference requests to a fleet's model with everything that reports on them; the rest to the Quart app."""

    def __init__(self, app: QuartTrio, server: Swap) -> None:
        self._app = app
        self._server = server
        self._bodies = Bodies(HttpSettings())

    async def __call__(self, scope, receive: Receive, send) -> None:
        if scope["type"] != "http":
            return
        state = scope["state"]
        sink = AsgiSink(send, state["abort"], (), state["write"])
        if not scope["path"].startswith("/v1/chat"):
            await self._app(scope, receive, sink.pass_on)
            return
        request = read_request(scope, "")
        try:
            with self._bodies.reading() as reader, self._server.lifetime.request():
                body = await reader.read(request, receive)
                await self._infer(request, body, sink)
        except ApplianceError as error:
            await _explain(sink, error)

    async def _infer(self, request: Request, body: bytes, sink: AsgiSink) -> None:
        server = self._server
        chosen = server.catalog.snapshot.require(request.query["model"])
        failure: ApplianceError | None = None
        loading = LoadingStream(
            sink, chosen.id, lambda: server.position, lambda: server.progress, server.jokes, server.ping_after
        )
        with server.inflight.begin(request, chosen.id, "127.0.0.1", {"fifo_priority": "0"}) as entry:
            async with trio.open_nursery() as nursery:
                if server.loading_state and read_json(body).stream:
                    nursery.start_soon(loading.run)
                try:
                    async with server.fleet.lease(chosen) as address:
                        loading.ready()
                        forwarded = request.method, request.target, forwardable(request.headers)
                        async with exchange(address, *forwarded, body) as response:
                            loading.stop()
                            await relay(response, _Counted(sink, entry))
                except ApplianceError as error:
                    failure = error
                nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure


class _Counted:
    """A sink that tells the registry what passes through it."""

    def __init__(self, sink: AsgiSink, entry: Entry) -> None:
        self._sink = sink
        self._entry = entry

    def __getattr__(self, name: str):
        return getattr(self._sink, name)

    async def start(self, status: int, headers: Headers) -> None:
        self._entry.started(headers)
        await self._sink.start(status, headers)

    async def write(self, data: bytes) -> None:
        self._entry.wrote(len(data))
        await self._sink.write(data)


async def _explain(sink: AsgiSink, error: ApplianceError) -> None:
    info = errors.describe(error)
    if sink.status is None:
        await sink.start(info.code, errors.headers(error, close=True))
        await sink.write(errors.body(info))
    else:
        await sink.write(error_record(Dialect.OPENAI, info))
    await sink.end()
