"""Tests of a plugin: one request and its answer through its hooks, without a server and without a model.

    turn = take_turn(Path(__file__).parent, question("Hello"), reply("Good day"))
    assert turn.sent["messages"] == ...

The hooks run as they do in the program: loaded from the folder, each in its time, sync ones in a thread.
"""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import trio
from msgspec import Struct

from appliance.core.answers.families import Family, family_of
from appliance.core.answers.forms import events_of
from appliance.core.bodies.json_text import JSON, OBJECT, JsonObject
from appliance.plugins import AskFailed, Event, Request, Response
from appliance.plugins.chat import Streamed, answer_text
from appliance.plugins.folders import CONFIG
from appliance.plugins.hooks import PluginHost, PluginStep, Replayed
from appliance.plugins.loading import PREFIX, Plugin, forget, load_hooks
from appliance.plugins.manifest import read_manifest
from appliance.trio_parts import beside

CHAT = "/v1/chat/completions"
EMBEDDINGS = "/v1/embeddings"
Answers = Callable[[str, JsonObject], JsonObject]
"""From path and body of a plugin's question to the answer of the model's server. May raise AskFailed."""
_numbers = itertools.count(1)


class Turn(Struct, frozen=True, kw_only=True):
    """The result. A whole answer is in ``answer``, a stream in ``events``."""

    sent: JsonObject
    """The request's body as the model would have received it."""
    answer: JsonObject | None = None
    events: tuple[Event, ...] = ()

    @property
    def text(self) -> str:
        """The text for the client of a chat."""
        if self.answer is not None:
            return answer_text(self.answer)
        said = Streamed()
        for event in self.events:
            said.add(event)
        return said.text


class Asked:
    """`appliance.plugins.Appliance` whose models are a function; ``questions`` records the plugin's questions."""

    def __init__(self, answers: Answers, models: Sequence[str] = ("model",)) -> None:
        self.questions: list[tuple[str, JsonObject]] = []
        self._answers = answers
        self._models = list(models)

    async def post(self, path: str, body: JsonObject) -> JsonObject:
        await trio.lowlevel.checkpoint()
        self.questions.append((path, body))
        return self._answers(path, body)

    @asynccontextmanager
    async def stream(self, path: str, body: JsonObject) -> AsyncGenerator[AsyncIterator[Event]]:
        whole = await self.post(path, body)
        yield Replayed([Event(data=data, name=name) for name, data in events_of(family_of(path) or Family.CHAT, whole)])

    async def chat(self, model: str, messages: Sequence[JsonObject], **params: JSON) -> str:
        body: JsonObject = {"model": model, "messages": list[JSON](messages), **params}
        return answer_text(await self.post(CHAT, body))

    async def embed(self, model: str, texts: Sequence[str]) -> list[list[float]]:
        answer = await self.post(EMBEDDINGS, {"model": model, "input": list[JSON](texts)})
        return [cast("list[float]", each["embedding"]) for each in cast("list[JsonObject]", answer["data"])]

    def models(self) -> list[str]:
        return list(self._models)


def no_model(path: str, body: JsonObject) -> JsonObject:
    """For a test whose plugin must not ask anything."""
    raise AskFailed(f"this test has no model that answers {path}")


def take_turn(
    folder: Path,
    body: JsonObject,
    answer: JsonObject | Sequence[Event],
    *,
    path: str = CHAT,
    settings: JsonObject | None = None,
    data: Path | None = None,
    models: Asked | None = None,
) -> Turn:
    """Run the plugin in ``folder`` for one request, whose model would answer ``answer``, whole or as a stream.

    ``settings`` replace those of config.json; ``data`` is the folder for the plugin's data, by default a temporary one.
    Raises BadPlugin and BadManifest for a plugin that cannot be loaded, else the error for the client.
    """
    manifest = read_manifest((folder / CONFIG).read_bytes()).manifest
    given = cast("JsonObject", manifest.settings) if settings is None else settings
    with tempfile.TemporaryDirectory() as vanishing:
        plugin = Plugin(
            name=folder.name,
            folder=folder,
            data=data or Path(vanishing),
            settings=given,
            timeout=manifest.timeout,
        )
        return trio.run(_take_turn, plugin, body, answer, path, models or Asked(no_model))


async def _take_turn(
    plugin: Plugin, body: JsonObject, answer: JsonObject | Sequence[Event], path: str, models: Asked
) -> Turn:
    package = f"{PREFIX}test_{next(_numbers)}"
    hooks = load_hooks(plugin.folder, package)
    turn: Turn | None = None
    try:
        async with beside() as nursery:
            host, model = PluginHost(lambda _: models), str(body.get("model", "model"))
            turn = await _through(PluginStep(plugin, hooks, model, host, nursery.start_soon), body, answer, path)
    finally:
        forget(package)
    assert turn is not None
    return turn


async def _through(step: PluginStep, body: JsonObject, answer: JsonObject | Sequence[Event], path: str) -> Turn:
    stream = not isinstance(answer, dict)
    request = Request(path=path, body=body, stream=stream)
    if step.hooks.on_request is not None:
        request, _ = await step.request(request)
    sent = OBJECT.decode(json.dumps(request.body))  # as it was: a hook may go on changing it
    if isinstance(answer, dict):
        response = Response(status=200, body=answer)
        if step.hooks.on_response is not None:
            response = await step.response(response)
        return Turn(sent=sent, answer=response.body)
    if step.hooks.on_stream is None:
        return Turn(sent=sent, events=tuple(answer))
    hooked = step.stream(Replayed(answer))
    try:
        return Turn(sent=sent, events=tuple([event async for event in hooked]))
    finally:
        await hooked.aclose()


# ---- messages to try a plugin with -----------------------------------------------------------------------------------


def question(text: str, **more: JSON) -> JsonObject:
    """Return a chat request."""
    return {"model": "model", "messages": [{"role": "user", "content": text}], **more}


def reply(text: str) -> JsonObject:
    """Return a whole answer to a chat."""
    message: JsonObject = {"role": "assistant", "content": text}
    return {
        "id": "chatcmpl-test",
        "object": "chat.completion",
        "model": "model",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
    }


def streamed(*pieces: str) -> list[Event]:
    """Return the same as a stream, one event for each piece."""

    def chunk(delta: JsonObject, finish: str | None = None) -> Event:
        choice: JsonObject = {"index": 0, "delta": delta, "finish_reason": finish}
        data: JsonObject = {"id": "chatcmpl-test", "object": "chat.completion.chunk", "model": "model"}
        return Event(data={**data, "choices": [choice]})

    begin = chunk({"role": "assistant", "content": None})
    return [begin, *(chunk({"content": piece}) for piece in pieces), chunk({}, "stop"), Event(data=None)]
