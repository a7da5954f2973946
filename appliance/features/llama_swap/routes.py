"""llama-swap's routes beside the models' own: what runs, unloading, profiles, requests under way, reload; and the past.

The past is the activity log, its statistics, captured requests, samples of the machine, and the timeline. Paths and
answers are llama-swap's (0bdb3720), but for the last; errors have this program's one shape.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import trio
from msgspec import UNSET, Struct, UnsetType, structs
from quart import Response, request

from appliance.catalog.configuration import Reloaded
from appliance.core.machine import Hardware
from appliance.core.parameters import read_time, read_whole
from appliance.core.records.activity import MAX_LIMIT, Query, parse_format, parse_models, parse_query
from appliance.features.activity.rules import Format, head, lines
from appliance.core.records.history import parse_history_query
from appliance.core.records.history_words import told
from appliance.errors import BadRequest, Busy, NotFound, UsageError
from appliance.http.control.answers import Pieces, json_answer, parameters, read_as, text_answer
from appliance.features.llama_swap.events import EventSources, FeedRoutes
from appliance.http.control.routes import FOLLOWS, RouteFacts, Routes
from appliance.http.way.routes import RELOAD
from appliance.platform.samples import Samples
from appliance.store.history import History
from appliance.traffic.recorder import Recorder

EXPORTED: Mapping[Format, str] = {"jsonl": "application/x-ndjson", "csv": "text/csv; charset=utf-8"}


class ActivityExport(Pieces):
    """All rows that a query finds, from the newest on; rows that come meanwhile are left out."""

    def __init__(self, recorder: Recorder, query: Query, kind: Format) -> None:
        self._recorder = recorder
        self._query = query
        self._kind: Format = kind
        self._before = head(kind)
        self._over = False

    async def __anext__(self) -> bytes:
        if self._over:
            raise StopAsyncIteration
        rows = await self._recorder.rows(self._query)
        before, self._before = self._before, b""
        self._over = len(rows) < self._query.limit or rows[-1].id <= max(1, self._query.min_id or 0)
        if rows:
            self._query = structs.replace(self._query, max_id=rows[-1].id - 1)
        return before + lines(rows, self._kind)


class RecordRoutes:
    """Every method is one route. ``detect`` looks at the hardware; its answer is kept."""

    def __init__(
        self,
        recorder: Recorder,
        history: History,
        samples: Samples,
        detect: Callable[[], Awaitable[Hardware | None]],
    ) -> None:
        self._recorder = recorder
        self._history = history
        self._samples = samples
        self._detect = detect
        self._hardware: Hardware | None = None
        self._detecting = trio.Lock()

    async def activity(self) -> Response:
        return json_answer(await self._recorder.page(parse_query(parameters())))

    async def export(self) -> Response:
        kind = parse_format(parameters())
        query = structs.replace(parse_query(parameters()), limit=MAX_LIMIT, page=1, sort="id", order="desc")
        response = Response(ActivityExport(self._recorder, query, kind), content_type=EXPORTED[kind])
        response.headers["Content-Disposition"] = f'attachment; filename="activity.{kind}"'
        response.timeout = None
        return response

    async def stats(self) -> Response:
        models = parse_models(parameters())
        return json_answer(await self._recorder.read(lambda table: table.stats(models)))

    async def capture(self, capture_id: str) -> Response:
        row = read_whole(capture_id, "id")
        capture = await self._recorder.capture(row)
        if capture is None:
            raise NotFound(f"there is no capture of request {row}; captureBuffer holds only the latest")
        return json_answer(capture)

    async def history(self) -> Response:
        entries = await self._history.read(parse_history_query(parameters()))
        return json_answer({"data": [told(entry) for entry in entries]})

    async def performance(self) -> Response:
        if not self._samples.enabled:
            return json_answer({"enabled": False}, 503)
        after = request.args.get("after")
        return json_answer(self._samples.since(read_time(after, "after") if after else None))

    async def hardware(self) -> Response:
        async with self._detecting:
            if self._hardware is None:
                self._hardware = await self._detect()
        if self._hardware is None:
            raise Busy("the hardware cannot be described; the log says why", retry_after=60)
        return json_answer(self._hardware)


Reload = Callable[[], Awaitable[Reloaded]]
"""Reads configuration and presets again and puts them in force: `Reloads.reload`."""


class ProfileChoice(Struct):
    name: str | UnsetType | None = UNSET


class SwapApi:
    """Answers to llama-swap's routes; every method is one. ``reload`` is None where there is nothing to read again."""

    def __init__(self, sources: EventSources, records: RecordRoutes, reload: Reload | None) -> None:
        self.feeds = FeedRoutes(sources)
        self.records = records
        self._view = sources.view
        self._inflight = sources.inflight
        self._reload = reload

    async def unload_by_get(self) -> Response:
        """Stop every model. HEAD changes nothing, and the guard refuses pages of other sites."""
        if request.method == "GET":
            await self._unload_all()
        return text_answer("OK")

    async def unload_all(self) -> Response:
        await self._unload_all()
        return json_answer({"msg": "ok"})

    async def unload_one(self, model: str) -> Response:
        """Stop one model, by id or alias; done when it does not run anyway."""
        model_id = self._view.model_id(model)
        if model_id is None:
            raise NotFound(f"model not found: '{model}'; GET /running lists what runs")
        await self._view.fleet.unload(model_id)
        return text_answer("OK")

    async def profiles(self) -> Response:
        return json_answer(self._view.profiles())

    async def choose_profile(self) -> Response:
        chosen = (await read_as(ProfileChoice, param="name")).name
        if isinstance(chosen, UnsetType):
            raise BadRequest("'name' is missing; it is a profile's name, or null for none", param="name")
        if chosen and chosen not in self._view.config.profiles:
            raise NotFound(f"profile not found: '{chosen}'; GET /api/profiles lists them")
        self._view.profile.choose(chosen or None)
        return json_answer({"active": self._view.profile.name})

    async def cancel(self, request_id: str) -> Response:
        if not self._inflight.cancel(request_id):
            raise NotFound(f"no request '{request_id}' is under way")
        return json_answer({"msg": "ok"})

    async def reload(self) -> Response:
        if self._reload is None:
            raise UsageError(
                "the program runs without a configuration file or presets; start it with --config or --models-preset"
            )
        done = await self._reload()
        warnings = [str(warning) for warning in done.warnings]
        return json_answer({"success": True, "warnings": warnings, "changed": done.changed})

    async def _unload_all(self) -> None:
        """All at once; returns when every process has ended."""
        async with trio.open_nursery() as nursery:
            for status in self._view.fleet.status():
                if status.state != "unloaded":
                    nursery.start_soon(self._view.fleet.unload, status.model)


