"""The program's own routes that monitors, clients and browsers ask first: health and lists of models.

Answered without Quart, which takes 17 MB and a third of a second to import: every probe of a fresh server would pay it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import ClassVar

import msgspec
import trio

from appliance.core.models.swap_listing import ListedModels
from appliance.errors import Busy, ModelLoading, ModelNotFound
from appliance.fleet.status import state_of
from appliance.http.control.listing import Object, View, health, list_models, router_props, tell_models
from appliance.http.control.slots import SlotsInShort, every_slot, slots_of
from appliance.http.errors import JSON_TYPE
from appliance.http.kernel import Get, Kernel
from appliance.http.route_facts import MAX_CONTROL_BODY
from appliance.http.way.context import RequestContext
from appliance.traffic.request import Request, send_whole
from appliance.traffic.targets import refresh

ONE_MODEL = "/v1/models/"
TEXT_TYPE = (b"Content-Type", b"text/plain; charset=utf-8")


class EdgeRoutes:
    """Answers GET and HEAD of these routes and of those of features. The key and the sender are checked already."""

    def __init__(self, kernel: Kernel) -> None:
        edge, owners = kernel.edge, kernel.owners
        self._gets = kernel.gets()
        self._settings = edge.settings
        self._guard = edge.guard
        self._traffic = edge.traffic
        self._owners = owners
        self._fleet = owners.fleet
        self._catalog = owners.catalog
        self._view = View(owners.fleet, owners.catalog, owners.peers, edge.traffic.profile)
        self._slots_in_short = SlotsInShort(owners.fleet, edge.traffic.inflight)

    def answers(self, request: Request) -> bool:
        return request.method in ("GET", "HEAD") and self._find(request.path) is not None

    async def answer(self, context: RequestContext) -> None:
        """Raises ApplianceError and ClientLeft."""
        if not context.request.public:  # a public path wants no body, and a stranger gets no room for one
            await context.body.read(MAX_CONTROL_BODY)
        answer = self._find(context.request.path)
        assert answer is not None
        await answer(context)

    def _find(self, path: str) -> Get | None:
        """A slash behind the path changes nothing."""
        if path.startswith(ONE_MODEL) and path != ONE_MODEL:
            return self._model
        plain = path.removesuffix("/")
        own = self.ROUTES.get(plain)
        if own is not None:
            return partial(own, self)
        return self._gets[plain]() if plain in self._gets else None

    # ---- state -------------------------------------------------------------------------------------------------------

    async def _health(self, context: RequestContext) -> None:
        single = self._settings.single
        if single is not None and state_of(self._fleet.known(single)) not in ("loaded", "sleeping"):
            raise ModelLoading
        await send_json(context, health(self._fleet, trusted=self._guard.knows(context.request)))

    async def _wake_on_lan_health(self, context: RequestContext) -> None:
        await send_whole(context.sink, 200, (TEXT_TYPE,), b"OK")

    async def _running(self, context: RequestContext) -> None:
        await send_json(context, {"running": self._view.running()})

    async def _props(self, context: RequestContext) -> None:
        await send_json(context, router_props(self._fleet, self._settings, tools=self._owners.tools.enabled))

    async def _slots(self, context: RequestContext) -> None:
        """The slots of every loaded model, each with its model's id. Wakes and loads nothing."""
        found: list[Object] = []
        for status in self._fleet.status():
            if status.state == "loaded" and (address := self._fleet.address(status.model)) is not None:
                await self._fleet.wait_quiet(status.model)
                found += [dict(slot, model=status.model) for slot in every_slot(await slots_of(address))]
        await send_json(context, found)

    async def _inflight(self, context: RequestContext) -> None:
        """The requests under way, with their slots: what ``top`` shows."""
        await send_json(context, {"requests": await self._slots_in_short.requests()})

    # ---- models ------------------------------------------------------------------------------------------------------

    async def _models(self, context: RequestContext) -> None:
        if context.request.query.get("reload"):
            await self._owners.reloads.reload_presets()
        else:
            await refresh(self._catalog)
        asked = "identity" in context.request.query
        listed = await tell_models(self._view, self._owners.supply.snapshot(), identities=asked)
        only = context.request.only
        if only:
            model_id = self._view.model_id(only) or only
            listed = ListedModels([entry for entry in listed.data if entry.id == model_id])
        await send_json(context, listed)

    async def _table(self, context: RequestContext) -> None:
        """The models with their files, and how each would fit now: what ``ls`` shows."""
        from appliance.fleet.model_rows import ModelTable, model_rows  # few ask

        await trio.to_thread.run_sync(self._catalog.refresh, 0.0)  # what somebody has just put there is shown
        sources, snapshot = self._catalog.sources, self._catalog.snapshot
        listed = list_models(self._view, self._owners.supply.snapshot(), commands=False).data
        states = {entry.id: entry.status.value for entry in listed}
        last_used: dict[str, datetime] = {}
        with suppress(Busy):  # another program has locked the log: the list comes without
            last_used = await self._traffic.recorder.read(lambda table: table.last_used())
        engine, room, estimate = self._fleet.launches.engine, self._fleet.room(), self._fleet.estimate
        manual = engine.manual if engine is not None else None

        def table() -> ModelTable:
            return ModelTable(
                models=model_rows(snapshot.models, states, room, manual, last_used, estimate),
                models_dir=str(sources.models_dir) if sources.models_dir else None,
                notes=snapshot.notes,
                stores=sources.others,
            )

        await send_json(context, await trio.to_thread.run_sync(table))

    async def _model(self, context: RequestContext) -> None:
        """Its entry in the list. Aliases count."""
        name = context.request.path.removeprefix(ONE_MODEL)
        await refresh(self._catalog)
        model_id = self._view.model_id(name) or name
        found = next((entry for entry in self._listing().data if entry.id == model_id), None)
        if found is None:
            raise ModelNotFound(name, self._catalog.snapshot.near(name))
        await send_json(context, found)

    def _listing(self) -> ListedModels:
        return list_models(self._view, self._owners.supply.snapshot())

    ROUTES: ClassVar[dict[str, Callable[[EdgeRoutes, RequestContext], Awaitable[None]]]] = {
        "/api/inflight": _inflight,
        "/api/ls": _table,
        "/health": _health,
        "/models": _models,
        "/props": _props,
        "/running": _running,
        "/slots": _slots,
        "/v1/health": _health,
        "/v1/models": _models,
        "/wol-health": _wake_on_lan_health,
    }
    """By path; beside them is `ONE_MODEL`."""


async def send_json(context: RequestContext, value: object) -> None:
    """Answer with JSON, and 200."""
    await send_whole(context.sink, 200, (JSON_TYPE,), msgspec.json.encode(value))
