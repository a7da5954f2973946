"""llama-swap's routes beside the models' own: what runs, unloading, profiles, requests under way, reload, logs, events.

Paths and answers are llama-swap's (0bdb3720); errors have this program's one shape.
"""

from __future__ import annotations

import trio
from msgspec import UNSET, Struct, UnsetType
from quart import Response, request

from appliance.errors import BadRequest, NotFound, UsageError
from appliance.features.llama_swap.events import EventSources, FeedRoutes
from appliance.http.control.answers import json_answer, read_as, text_answer
from appliance.http.control.listing import View
from appliance.http.control.routes import FOLLOWS, Routes
from appliance.http.kernel import Kernel
from appliance.http.route_facts import RouteFacts
from appliance.http.way.routes import RELOAD


class ProfileChoice(Struct):
    name: str | UnsetType | None = UNSET


def swap_routes(kernel: Kernel) -> Routes:
    routes, owners, traffic = Routes("llama_swap"), kernel.owners, kernel.traffic
    view = View(owners.fleet, owners.catalog, owners.peers, traffic.profile)
    feeds = FeedRoutes(EventSources(view, traffic, owners.history))

    async def stop_all() -> None:
        """All at once; returns when every process has ended."""
        async with trio.open_nursery() as nursery:
            for status in view.fleet.status():
                if status.state != "unloaded":
                    nursery.start_soon(view.fleet.unload, status.model)

    @routes.get("/unload")
    async def unload_by_get() -> Response:
        """Stop every model. HEAD changes nothing, and the guard refuses pages of other sites."""
        if request.method == "GET":
            await stop_all()
        return text_answer("OK")

    @routes.post("/api/models/unload")
    async def unload_all() -> Response:
        await stop_all()
        return json_answer({"msg": "ok"})

    @routes.post("/api/models/unload/<path:model>")
    async def unload_one(model: str) -> Response:
        """Stop one model, by id or alias; done when it does not run anyway."""
        model_id = view.model_id(model)
        if model_id is None:
            raise NotFound(f"model not found: '{model}'; GET /running lists what runs")
        await view.fleet.unload(model_id)
        return text_answer("OK")

    @routes.get("/api/profiles")
    async def show_profiles() -> Response:
        return json_answer(view.profiles())

    @routes.put("/api/profiles/active", facts=RouteFacts(takes=ProfileChoice))
    async def choose_profile() -> Response:
        chosen = (await read_as(ProfileChoice, param="name")).name
        if isinstance(chosen, UnsetType):
            raise BadRequest("'name' is missing; it is a profile's name, or null for none", param="name")
        if chosen and chosen not in view.config.profiles:
            raise NotFound(f"profile not found: '{chosen}'; GET /api/profiles lists them")
        view.profile.choose(chosen or None)
        return json_answer({"active": view.profile.name})

    @routes.post("/api/inflight/<request_id>/cancel")
    async def cancel_request(request_id: str) -> Response:
        if not traffic.inflight.cancel(request_id):
            raise NotFound(f"no request '{request_id}' is under way")
        return json_answer({"msg": "ok"})

    @routes.post(RELOAD)
    async def reload() -> Response:
        if not owners.reloads.anything:
            raise UsageError(
                "the program runs without a configuration file or presets; start it with --config or --models-preset"
            )
        done = await owners.reloads.reload()
        warnings = [str(warning) for warning in done.warnings]
        return json_answer({"success": True, "warnings": warnings, "changed": done.changed})

    routes.add_url_rule("/api/events", "events", feeds.events, facts=FOLLOWS)
    routes.add_url_rule("/logs", "combined log", feeds.logs)
    routes.add_url_rule("/logs/stream", "combined log stream", feeds.follow, facts=FOLLOWS)
    routes.add_url_rule("/logs/stream/<path:which>", "log stream", feeds.follow, facts=FOLLOWS)
    return routes