def add_routes(app: Routes, api: SwapApi) -> None:
    """Register everything here, and the feeds and records, on the program's application."""
    feeds, records = api.feeds, api.records
    app.add_url_rule("/unload", "unload all by GET", api.unload_by_get)
    app.add_url_rule("/api/models/unload", "unload all", api.unload_all, methods=["POST"])
    app.add_url_rule("/api/models/unload/<path:model>", "unload one", api.unload_one, methods=["POST"])
    app.add_url_rule("/api/profiles", "profiles", api.profiles)
    app.add_url_rule(
        "/api/profiles/active",
        "choose profile",
        api.choose_profile,
        methods=["PUT"],
        facts=RouteFacts(takes=ProfileChoice),
    )
    app.add_url_rule("/api/inflight/<request_id>/cancel", "cancel", api.cancel, methods=["POST"])
    app.add_url_rule(RELOAD, "reload", api.reload, methods=["POST"])
    app.add_url_rule("/api/events", "events", feeds.events, facts=FOLLOWS)
    app.add_url_rule("/logs", "combined log", feeds.logs)
    app.add_url_rule("/logs/stream", "combined log stream", feeds.follow, facts=FOLLOWS)
    app.add_url_rule("/logs/stream/<path:which>", "log stream", feeds.follow, facts=FOLLOWS)
    app.add_url_rule("/api/metrics/activity", "activity", records.activity)
    app.add_url_rule("/api/metrics/activity/export", "activity_export", records.export)
    app.add_url_rule("/api/metrics/stats", "stats", records.stats)
    app.add_url_rule("/api/captures/<capture_id>", "capture", records.capture)
    app.add_url_rule("/api/history", "history", records.history)
    app.add_url_rule("/api/performance", "performance", records.performance)
    app.add_url_rule("/api/hardware", "hardware", records.hardware, facts=RouteFacts(gives=Hardware))
