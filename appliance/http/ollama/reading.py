"""``/api/chat`` and ``/api/generate``: the request as a job for the pipeline, or an answer without one."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import trio

from appliance.core.ollama import asking
from appliance.core.ollama.answering import Translator, error_body, full_name, idle_line
from appliance.core.ollama.asking import Asked, Refused
from appliance.core.ollama.models import COMPLETION, EMBEDDING, INSERT, THINKING, TOOLS, Facts
from appliance.fleet.owner import Fleet
from appliance.http.ollama.known import Known
from appliance.http.ollama.sink import JSON_TYPE, speak
from appliance.http.way.job import Job
from appliance.http.way.routes import own_path
from appliance.http.way.visit import Visit
from appliance.traffic.request import Headers, send_whole

CHAT = "/api/chat"
UNLOAD_TIME = 5.0
"""Seconds that the answer to an unload waits for an idle model to be gone."""


class Stopwatch:
    """The `core.ollama.answering.Clock` of one request, and the `Watch` that hears when its model is there."""

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

    def connected(self) -> None:
        pass

    def received(self) -> None:
        pass


async def refuse(visit: Visit, refused: Refused) -> None:
    """Answer with the text that Ollama's clients know."""
    headers: Headers = (JSON_TYPE,) if visit.body.complete else (JSON_TYPE, (b"Connection", b"close"))
    await send_whole(visit.sink, refused.status, headers, error_body(refused.text))


class Reading:
    """Reads requests of one server."""

    def __init__(self, fleet: Fleet, known: Known) -> None:
        self._fleet = fleet
        self._known = known

    async def read(self, visit: Visit) -> Job | None:
        """Return what the model is to be asked; None if the request has its answer. Raises as `Pipeline.answer`."""
        watch = Stopwatch()
        visit.record.watch = watch
        visit.record.body = body = await visit.read_body()
        chat = visit.request.path == CHAT
        try:
            asked = asking.read_asked(body)
            visit.record.model = asked.name
            speak(visit.sink, None, asked.name)
            facts = await self._facts(asked, chat=chat)
            if not asking.has_prompt(asked, chat=chat):
                await self._load(visit, asked, facts, watch, chat=chat)
                return None
            path, sent = _translated(asked, facts, chat=chat)
        except Refused as refused:
            await refuse(visit, refused)
            return None
        return Job(
            request=visit.request,
            route=own_path(path),
            name=asked.name,
            body=sent,
            streams=asked.streams and path != "/infill",
            path=path,
            sink=visit.sink,
            record=visit.record,
            keep_alive=asked.keep_alive,
            translator=Translator(asked.name, watch, chat=chat),
        )

    async def _facts(self, asked: Asked, *, chat: bool) -> Facts:
        if not asked.name and chat:
            raise Refused(400, "model is required")
        facts = await self._known.find(asked.name) if asked.name and not asking.is_cloud(asked.name) else None
        if facts is None and asked.name and not asking.is_expressible(asked.name):
            raise Refused(400, "invalid model name")
        if facts is None:
            raise Refused(404, f"model '{asked.name}' not found")
        return facts

    async def _load(self, visit: Visit, asked: Asked, facts: Facts, watch: Stopwatch, *, chat: bool) -> None:
        """Load or unload, which is no generation and therefore nothing for the activity log."""
        visit.record.admitted = False
        model = facts.model
        if asked.keep_alive == 0:
            if model is not None:
                self._fleet.keep(model, 0.0)
                with trio.move_on_after(UNLOAD_TIME):
                    while not self._fleet.stays_for(model.id) and not _is_used(self._fleet, model.id):
                        await self._fleet.wait_gone(model.id)
            reason = "unload"
        else:
            if model is not None:
                await self._fleet.load(model)
                if asked.keep_alive is not None:
                    self._fleet.keep(model, asked.keep_alive)
            reason = "load"
        line = idle_line(asked.name, watch.now(), reason, chat=chat)
        await send_whole(visit.sink, 200, (JSON_TYPE,), line)


def _is_used(fleet: Fleet, model_id: str) -> bool:
    status = fleet.known(model_id)
    return status is not None and status.leases + status.waiting > 0


def _translated(asked: Asked, facts: Facts, *, chat: bool) -> tuple[str, bytes]:
    """Return the route of llama-server and its body. Raises Refused, in the order of Ollama's checks."""
    what = "chat" if chat else "generate"
    raw = not chat and asking.flag_of(asked.members, "raw", otherwise=False)
    thinks = THINKING in facts.abilities
    if facts.sure and COMPLETION not in facts.abilities:
        raise Refused(400, f'"{asked.name}" does not support {what}')
    if chat and asked.members.get("tools") and facts.lacks(TOOLS):
        raise Refused(400, f"{full_name(asked.name)} does not support tools")
    if asked.think and facts.lacks(THINKING):
        raise Refused(400, f'"{asked.name}" does not support thinking')
    if chat:
        return "/v1/chat/completions", asking.chat_body(asked, asked.name, facts.preset, thinks=thinks)
    if asked.members.get("suffix"):
        if facts.lacks(INSERT):
            raise Refused(400, f"{full_name(asked.name)} does not support insert")
        return "/infill", asking.infill_body(asked, asked.name, facts.preset)
    if raw:
        return "/v1/completions", asking.raw_body(asked, asked.name, facts.preset)
    return "/v1/chat/completions", asking.prompt_body(asked, asked.name, facts.preset, thinks=thinks)


def embeds(facts: Facts) -> bool:
    """False where it is known that the model makes no vectors."""
    return not facts.sure or EMBEDDING in facts.abilities
