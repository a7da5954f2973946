"""Lets plugins ask models: the program as its own client, in a plugin's terms."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TypeVar

import msgspec
from msgspec import Struct

from appliance.core.bodies import sse
from appliance.core.bodies.json_text import JSON, OBJECT, JsonObject
from appliance.core.decoding import decoded
from appliance.core.runs.inward import Asker, Reply
from appliance.errors import ApplianceError
from appliance.plugins import AskFailed, Event

MAX_ANSWER = 64 << 20
"""Largest answer that is held as a whole, in bytes."""
CHAT = "/v1/chat/completions"
EMBEDDINGS = "/v1/embeddings"
_T = TypeVar("_T")


class _Message(Struct):
    content: str | None = None


class _Choice(Struct):
    message: _Message


class _Chat(Struct):
    choices: list[_Choice]


class _Vector(Struct):
    embedding: list[float]
    index: int = 0


class _Vectors(Struct):
    data: list[_Vector]


class _Error(Struct):
    message: str = ""


class _Refusal(Struct):
    error: _Error


class ChainClient:
    """`appliance.plugins.Appliance` for one plugin; its requests are listed under the plugin's name."""

    def __init__(self, asker: Asker, models: Callable[[], list[str]], plugin: str) -> None:
        self._asker = asker
        self._models = models
        self._origin = f"plugin {plugin}"

    async def post(self, path: str, body: JsonObject) -> JsonObject:
        with _explaining():
            sent = _encoded({**body, "stream": False} if body.get("stream") else body)
            async with self._asker.ask(path, sent, origin=self._origin) as reply:
                content = await reply.read(MAX_ANSWER)
                _refuse(reply.status, content)
        return _decoded(content)

    @asynccontextmanager
    async def stream(self, path: str, body: JsonObject) -> AsyncGenerator[AsyncIterator[Event]]:
        failure: ApplianceError | None = None
        try:
            sent = _encoded({**body, "stream": True})
            async with self._asker.ask(path, sent, origin=self._origin) as reply:
                if reply.status != 200 or not reply.event_stream:
                    content = await reply.read(MAX_ANSWER)
                    _refuse(reply.status, content)
                    raise AskFailed(f"{path} did not answer with a stream")
                yield _Events(reply)
        except ApplianceError as error:
            failure = error
        if failure is not None:
            raise AskFailed(str(failure)) from None

    async def chat(self, model: str, messages: Sequence[JsonObject], **params: JSON) -> str:
        body: JsonObject = {"model": model, "messages": list[JSON](messages), **params}
        answer = _shaped(await self.post(CHAT, body), _Chat)
        if not answer.choices:
            raise AskFailed(f"'{model}' answered with no message")
        return answer.choices[0].message.content or ""

    async def embed(self, model: str, texts: Sequence[str]) -> list[list[float]]:
        if not texts:
            return []
        answer = _shaped(await self.post(EMBEDDINGS, {"model": model, "input": list[JSON](texts)}), _Vectors)
        if len(answer.data) != len(texts):
            raise AskFailed(f"'{model}' answered with {len(answer.data)} vectors for {len(texts)} texts")
        return [each.embedding for each in sorted(answer.data, key=lambda each: each.index)]

    def models(self) -> list[str]:
        return self._models()


class _Events:
    """The events of an answer, as they come."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._decoder = sse.Decoder()
        self._held: list[sse.Event] = []

    def __aiter__(self) -> _Events:
        return self

    async def __anext__(self) -> Event:
        with _explaining():
            while not self._held:
                if not (chunk := await self._reply.receive()):
                    raise StopAsyncIteration
                self._held = self._decoder.feed(chunk)
        event = read_event(self._held.pop(0))
        if event is None:
            raise AskFailed("the model's stream has a record that is not JSON")
        if (error := error_of(event)) is not None:
            raise AskFailed(error)
        return event


def read_event(event: sse.Event) -> Event | None:
    """Return None for anything but an object or the end."""
    if event.data == "[DONE]":
        return Event(data=None, name=event.name)
    data = decoded(OBJECT, event.data)
    return Event(data=data, name=event.name) if data is not None else None


def error_of(event: Event) -> str | None:
    """Return the error that a model's server reports in the middle of a stream."""
    data = event.data or {}
    error = data.get("error")
    if not error and event.name != "error":
        return None
    said = error.get("message") if isinstance(error, dict) else data.get("message")
    return said if isinstance(said, str) and said else "the model's server reports an error"


def _refuse(status: int, content: bytes) -> None:
    if status < 400:
        return
    refusal, body = decoded(_Refusal, content), decoded(OBJECT, content)
    message = refusal.error.message if refusal is not None else content.decode("utf-8", "replace")[:1000]
    raise AskFailed(message or f"the model's server answered {status}", status=status, body=body)


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


def _decoded(content: bytes) -> JsonObject:
    answer = decoded(OBJECT, content)
    if answer is None:
        raise AskFailed("the answer is not a JSON object")
    return answer


def _shaped(answer: JsonObject, shape: type[_T]) -> _T:
    try:
        return msgspec.convert(answer, shape)
    except msgspec.ValidationError as error:
        raise AskFailed(f"the answer has not the form that was expected: {error}") from None
