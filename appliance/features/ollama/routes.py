"""Ollama's routes beside chat and generate: lists, details, embeddings, downloads, derived models."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping

import msgspec
import trio
from msgspec import structs

from appliance import __version__
from appliance.catalog.supply import Download
from appliance.core.bodies.json_text import JSON, JsonObject
from appliance.core.models.download_status import FileProgress
from appliance.errors import ApplianceError
from appliance.features.ollama.core import asking, models
from appliance.features.ollama.core.answering import NDJSON, error_line, normalised, translated_error, vectors_of
from appliance.features.ollama.core.asking import OllamaRefusal
from appliance.features.ollama.core.models import Derived, ModelFacts
from appliance.features.ollama.known import KnownModels
from appliance.features.ollama.paths import BLOBS, CHAT, GENERATE, USER_KEYS, VERSION
from appliance.features.ollama.reading import Stopwatch, refuse
from appliance.http import errors
from appliance.http.errors import JSON_TYPE
from appliance.http.kernel import Kernel
from appliance.http.way.context import RequestContext
from appliance.traffic.request import send_whole

ALIVE = b"Ollama is running"
TEXT = (b"Content-Type", b"text/plain; charset=utf-8")
COPILOT = "GitHubCopilotChat/"
MAX_VECTORS = 256 << 20
PROGRESS_EVERY = 0.06  # seconds between two records of a download, as in Ollama
_TOO_LONG = ("too large", "context", "exceed", "too long")

Answer = Callable[[RequestContext, JsonObject], Awaitable[None]]


class OllamaRoutes:
    """Answers the routes."""

    def __init__(self, kernel: Kernel, known: KnownModels) -> None:
        self._owners = kernel.owners
        self._known = known
        self._inward = kernel.inward
        self._followers: Counter[str] = Counter()
        self._changing = trio.Lock()
        self._routes: Mapping[tuple[str, str], Answer] = {
            ("POST", "/api/show"): self._show,
            ("POST", "/api/embed"): self._embed,
            ("POST", "/api/embeddings"): self._embed_one,
            ("POST", "/api/pull"): self._pull,
            ("POST", "/api/copy"): self._copy,
            ("POST", "/api/create"): self._create,
            ("DELETE", "/api/delete"): self._delete,
        }

    async def answer(self, context: RequestContext) -> None:
        """Raises ApplianceError and ClientLeft."""
        request = context.request
        try:
            if request.path == "/":
                await send_whole(context.sink, 200, (TEXT,), ALIVE)
            elif request.method in ("GET", "HEAD"):
                await self._list(context)
            elif (found := self._routes.get((request.method, request.path))) is not None:
                await found(context, asking.read_body(await context.read_body()))
            else:
                raise _not_here(request.method, request.path, self._routes)
        except OllamaRefusal as refused:
            await refuse(context, refused)

    async def _list(self, context: RequestContext) -> None:
        told: JsonObject | bytes
        match context.request.path:
            case "/api/tags":
                told = await self._known.tags()
            case "/api/ps":
                told = models.running(await self._known.running(), time.time())
            case path if path == VERSION:
                told = {**models.VERSIONS, "llama_appliance": __version__}
            case "/api/status":
                told = {"cloud": {"disabled": True, "source": "config"}}
            case "/api/experimental/model-recommendations":
                told = {"recommendations": []}
            case path:
                raise _not_here(context.request.method, path, self._routes)
        await _send(context, told)

    async def _show(self, context: RequestContext, members: JsonObject) -> None:
        name = asking.model_of(members)
        if not name:
            raise OllamaRefusal(400, "model is required")
        facts = await self._require(name, f"model '{asking.shown_name(name)}' not found")
        copilot = (context.request.header(b"user-agent") or "").startswith(COPILOT)
        await _send(context, models.shown(facts, basename=name if copilot else ""))

    async def _require(self, name: str, otherwise: str) -> ModelFacts:
        facts = await self._known.find(name) if name and not asking.is_cloud(name) else None
        if facts is None:
            raise OllamaRefusal(404, otherwise)
        return facts

    async def _embed(self, context: RequestContext, members: JsonObject) -> None:
        watch, name = Stopwatch(), asking.model_of(members)
        texts = _texts(members.get("input"))
        dimensions = members.get("dimensions")
        if dimensions is not None and not (isinstance(dimensions, int) and dimensions > 0):
            raise OllamaRefusal(400, "'dimensions' must be a number above 0")
        truncates = asking.member_of(members, "truncate", True)
        vectors, tokens = await self._vectors(name, members, texts, watch, truncates=truncates)
        told: JsonObject = {
            "model": name,
            "embeddings": [list[JSON](normalised(vector, dimensions)) for vector in vectors],
            "total_duration": watch.total(),
            "load_duration": watch.loading(),
        }
        await _send(context, {**told, "prompt_eval_count": tokens} if tokens else told)

    async def _embed_one(self, context: RequestContext, members: JsonObject) -> None:
        name, prompt = asking.model_of(members), asking.member_of(members, "prompt", "")
        vectors, _ = await self._vectors(name, members, [prompt] if prompt else [], Stopwatch(), truncates=True)
        await _send(context, {"embedding": list[JSON](vectors[0]) if vectors else []})

    async def _vectors(
        self, name: str, members: JsonObject, texts: list[str], watch: Stopwatch, *, truncates: bool
    ) -> tuple[list[list[float]], int]:
        """Raises OllamaRefusal."""
        keep_alive = asking.keep_alive_of(members.get("keep_alive"))
        facts = await self._require(name, f'model "{name}" not found, try pulling it first')
        if facts.lacks(models.EMBEDDING):
            raise OllamaRefusal(400, f'"{name}" does not support embeddings')
        found: tuple[list[list[float]], int] = ([], 0)
        if texts:
            found = await self._ask_vectors(name, texts, watch, truncates=truncates)
        elif facts.model is not None:
            await self._owners.fleet.load(facts.model)
        if keep_alive is not None and facts.model is not None:
            self._owners.fleet.keep(facts.model, keep_alive)
        return found

    async def _ask_vectors(
        self, name: str, texts: list[str], watch: Stopwatch, *, truncates: bool
    ) -> tuple[list[list[float]], int]:
        """A text that is too long for the model is cut and asked for again, half as long until it fits."""
        longest = max(map(len, texts))
        while True:
            body = msgspec.json.encode({"model": name, "input": texts, "encoding_format": "float"})
            async with self._inward.ask("/v1/embeddings", body, origin="ollama", watch=watch) as reply:
                content = await reply.read(MAX_VECTORS)
            if reply.status == 200:
                if (found := vectors_of(content)) is None:
                    raise OllamaRefusal(502, "the model's answer cannot be read")
                return found
            status, told = translated_error(reply.status, content, name)
            text = str(msgspec.json.decode(told, type=dict[str, str])["error"])
            if not any(mark in text for mark in _TOO_LONG):
                raise OllamaRefusal(400 if status < 500 or status == 501 else status, text)
            if not truncates or longest < 2:
                raise OllamaRefusal(400, "the input length exceeds the context length")
            longest //= 2
            texts = [text[:longest] for text in texts]

    async def _copy(self, context: RequestContext, members: JsonObject) -> None:
        source, destination = models.read_copy(members)
        await self._require(source, f'model "{source}" not found')
        await self._derive(Derived(name=destination, base=source, made_at=time.time()))
        await _send(context, None)

    async def _create(self, context: RequestContext, members: JsonObject) -> None:
        derived = models.read_create(members, time.time())
        streams = asking.member_of(members, "stream", True)
        await self._require(derived.base, f"model '{derived.base}' not found; pull it first")
        await self._derive(derived)
        if not streams:
            await _send(context, {"status": "success"})
            return
        _begin_lines(context)
        await _end_lines(context, "using existing layer", "writing manifest", "success")

    async def _derive(self, derived: Derived) -> None:
        """Keep it, below its own name: a name that a model on disk or of the configuration has stays that model's."""
        if self._known.derived(derived.name) is None and await self._known.find(derived.name) is not None:
            told = f"the name '{derived.name}' is taken by a model that was not made here; choose another"
            raise OllamaRefusal(400, told)
        below = self._known.derived(derived.base)
        if below is not None:
            derived = structs.replace(derived, base=below.base, preset=models.over(derived, below.preset))
        else:
            base = await self._known.find(derived.base)
            derived = structs.replace(derived, base=base.model.id if base and base.model is not None else derived.base)
        name = derived.name.removesuffix(asking.LATEST)
        await self._change({**self._known.models, name.casefold(): structs.replace(derived, name=name)})

    async def _change(self, derived: Mapping[str, Derived]) -> None:
        async with self._changing:
            try:
                await self._known.change(derived)
            except OSError as error:
                told = f"the list of derived models cannot be written: {error.strerror or error}"
                raise OllamaRefusal(500, told) from None

    async def _delete(self, context: RequestContext, members: JsonObject) -> None:
        name = asking.model_of(members)
        if not asking.is_expressible(name) and await self._known.find(name) is None:
            raise OllamaRefusal(400, f'name "{name}" is invalid')
        if (derived := self._known.derived(name)) is not None:
            await self._change({key: other for key, other in self._known.models.items() if other is not derived})
        else:
            facts = await self._require(name, f"model '{name}' not found")
            if facts.model is None:
                raise OllamaRefusal(403, f"model '{name}' is not on this machine")
            await self._owners.supply.remove(facts.model.id)
        await _send(context, None)

    async def _pull(self, context: RequestContext, members: JsonObject) -> None:
        name = asking.model_of(members)
        if not name:
            raise OllamaRefusal(400, "model is required")
        streams = asking.member_of(members, "stream", True)
        if streams:
            _begin_lines(context)
            await context.sink.write(_line(status="pulling manifest"))
        try:
            await self._fetch(context, name, streams=streams)
        except (ApplianceError, OllamaRefusal) as error:
            refused = error
            if not isinstance(refused, OllamaRefusal):
                info = errors.describe(refused)
                refused = OllamaRefusal(info.code, info.message)
            if not streams:
                raise refused from None
            await context.sink.write(error_line(f"pull model manifest: {refused.text}"))
            await context.sink.end()
            return
        if not streams:
            await _send(context, {"status": "success"})
            return
        last = ("verifying sha256 digest", "writing manifest", "removing unused layers", "success")
        await _end_lines(context, *last)

    async def _fetch(self, context: RequestContext, name: str, *, streams: bool) -> None:
        """Return when the model is here. Two who ask for one model share its download, which the last one ends."""
        wanted = models.pull_name(name)
        if wanted is None:
            if await self._known.find(name) is None:
                missing = f"file does not exist: '{name}' is not on Hugging Face; name a model as hf.co/ORG/REPO:QUANT"
                raise OllamaRefusal(404, missing)
            return
        supply = self._owners.supply
        last = max((status.number for status in supply.snapshot()), default=0)
        download = await supply.fetch(wanted)
        told: dict[str, FileProgress] = {}
        if download.number > last or self._followers[download.model]:  # else another request has begun it
            self._followers[download.model] += 1
        try:
            while not download.status.ended:
                if streams:
                    await _report_progress(context, told, download)
                with trio.move_on_after(PROGRESS_EVERY):
                    await download.wait()
        finally:
            if self._followers[download.model]:
                self._followers[download.model] -= 1
                if not self._followers[download.model]:
                    download.cancel()
        if download.error is not None:
            raise download.error.with_traceback(None)
        if download.status.state == "cancelled":
            raise OllamaRefusal(500, "the download was cancelled")
        if streams:
            await _report_progress(context, told, download)


