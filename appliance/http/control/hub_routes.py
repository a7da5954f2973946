"""Models to download: a search of the hub, a repository's quantisations, and models that suit this machine.

The page asks here, because it asks no other host. Nothing is downloaded by these routes.
"""

from __future__ import annotations

from msgspec import Struct
from quart import Response, request

from appliance.catalog.hub import ENDPOINT
from appliance.core.models.recommended import Foretold, Recommendation, cards, judged_by_size
from appliance.errors import BadRequest
from appliance.http.control.answers import json_answer
from appliance.http.control.routes import Routes
from appliance.http.owners import Owners

MAX_QUERY = 200
"""Characters of a search."""


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


class HubRoutes:
    """Every method is one route."""

    def __init__(self, owners: Owners) -> None:
        self._owners = owners

    async def search(self) -> Response:
        text = request.args.get("q", "").strip()
        if not text or len(text) > MAX_QUERY:
            raise BadRequest(f"say what to look for, in at most {MAX_QUERY} characters: ?q=WORDS", param="q")
        return json_answer({"data": await self._owners.require_downloads().search(text)})

    async def choices(self) -> Response:
        """Each quantisation with the planner's estimate from its size."""
        repo = request.args.get("repo", "")
        found = await self._owners.require_downloads().choices(repo)
        room = self._owners.fleet.room()
        told = [
            _Choice(
                model=one.id(repo),
                tag=one.tag or one.model[0].name,
                size=one.size,
                vision=one.projector is not None,
                fit=judged_by_size(one.size, room),
            )
            for one in found
        ]
        return json_answer({"data": told})

    async def recommended(self) -> Response:
        downloads = self._owners.downloads
        folder = self._owners.catalog.sources.models_dir
        online = (
            downloads is not None and self._owners.catalog.sources.cache is not None and await downloads.reachable()
        )
        hub = downloads.endpoint if downloads is not None else ENDPOINT
        found = cards(self._owners.fleet.room())
        return json_answer(_Recommended(online, hub, str(folder) if folder else None, found))


def add_hub_routes(app: Routes, routes: HubRoutes) -> None:
    app.add_url_rule("/api/hub/search", "search hub", routes.search)
    app.add_url_rule("/api/hub/choices", "hub choices", routes.choices)
    app.add_url_rule("/api/recommended", "recommended", routes.recommended)
