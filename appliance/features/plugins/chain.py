"""The plugins that one request named, run in that order, for its answer too; and their client for models.

An answer is whole or a stream, and a plugin has hooks for one or for both. Where its only hook is for the other form,
the answer changes form in front of it, and once more at the end where the client asked for the other one. An answer
that no plugin looks at is not looked at here either.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterable, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TypeVar

import msgspec

from appliance.core.answers.families import Family, family_of
from appliance.core.answers.forms import Torn, events_of, whole_of
from appliance.core.bodies import sse
from appliance.core.bodies.json_text import JSON, OBJECT, JsonObject
from appliance.core.lenient_json import UNREADABLE, decoded
from appliance.core.openai import ChatCompletion, Embeddings, error_text
from appliance.core.runs.inward import Asker, InwardReply
from appliance.errors import ApplianceError, PluginFailed, UpstreamFailed
from appliance.features.plugins.registry import PluginEntry
from appliance.plugins import AskFailed, Event, Request, Response
from appliance.plugins.hooks import HookedStream, PluginHost, PluginStep, Replayed
from appliance.trio_parts import beside

MAX_ANSWER = 64 << 20  # largest answer that is held as a whole, in bytes
CHAT = "/v1/chat/completions"
EMBEDDINGS = "/v1/embeddings"
_T = TypeVar("_T")
log = logging.getLogger(__name__)


class ChainClient:
    """`appliance.plugins.Appliance` for one plugin; its requests are listed under the plugin's name."""

    def __init__(self, asker: Asker, models: Callable[[], list[str]], plugin: str) -> None:
        self._asker = asker
        self._models = models
        self._origin = f"plugin {plugin}"

    async def post(self, path: str, body: JsonObject) -> JsonObject:
        if (answer := decoded(OBJECT, await self._post(path, body))) is None:
            raise AskFailed("the answer is not a JSON object")
        return answer

    async def _post(self, path: str, body: JsonObject) -> bytes:
        with _explaining():
            sent = _encoded({**body, "stream": False} if body.get("stream") else body)
            async with self._asker.ask(path, sent, origin=self._origin) as reply:
                content = await reply.read(MAX_ANSWER)
                _refuse(reply.status, content)
        return content

    @asynccontextmanager
    async def stream(self, path: str, body: JsonObject) -> AsyncGenerator[AsyncIterator[Event]]:
        with _explaining():
            sent = _encoded({**body, "stream": True})
            async with self._asker.ask(path, sent, origin=self._origin) as reply:
                if reply.status != 200 or not reply.event_stream:
                    content = await reply.read(MAX_ANSWER)
                    _refuse(reply.status, content)
                    raise AskFailed(f"{path} did not answer with a stream")
                yield _AskedEvents(reply, str(body.get("model", "")))

    async def chat(self, model: str, messages: Sequence[JsonObject], **params: JSON) -> str:
        body: JsonObject = {"model": model, "messages": list[JSON](messages), **params}
        answer = _decoded(await self._post(CHAT, body), ChatCompletion)
        if not answer.choices or answer.choices[0].message is None:
            raise AskFailed(f"'{model}' answered with no message")
        return answer.choices[0].message.text

    async def embed(self, model: str, texts: Sequence[str]) -> list[list[float]]:
        if not texts:
            return []
        answer = _decoded(await self._post(EMBEDDINGS, {"model": model, "input": list[JSON](texts)}), Embeddings)
        if len(answer.data) != len(texts):
            raise AskFailed(f"'{model}' answered with {len(answer.data)} vectors for {len(texts)} texts")
        return answer.vectors

    def models(self) -> list[str]:
        return self._models()


class ModelEvents:
    """The events of a model's streamed answer, as they come."""

    def __init__(self, reply: InwardReply, model: str) -> None:
        self._reply = reply
        self._model = model
        self._decoder = sse.Decoder()
        self._held: deque[sse.SseEvent] = deque()

    def __aiter__(self) -> ModelEvents:
        return self

    async def __anext__(self) -> Event:
        """Raises UpstreamFailed for records that cannot be read, and what the reply raises."""
        while not self._held:
            if not (chunk := await self._reply.receive()):
                raise StopAsyncIteration
            try:
                self._held.extend(self._decoder.feed(chunk))
            except sse.RecordTooLong as error:
                raise UpstreamFailed(self._model, str(error)) from None
        event = self._held.popleft()
        data = decoded(OBJECT, event.data)
        if data is None and event.data != "[DONE]":
            raise UpstreamFailed(self._model, "its stream has a record that is not JSON")
        return Event(data=data, name=event.name)


class _AskedEvents(ModelEvents):
    """Raises AskFailed, also for an error that the model's server reports in the stream."""

    async def __anext__(self) -> Event:
        with _explaining():
            event = await super().__anext__()
        if (error := error_of(event)) is not None:
            raise AskFailed(error)
        return event


