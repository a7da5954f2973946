"""LM Studio's routes that no model answers: lists, load and unload, downloads.

They drive the owners that the page's own routes drive, and may do no more.
"""

from __future__ import annotations

import hashlib
import time
from datetime import UTC, datetime

import msgspec
import trio
from msgspec import Struct

from appliance.catalog.catalog import find_model
from appliance.core.bodies.json_text import OBJECT, JsonObject
from appliance.core.lenient_json import decoded
from appliance.core.models.names import meanings
from appliance.errors import ModelNotFound, NotFound, RouteNotFound
from appliance.features.lm_studio import rules
from appliance.features.lm_studio.rules import Described, described, read_as
from appliance.http.errors import JSON_TYPE
from appliance.http.kernel import Kernel
from appliance.http.way.context import RequestContext
from appliance.traffic.request import send_whole
from appliance.traffic.targets import refresh

MAX_BODY = 1 << 20
_STATES = {"finished": "completed", "failed": "failed", "cancelled": "failed", "paused": "paused"}


class LoadRequest(Struct):
    """Other members have no effect: the configuration says how a model runs."""

    model: str
    echo_load_config: bool | None = None


class UnloadRequest(Struct):
    instance_id: str


class DownloadRequest(Struct):
    model: str
    quantization: str | None = None


class DescribedModels:
    """Answers from memory, but for headers that nobody has asked for before: those of configured models."""

    def __init__(self, kernel: Kernel) -> None:
        self.catalog, self.fleet = kernel.owners.catalog, kernel.owners.fleet
        self.targets = kernel.traffic.targets

    async def listed(self, only: str = "") -> dict[str, Described]:
        """Every model that may be asked for, here and at peers, by id; or the one named ``only``. Looks at the disk."""
        await refresh(self.catalog)
        found: dict[str, Described] = {}
        for model in self.catalog.snapshot.models:
            unlisted = model.config is not None and (model.config.unlisted or model.config.disabled)
            if not (model.hidden or unlisted or model.error):
                found[model.id] = await self.find(model.id)
        for name in self.targets.names():
            if self.catalog.snapshot.find(name) is None:
                found[name] = self.now(name)
        return {id: facts for id, facts in found.items() if not only or id == self.now(only).id}

    async def find(self, name: str) -> Described:
        """The same as `now`, with the header of the file that a configured command names."""
        if (model := self.catalog.snapshot.find(name)) is not None:
            for path in self.catalog.unread_files(model):
                await trio.to_thread.run_sync(self.catalog.headers.read, path)
        return self.now(name)

    def now(self, name: str) -> Described:
        """The model that a name means, as it is known at this moment."""
        model = self.catalog.snapshot.find(name)
        if model is None:
            return described(name, None, None, loaded=False)
        info, status = self.catalog.info(model), self.fleet.known(model.id)
        if status is None or status.state not in ("loaded", "sleeping"):
            return described(model.id, model, info, loaded=False)
        context = status.slot_context
        match decoded(OBJECT, status.ready_info or b""):
            case {"meta": {"n_ctx": int(size)}} if not context:
                context = size
            case _:
                pass
        return described(model.id, model, info, loaded=True, context=context)


class LmStudioRoutes:
    """Answers the routes."""

    def __init__(self, kernel: Kernel) -> None:
        self._owners = kernel.owners
        self._known = DescribedModels(kernel)

    async def answer(self, context: RequestContext) -> None:
        """Raises ApplianceError and ClientLeft."""
        method, path = context.request.method, context.request.path
        posted = {rules.LOAD: self._load, rules.UNLOAD: self._unload, rules.DOWNLOAD: self._download}
        if method == "POST" and path in posted:
            told = await posted[path](await context.read_body(MAX_BODY))
        elif method not in ("GET", "HEAD") or path in (*posted, *rules.ANSWERED):
            raise RouteNotFound(method, path)
        elif path.startswith(rules.JOB):
            told = await self._job(path.removeprefix(rules.JOB))
        else:
            told = await self._list(path, context.request.only)
        await send_whole(context.sink, 200, (JSON_TYPE,), msgspec.json.encode(told))

    async def _list(self, path: str, only: str) -> JsonObject:
        listed = await self._known.listed(only)
        if path == rules.V1_MODELS:
            return {"models": [facts.v1 for facts in listed.values()]}
        if path == rules.V0_MODELS:
            return {"object": "list", "data": [facts.v0 for facts in listed.values()]}
        name = path.removeprefix(rules.V0_MODEL)
        if (found := listed.get(self._known.now(name).id)) is None:
            raise ModelNotFound(name, self._known.catalog.snapshot.near(name))
        return found.v0

    async def _load(self, body: bytes) -> JsonObject:
        asked, began = read_as(body, LoadRequest), time.perf_counter()
        model = await find_model(self._known.catalog, asked.model)
        await self._owners.fleet.load(model)
        facts, seconds = await self._known.find(model.id), time.perf_counter() - began
        echo: JsonObject = {"load_config": {"context_length": facts.context}} if asked.echo_load_config else {}
        told: JsonObject = {"type": facts.v1["type"], "instance_id": facts.id, "load_time_seconds": seconds}
        return {**told, "status": "loaded", **echo}

    async def _unload(self, body: bytes) -> JsonObject:
        """A process may run although its model's file is gone."""
        name = read_as(body, UnloadRequest).instance_id
        model_id = self._known.now(name).id
        if self._owners.fleet.known(model_id) is None or not await self._owners.fleet.unload(model_id):
            raise NotFound(f"there is no loaded instance '{name[:200]}'; GET {rules.V1_MODELS} lists them")
        return {"instance_id": name}

    async def _download(self, body: bytes) -> JsonObject:
        """Answers when the hub has said what is to be downloaded."""
        asked = read_as(body, DownloadRequest)
        name = asked.model + (f":{asked.quantization}" if asked.quantization else "")
        await refresh(self._known.catalog)
        meant = {one.casefold() for one in meanings(name.rpartition("://")[2])}
        for model in self._known.catalog.snapshot.models:
            if model.error is None and meant & {one.casefold() for one in (model.id, *model.aliases)}:
                return {"status": "already_downloaded"}
        return await self._job(_job_id((await self._owners.supply.fetch(name)).model))

    async def _job(self, job: str) -> JsonObject:
        status = next((one for one in self._owners.supply.snapshot() if _job_id(one.model) == job), None)
        if status is None:
            raise NotFound(f"there is no download '{job[:200]}'; POST {rules.DOWNLOAD} starts one and tells its job_id")
        state, now = _STATES.get(status.state, "downloading"), time.time()
        sizes: JsonObject = {"total_size_bytes": status.total, "downloaded_bytes": status.done}
        told: JsonObject = {"job_id": job, "status": state, **sizes}
        download = self._owners.supply.find(status.model)
        if download is not None:
            told["started_at"] = _at(now - trio.current_time() + download.queued_at)
        if state == "downloading":
            told["bytes_per_second"] = status.speed or 0.0
            told |= {"estimated_completion": _at(now + status.left)} if status.left is not None else {}
        elif state == "failed":
            told["error"] = {"type": "internal_error", "message": status.error or "the download was cancelled"}
        elif state == "completed":
            await refresh(self._known.catalog)
            model = self._known.catalog.snapshot.find(status.model)
            told["completed_at"] = _at(model.created if model is not None else now)
        return told


def _job_id(model: str) -> str:
    """Return the name of a model's download."""
    return f"job_{hashlib.sha256(model.encode()).hexdigest()[:10]}"


def _at(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
