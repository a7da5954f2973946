"""Downloads and removal over HTTP, as llama-server's router has them (b11434), and what could be downloaded.

The page asks here for what the hub has, because it asks no other host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct, structs
from quart import Response, request

from appliance.core.bodies.head import read_json
from appliance.core.lenient_json import decoded
from appliance.core.models.model import Model
from appliance.errors import BadRequest, Conflict
from appliance.features.downloads.recommended import Foretold, Recommendation, cards, judged_by_size
from appliance.http.control.answers import is_trusted, json_answer, read_body
from appliance.http.control.routes import Routes
from appliance.http.kernel import Kernel
from appliance.traffic.targets import refresh

if TYPE_CHECKING:
    from appliance.features.downloads.supply import ModelSupply

MAX_QUERY = 200  # characters of a search


class _Exactly(Struct):
    """In the body of ``POST /models``: the hash that the model's file must have."""

    sha256: str = ""


class _Choice(Struct):
    """``model`` is the name for ``POST /models``; ``size`` counts the projector."""

    model: str
    tag: str
    size: int
    vision: bool
    fit: Foretold


class _Recommended(Struct):
    """``online``: the hub answers, so that the cards can be downloaded. ``hub``: the address for other machines to
    fetch them from.
    """

    online: bool
    hub: str
    folder: str | None
    data: list[Recommendation]


def download_routes(supply: ModelSupply, kernel: Kernel) -> Routes:
    """Return all routes of the feature."""
    catalog, fleet, routes = kernel.owners.catalog, kernel.owners.fleet, Routes("downloads")

    @routes.post("/models")
    async def download() -> Response:
        """Answers when the hub has said what is to be downloaded; how it goes on is in the list and in the feed."""
        body = await read_body()
        name, wanted = read_json(body).model, decoded(_Exactly, body) or _Exactly()
        if not name:
            raise BadRequest("model must be a non-empty string", param="model")
        await refresh(catalog)
        if (model := catalog.snapshot.find(name)) is not None and not _may_be_downloaded(model, name):
            raise BadRequest(f"model '{name}' already exists", param="model")
        begun = await supply.fetch(name)
        if wanted.sha256 and wanted.sha256 not in (hashes := begun.hashes.values()):
            await supply.downloads.discard(begun.model)
            raise Conflict(f"the hub has another file for '{name}' now, with the SHA-256 {', '.join(hashes)}")
        return json_answer({"success": True})

    @routes.post("/models/pause")
    async def pause() -> Response:
        """A download closes its connections and keeps its place in the list, until it is asked for again."""
        name = read_json(await read_body()).model
        if not name:
            raise BadRequest("model must be a non-empty string", param="model")
        supply.on_request()
        if (begun := supply.under_way(name, catalog.snapshot.find(name))) is None:
            raise BadRequest(f"model '{name}' is not being downloaded", param="model")
        begun.pause()
        return json_answer({"success": True})

    @routes.delete("/models")
    async def remove() -> Response:
        """Stop the model's process, or its download, and remove its files; only what the program may remove.

        Commands of the server's own home may remove more: what somebody has put into the models folder.
        """
        name = request.args.get("model")
        if not name:
            raise BadRequest("the query names no model; add ?model=NAME", param="model")
        removed = await supply.remove(name, from_folder=is_trusted())
        return json_answer({"success": True, **structs.asdict(removed)})

    @routes.get("/api/downloads")
    async def downloads() -> Response:
        """Every download since the start, with its progress or its failure."""
        return json_answer(supply.on_request().snapshot())

    @routes.get("/api/hub/search")
    async def search() -> Response:
        text = request.args.get("q", "").strip()
        if not text or len(text) > MAX_QUERY:
            raise BadRequest(f"say what to look for, in at most {MAX_QUERY} characters: ?q=WORDS", param="q")
        return json_answer({"data": await supply.on_request().search(text)})

    @routes.get("/api/hub/choices")
    async def choices() -> Response:
        """Each quantisation of a repository with the planner's estimate from its size."""
        repo, room = request.args.get("repo", ""), fleet.room()
        told = [
            _Choice(
                model=one.id(repo),
                tag=one.tag or one.model[0].name,
                size=one.size,
                vision=one.projector is not None,
                fit=judged_by_size(one.size, room),
            )
            for one in await supply.on_request().choices(repo)
        ]
        return json_answer({"data": told})

    @routes.get("/api/recommended")
    async def recommended() -> Response:
        """Models that suit this machine."""
        folder, hub = catalog.sources.models_dir, supply.downloads
        online = catalog.sources.cache is not None and await hub.reachable()
        found = cards(fleet.room())
        return json_answer(_Recommended(online, hub.endpoint, str(folder) if folder else None, found))

    return routes


def _may_be_downloaded(model: Model, name: str) -> bool:
    """True if the name means another file of a cached repository, or if the cached file cannot be used."""
    names = {known.casefold() for known in (model.id, *model.aliases)}
    return model.source == "cache" and (model.error is not None or name.casefold() not in names)