def error_of(event: Event) -> str | None:
    """Return the error that a model's server reports in the middle of a stream."""
    data = event.data or {}
    error = data.get("error")
    if not error and event.name != "error":
        return None
    said = error.get("message") if isinstance(error, dict) else data.get("message")
    return said if isinstance(said, str) and said else "the model's server reports an error"


def _refuse(status: int, content: bytes) -> None:
    if status >= 400:
        message = error_text(content) or f"the model's server answered {status}"
        raise AskFailed(message, status=status, body=decoded(OBJECT, content))


@contextmanager
def _explaining() -> Generator[None]:
    try:
        yield
    except ApplianceError as error:
        raise AskFailed(str(error)) from None


def _encoded(body: JsonObject) -> bytes:
    try:
        return msgspec.json.encode(body)
    except (TypeError, ValueError) as error:
        raise AskFailed(f"the question is not JSON: {error}") from None


def _decoded(content: bytes, shape: type[_T]) -> _T:
    try:
        return msgspec.json.decode(content, type=shape)
    except UNREADABLE as error:
        raise AskFailed(f"the answer has not the form that was expected: {error}") from None


Answer = Response | AsyncIterator[Event]


@asynccontextmanager
async def open_chain(
    entries: Sequence[PluginEntry], path: str, model: str, asker: Asker, models: Callable[[], list[str]]
) -> AsyncGenerator[Chain]:
    """Open the chain of one request; leaving the block ends the plugins' work. Raises PluginFailed.

    ``models`` returns the names that plugins may ask.
    """
    host = PluginHost(lambda plugin: ChainClient(asker, models, plugin))
    loaded = [(await entry.hooks(), entry.plugin) for entry in entries]
    async with beside() as nursery:
        steps = [PluginStep(plugin, hooks, model, host, nursery.start_soon) for hooks, plugin in loaded]
        chain = Chain(path, steps)
        log.info("plugins of a request for '%s': %s", model, " ".join(plugin.name for _, plugin in loaded))
        try:
            yield chain
        finally:
            for stream in reversed(chain.streams):  # stream hooks clean up, the last one first
                await stream.aclose()


class Chain:
    """Made by `open_chain`. Its methods raise PluginFailed, and BadRequest if a plugin refuses the request."""

    def __init__(self, path: str, steps: Sequence[PluginStep]) -> None:
        self._path = path
        self._family = family_of(path) or Family.CHAT
        self._steps = steps
        self.streams: list[HookedStream] = []

    @property
    def answers(self) -> bool:
        """True if some plugin has a hook for the answer."""
        return any(step.hooks.on_response or step.hooks.on_stream for step in self._steps)

    async def request(self, body: bytes, *, stream: bool) -> tuple[bytes, bool]:
        """Return the body for the model, and whether it asks for a stream; unchanged bytes if no plugin looks at it."""
        steps = [step for step in self._steps if step.hooks.on_request is not None]
        if not steps:
            return body, stream
        request = Request(path=self._path, body=OBJECT.decode(body), stream=stream)
        for step in steps:
            request, body = await step.request(request)
        return body, request.body.get("stream") is True

    async def respond(self, answer: Answer, *, stream: bool) -> Answer:
        """Return the answer in the client's form. The hooks of a stream run while it is iterated over."""
        for step in self._steps:
            hooks = step.hooks
            if isinstance(answer, Response):
                if hooks.on_response is not None:
                    answer = await step.response(answer)
                elif hooks.on_stream is not None:
                    answer = self._hooked(step, Replayed(self._events(answer.body)))
            elif hooks.on_stream is not None:
                answer = self._hooked(step, answer)
            elif hooks.on_response is not None:
                answer = await step.response(await self._joined(answer))
        if stream:
            return Replayed(self._events(answer.body)) if isinstance(answer, Response) else answer
        return answer if isinstance(answer, Response) else await self._joined(answer)

    def encode(self, event: Event) -> bytes:
        """Encode an event as a record. Data that is not JSON may come from any stream hook."""
        try:
            text = "[DONE]" if event.data is None else msgspec.json.encode(event.data).decode()
        except (TypeError, ValueError, RecursionError, OverflowError) as error:
            names = ", ".join(step.plugin.name for step in self._steps if step.hooks.on_stream is not None)
            raise PluginFailed(names, "on_stream", f"an event is not JSON: {error}") from None
        return sse.encode(sse.SseEvent(text, event.name))

    def _hooked(self, step: PluginStep, events: AsyncIterator[Event]) -> HookedStream:
        stream = step.stream(events)
        self.streams.append(stream)
        return stream

    def _events(self, body: JsonObject) -> Iterable[Event]:
        return (Event(data=data, name=name) for name, data in events_of(self._family, body))

    async def _joined(self, events: AsyncIterator[Event]) -> Response:
        parts = [event.data async for event in events if event.data is not None]
        try:
            return Response(status=200, body=whole_of(self._family, parts))
        except Torn as error:
            names = ", ".join(step.plugin.name for step in self._steps)
            hook = "on_stream" if self.streams else "on_response"
            raise PluginFailed(names, hook, f"the answer cannot be put together: {error}") from None
