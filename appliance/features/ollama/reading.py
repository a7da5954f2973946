"""``/api/chat`` and ``/api/generate``: the request as a job for the pipeline, or an answer without one."""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar

import msgspec
import trio
from msgspec import Struct, structs

from appliance.core.bodies.head import EXTENSION
from appliance.core.bodies.json_text import JsonEdit, Path, PathStep, apply_edits
from appliance.core.lenient_json import decoded
from appliance.core.runs.inward import Asker, ProgressWatch
from appliance.errors import BadRequest
from appliance.features.ollama.core import asking, shortening
from appliance.features.ollama.core.answering import ErrorsAlone, Translator, error_body, idle_line
from appliance.features.ollama.core.asking import OllamaRefusal, OllamaRequest
from appliance.features.ollama.core.models import COMPLETION, INSERT, THINKING, TOOLS, ModelFacts
from appliance.features.ollama.known import KnownModels
from appliance.features.ollama.paths import CHAT
from appliance.features.ollama.sink import OllamaSink
from appliance.fleet.owner import Fleet
from appliance.http.errors import JSON_TYPE
from appliance.http.way.context import ModelRequest, RequestContext
from appliance.http.way.outgoing import ignored
from appliance.http.way.routes import own_path
from appliance.traffic.request import Headers, Request, Sink, send_whole
from appliance.traffic.translated import speak

T = TypeVar("T")
CHATS = "/v1/chat/completions"
MAX_MEASURE = 64 << 20
MAX_TOLD = 1000
UNLOAD_TIME = 5.0  # seconds that the answer to an unload waits for an idle model to be gone


log = logging.getLogger(__name__)


class Rendered(Struct):  # by /apply-template
    prompt: str


class TokenizeAnswer(Struct):
    tokens: list[int]


class Stopwatch(ProgressWatch):
    """The `core.answering.Clock` of one request, and the `ProgressWatch` that learns when its model is there."""

    def __init__(self) -> None:
        self._began = self._granted = time.perf_counter_ns()
        self._second, self._shown = 0, ""

    def now(self) -> str:
        seconds, nanoseconds = divmod(time.time_ns(), 1_000_000_000)
        if seconds != self._second:  # many chunks come in one
            self._second, self._shown = seconds, f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}"
        return f"{self._shown}.{nanoseconds:09}Z"

    def total(self) -> int:
        return time.perf_counter_ns() - self._began

    def loading(self) -> int:
        return self._granted - self._began

    def granted(self, model: str | None) -> None:
        self._granted = time.perf_counter_ns()


async def refuse(context: RequestContext, refused: OllamaRefusal) -> None:
    """Answer with the text that Ollama's clients know."""
    headers: Headers = (JSON_TYPE,) if context.body.complete else (JSON_TYPE, (b"Connection", b"close"))
    await send_whole(context.sink, refused.status, headers, error_body(refused.text))


