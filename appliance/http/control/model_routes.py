"""Models that come and go: downloads, removal, and the feed that tells of both (llama-server's router, b11434)."""

from __future__ import annotations

from quart import Response, request
from quart_trio import QuartTrio

from appliance.catalog.download_status import is_for
from appliance.catalog.downloads import Download, Downloads
from appliance.core.bodies.head import read_json
from appliance.core.models.download import parse_reference
from appliance.core.models.model import Model
from appliance.errors import BadRequest, Conflict, Forbidden, ModelNotFound
from appliance.http.control.answers import feed_answer, json_answer
from appliance.http.feeds.model_events import CONTENT_TYPE, ModelFeed
from appliance.http.owners import Owners
from appliance.traffic.choice import refresh
from appliance.traffic.lifetime import Lifetime


class ModelRoutes:
    """Every method is one route."""

    def __init__(self, owners: Owners, lifetime: Lifetime) -> None:
        self._owners = owners
        self._lifetime = lifetime

    async def events(self) -> Response:
        """``?snapshot=1`` begins with the state of every model, ``?names=readme`` has the events as in the README."""
        if request.method == "HEAD":
            return Response("", content_type=CONTENT_TYPE)
        feed = ModelFeed(
            self._owners.fleet,
            self._owners.catalog,
            self._owners.downloads,
            self._lifetime,
            everything=request.args.get("snapshot") in ("true", "1"),
            readme=request.args.get("names") == "readme",
        )
        return feed_answer(feed, CONTENT_TYPE, self._lifetime.feeds)

    async def download(self) -> Response:
        """Answers when the hub has said what is to be downloaded; how it goes on is in the list and in the feed."""
        body = await request.get_data(cache=False, as_text=False, parse_form_data=False)
        name = read_json(body).model
        if not name:
            raise BadRequest("model must be a non-empty string", param="model")
        await refresh(self._owners.catalog)
        if (model := self._owners.catalog.snapshot.find(name)) is not None and not _may_be_downloaded(model, name):
            raise BadRequest(f"model '{name}' already exists", param="model")
        downloads = self._downloads()
        reference = parse_reference(name)
        await downloads.start(reference.repo, reference.tag)
        return json_answer({"success": True})

    async def pause(self) -> Response:
        """A download closes its connections and keeps its place in the list, until it is asked for again."""
        name = read_json(await request.get_data(cache=False, as_text=False, parse_form_data=False)).model
        if not name:
            raise BadRequest("model must be a non-empty string", param="model")
        download = under_way(self._downloads(), name, self._owners.catalog.snapshot.find(name))
        if download is None:
            raise BadRequest(f"model '{name}' is not being downloaded", param="model")
        download.pause()
        return json_answer({"success": True})

    async def delete(self) -> Response:
        """Stop the model's process, or its download, and remove its files; only what the program may remove."""
        name = request.args.get("model")
        if not name:
            raise BadRequest("the query names no model; add ?model=NAME", param="model")
        downloads = self._downloads()
        if (download := downloads.find(name)) is not None and not download.status.ended:
            await downloads.discard(name)
            return json_answer({"success": True})
        await refresh(self._owners.catalog)
        model = next((model for model in self._owners.catalog.snapshot.models if model.id == name), None)
        if model is None:
            raise ModelNotFound(name, self._owners.catalog.snapshot.near(name))
        if model.source != "cache":
            raise Forbidden(f"model '{name}' is not removable: it is not from the Hugging Face cache ({model.source})")
        await self._remove(downloads, model)
        downloads.forget(name)
        return json_answer({"success": True})

    async def _remove(self, downloads: Downloads, model: Model) -> None:
        """Raises Conflict for files that the system does not let go of."""
        await self._owners.fleet.unload(model.id)
        try:
            await downloads.delete(model)
        except OSError as error:
            where = f" ({error.filename})" if error.filename else ""
            raise Conflict(f"model '{model.id}' cannot be removed: {error.strerror or error}{where}") from None
        await self._owners.fleet.unload(model.id)  # somebody may have asked for it while its files went

    def _downloads(self) -> Downloads:
        if self._owners.downloads is None or self._owners.catalog.sources.cache is None:
            raise Forbidden("downloads are off: the configuration names its models, and the cache is not served")
        return self._owners.downloads


def under_way(downloads: Downloads | None, name: str, model: Model | None) -> Download | None:
    """The download under way that a name means: by its own name, as what ``model`` of this name waits for, or, where
    there is no such model, by the only one of its repository."""
    if downloads is None:
        return None
    going = [status for status in downloads.snapshot() if not status.ended]
    found = [status.model for status in going if status.model.casefold() == name.casefold()]
    if not found and model is not None:
        found = [status.model for status in going if any(is_for(status, wanted) for wanted in model.fetch)][:1]
    elif not found:
        found = [status.model for status in going if status.repo.casefold() == name.casefold()]
    return downloads.find(found[0]) if len(found) == 1 else None


def _may_be_downloaded(model: Model, name: str) -> bool:
    """True if the name means another file of a cached repository, or if the cached file cannot be used."""
    names = {known.casefold() for known in (model.id, *model.aliases)}
    return model.source == "cache" and (model.error is not None or name.casefold() not in names)


def add_model_routes(app: QuartTrio, routes: ModelRoutes) -> None:
    app.add_url_rule("/models/sse", "model events", routes.events)
    app.add_url_rule("/models", "download", routes.download, methods=["POST"])
    app.add_url_rule("/models/pause", "pause", routes.pause, methods=["POST"])
    app.add_url_rule("/models", "delete", routes.delete, methods=["DELETE"])