async def _report_progress(context: RequestContext, told: dict[str, FileProgress], download: Download) -> None:
    now = download.status.files
    for url, sha256 in download.hashes.items():
        progress = now[url]
        if told.get(url) != progress:
            told[url] = progress
            digest = models.layer_of(sha256)
            shown: JsonObject = {"status": f"pulling {digest[7:19]}", "digest": digest, "total": progress.total}
            await context.sink.write(_line(**shown, **({"completed": progress.done} if progress.done else {})))


def _texts(given: JSON) -> list[str]:
    match given:
        case None | "" | []:
            return []
        case str():
            return [given]
        case list() if all(isinstance(one, str) for one in given):
            return [one for one in given if isinstance(one, str)]
        case _:
            raise OllamaRefusal(400, "invalid input type")


def _line(**members: JSON) -> bytes:
    return msgspec.json.encode(members) + b"\n"


async def _send(context: RequestContext, told: JsonObject | bytes | None) -> None:
    body = told if isinstance(told, bytes) else msgspec.json.encode(told) if told is not None else b""
    await send_whole(context.sink, 200, (JSON_TYPE,), body)


def _begin_lines(context: RequestContext) -> None:
    context.sink.start(200, ((b"Content-Type", NDJSON), (b"X-Accel-Buffering", b"no")))


async def _end_lines(context: RequestContext, *last: str) -> None:
    await context.sink.write(b"".join(_line(status=status) for status in last))
    await context.sink.end()


def _not_here(method: str, path: str, routes: Mapping[tuple[str, str], Answer]) -> OllamaRefusal:
    if path == "/api/push":
        return OllamaRefusal(501, "models cannot be published from here")
    if path.startswith(BLOBS):
        return OllamaRefusal(501, "uploads are not supported here; put the GGUF file into the models folder")
    if path in ("/api/me", "/api/signout") or path.startswith(USER_KEYS):
        return OllamaRefusal(401, "unauthorized")
    if path.startswith("/api/experimental/"):
        return OllamaRefusal(403, f"ollama cloud is disabled: {path.rpartition('/')[2]}")
    allowed = sorted({other for other, there in routes if there == path})
    allowed = allowed or (["POST"] if path in (CHAT, GENERATE) else ["GET"])
    return OllamaRefusal(405, f"{method} is not allowed for {path}; use {' or '.join(allowed)}")