class OllamaReader:
    """Reads requests of one server; a `appliance.http.way.hooks.DialectSpeaker`."""

    def __init__(self, fleet: Fleet, known: KnownModels, inward: Asker) -> None:
        self._fleet = fleet
        self._known = known
        self._inward = inward
        self._told = set[tuple[object, ...]]()

    def sink(self, request: Request, sink: Sink) -> Sink:
        return OllamaSink(sink)

    async def read(self, context: RequestContext) -> ModelRequest | None:
        """Return what the model is to be asked; None if the request has its answer. Raises as `Pipeline.answer`."""
        watch = Stopwatch()
        context.record.watch = watch
        context.record.body = body = await context.read_body()
        chat = context.request.path == CHAT
        try:
            asked = asking.read_asked(body)
            context.record.model = asked.name
            speak(ErrorsAlone(asked.name), context.sink)
            facts = await self._facts(asked, chat=chat)
            if not asking.has_prompt(asked, chat=chat):
                await self._load(context, asked, facts, watch, chat=chat)
                return None
            unheeded = asking.unheeded(asked)
            if asked.members.get("tools") and facts.lacks(TOOLS):
                asked, unheeded = self._without_tools(asked, facts), ("tools", *unheeded)
            path, sent = _translated(asked, facts, chat=chat)
            self._warn_of_context(asked, facts)
            if path == CHATS and asking.member_of(asked.members, "truncate", True):
                sent = await self._cut(sent, asked.name, facts)
            wants_tools = path == CHATS and EXTENSION in asked.members
            if wants_tools:
                member = msgspec.json.encode(asked.members[EXTENSION])
                sent = apply_edits(sent, (JsonEdit(Path((PathStep(EXTENSION.encode()),)), member),))
        except OllamaRefusal as refused:
            await refuse(context, refused)
            return None
        return ModelRequest(
            request=context.request, route=own_path(path), name=asked.name, body=sent, path=path, sink=context.sink,
            streams=asked.streams and path != "/infill", extended=wants_tools, record=context.record,
            keep_alive=asked.keep_alive,
            begin=partial(speak, Translator(asked.name, watch, chat=chat), headers=ignored(unheeded)),
        )  # fmt: skip

    async def translated(self, path: str, body: bytes) -> tuple[str, bytes]:
        """See `appliance.http.way.hooks.DialectSpeaker`. A chat is as long as it came: only `_cut` shortens it."""
        chat = path == CHAT
        try:
            asked = asking.read_asked(body)
            facts = await self._facts(asked, chat=chat)
            asked = self._without_tools(asked, facts) if facts.lacks(TOOLS) else asked
            return _translated(asked, facts, chat=chat)
        except OllamaRefusal as refused:
            raise BadRequest(refused.text) from None

    async def _facts(self, asked: OllamaRequest, *, chat: bool) -> ModelFacts:
        if not asked.name and chat:
            raise OllamaRefusal(400, "model is required")
        facts = await self._known.find(asked.name, CHATS) if asked.name and not asking.is_cloud(asked.name) else None
        if facts is None and asked.name and not asking.is_expressible(asked.name):
            raise OllamaRefusal(400, "invalid model name")
        if facts is None:
            raise OllamaRefusal(404, f"model '{asked.name}' not found")
        return facts

    def _without_tools(self, asked: OllamaRequest, facts: ModelFacts) -> OllamaRequest:
        """Leave the tools out where the template has no place for them, as llama-server does on ``/v1``.

        Ollama refuses such a request. Pages that send their own tools with every question would then get no answer
        from a model that can only talk.
        """
        if asked.members.get("tools"):
            model = facts.model.id if facts.model is not None else asked.name
            text = "model '%s' knows no tools: its chat template has no place for them, so they are left out"
            self._log_once(logging.WARNING, text, model)
        return structs.replace(asked, members={name: given for name, given in asked.members.items() if name != "tools"})

    def _warn_of_context(self, asked: OllamaRequest, facts: ModelFacts) -> None:
        """A wish for a longer context than the engine has changes nothing."""
        wanted, known = asking.context_of(asked.options), facts.context or facts.trained_context
        if wanted and known and wanted > known:
            text = "model '%s' has a context of %d tokens; num_ctx %d does not enlarge it"
            self._log_once(logging.INFO, text, asked.name, known, wanted)

    def _log_once(self, level: int, text: str, *facts: object) -> None:
        if (text, *facts) not in self._told and len(self._told) < MAX_TOLD:
            self._told.add((text, *facts))
            log.log(level, text, *facts)

    async def _cut(self, body: bytes, name: str, facts: ModelFacts) -> bytes:
        """Drop the oldest messages of a chat that is too long for the context, as Ollama does; fewest of them."""
        model = facts.model
        if model is None or not shortening.may_be_too_long(body, facts.context or shortening.LEAST_CONTEXT):
            return body
        await self._fleet.load(model)
        room = self._known.context(model)
        if room is None or not shortening.may_be_too_long(body, room):
            return body
        fewest, most = 0, len(shortening.chat_messages(body))
        while fewest < most:
            middle = (fewest + most) // 2
            size = await self._measure(shortening.without_oldest(body, middle), name)
            if size is None:
                return body
            fewest, most = (fewest, middle) if size < room else (middle + 1, most)
        return shortening.without_oldest(body, fewest) if fewest else body

    async def _measure(self, body: bytes, name: str) -> int | None:
        """Return the tokens of a chat as the engine renders it; None where it cannot tell."""
        rendered = await self._ask("/apply-template", shortening.template_body(body), Rendered)
        if rendered is None:
            return None
        content = msgspec.json.encode({"model": name, "content": rendered.prompt})
        found = await self._ask("/tokenize", content, TokenizeAnswer)
        return len(found.tokens) + shortening.IMAGE_TOKENS * shortening.pictures(body) if found is not None else None

    async def _ask(self, path: str, body: bytes, kind: type[T]) -> T | None:
        async with self._inward.ask(path, body, origin="ollama") as reply:
            content = await reply.read(MAX_MEASURE)
        return decoded(kind, content) if reply.status == 200 else None

    async def _load(
        self, context: RequestContext, asked: OllamaRequest, facts: ModelFacts, watch: Stopwatch, *, chat: bool
    ) -> None:
        """Load or unload; as this generates nothing, it leaves no row in the activity log."""
        context.record.admitted = False
        model = facts.model
        if asked.keep_alive == 0:
            if model is not None:
                self._fleet.keep(model, 0.0)
                with trio.move_on_after(UNLOAD_TIME):
                    while not self._fleet.stays_for(model.id) and not self._is_used(model.id):
                        await self._fleet.wait_gone(model.id)
            reason = "unload"
        else:
            if model is not None:
                await self._fleet.load(model)
                if asked.keep_alive is not None:
                    self._fleet.keep(model, asked.keep_alive)
            reason = "load"
        line = idle_line(asked.name, watch.now(), reason, chat=chat)
        await send_whole(context.sink, 200, (JSON_TYPE,), line)

    def _is_used(self, model_id: str) -> bool:
        status = self._fleet.known(model_id)
        return status is not None and status.leases + status.waiting > 0


def _translated(asked: OllamaRequest, facts: ModelFacts, *, chat: bool) -> tuple[str, bytes]:
    """Return the route of llama-server and its body. Raises OllamaRefusal, in the order of Ollama's checks."""
    raw = not chat and asking.member_of(asked.members, "raw", False)
    thinks = THINKING in facts.abilities
    if facts.lacks(COMPLETION):
        raise OllamaRefusal(400, f'"{asked.name}" does not support {"chat" if chat else "generate"}')
    if asked.think and facts.lacks(THINKING):
        raise OllamaRefusal(400, f'"{asked.name}" does not support thinking')
    if chat:
        return CHATS, asking.chat_body(asked, asked.name, facts.preset, thinks=thinks)
    if asked.members.get("suffix"):
        if facts.lacks(INSERT):
            raise OllamaRefusal(400, f'"{asked.name}" does not support insert')
        return "/infill", asking.infill_body(asked, asked.name, facts.preset)
    if raw:
        return "/v1/completions", asking.raw_body(asked, asked.name, facts.preset)
    return CHATS, asking.prompt_body(asked, asked.name, facts.preset, thinks=thinks)
