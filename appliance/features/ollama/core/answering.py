"""llama-server's answers in Ollama's words: a stream of JSON lines, or one object.

Source: Ollama 0.34 (``llm/llama_server.go``, ``server/routes.go``). A chunk of a stream becomes one line. Calls of
tools are collected, since Ollama tells them complete. The cost goes into the last line, which is written when the
stream has ended. Times are in nanoseconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec
from msgspec import Raw, Struct

from appliance.core.answers.translate import ChatRecords
from appliance.core.bodies.json_text import OBJECT, JsonObject
from appliance.core.bodies.sse import RecordTooLong
from appliance.core.lenient_json import UNREADABLE, decoded
from appliance.core.openai import NULL, ChatChoice, ChatUsage, Embeddings, error_text

NDJSON = b"application/x-ndjson"
DONE = ("[DONE]", b"[DONE]")
_ENCODER = msgspec.json.Encoder()


class Clock(Protocol):
    """Times one request: the time of day, as RFC 3339 in UTC, and nanoseconds since the request came."""

    def now(self) -> str: ...
    def total(self) -> int: ...
    def loading(self) -> int:
        """Return how many of them it waited for its model."""
        ...


class _Called(Struct):
    """A call of a tool, as far as its pieces came."""

    id: str = ""
    name: str = ""
    arguments: str = ""


class _Logprobs(Struct):
    content: list[dict[str, object]] | None = None


class _AnyChoice(ChatChoice):
    text: str | None = None
    logprobs: _Logprobs | None = None


class _EngineTimings(Struct):
    cache_n: int = 0
    prompt_n: int = 0
    prompt_ms: float = 0.0
    predicted_n: int = 0
    predicted_ms: float = 0.0


class _Chunk(Struct):
    """A record of a stream, or a whole answer: OpenAI's chat and completions, or llama-server's ``/infill``."""

    choices: list[_AnyChoice] | None = None
    usage: ChatUsage | None = None
    timings: _EngineTimings | None = None
    error: Raw = NULL
    content: str | None = None
    stop_type: str | None = None
    completion_probabilities: list[dict[str, object]] | None = None


_CHUNK = msgspec.json.Decoder(_Chunk)
_CHUNKS = msgspec.json.Decoder(list[_Chunk])


class OllamaMessage(Struct, omit_defaults=True):
    role: str
    content: str
    thinking: str = ""
    tool_calls: Sequence[Mapping[str, object]] = ()


class ChatLine(Struct, omit_defaults=True):
    """Members that are always there have no default."""

    model: str
    created_at: str
    done: bool
    message: OllamaMessage
    done_reason: str = ""
    logprobs: Sequence[Mapping[str, object]] = ()


class PromptLine(Struct, omit_defaults=True):
    model: str
    created_at: str
    done: bool
    response: str
    thinking: str = ""
    tool_calls: Sequence[Mapping[str, object]] = ()
    done_reason: str = ""
    logprobs: Sequence[Mapping[str, object]] = ()


class ErrorsAlone:
    """Turns errors alone; an `AnswerTranslate` of `core.answers.translate`. ``model``: its name in the request."""

    def __init__(self, model: str = "") -> None:
        self._model = model

    def feed(self, data: bytes) -> bytes:
        return data

    def end(self) -> bytes:
        return b""

    def whole(self, content: bytes) -> tuple[int, bytes]:
        return 200, content

    def refused(self, status: int, content: bytes) -> tuple[int, bytes]:
        return translated_error(status, content, self._model)


class Translator(ErrorsAlone):
    """Turns the answer to one request. No input makes it raise."""

    def __init__(self, model: str, clock: Clock, *, chat: bool) -> None:
        super().__init__(model)
        self._clock = clock
        self._chat = chat
        self._records = ChatRecords()
        self._calls: dict[int, _Called] = {}
        self._reason = ""
        self._usage: ChatUsage | None = None
        self._timings: _EngineTimings | None = None
        self._over = False

    def feed(self, data: bytes) -> bytes:
        """Return the lines that these bytes of an event stream complete."""
        if self._over:
            return b""
        try:
            records = self._records.feed(data)
        except RecordTooLong as error:
            return self._fail(str(error))
        return b"".join([self._event(record) for record in records])

    def end(self) -> bytes:
        """The stream has ended in good order: return its last lines, none behind an error."""
        if self._over:
            return b""
        calls = self._tools()
        if isinstance(calls, str):
            return self._fail(calls)
        self._over = True
        return (_line(self._record(calls=calls)) if calls else b"") + self._last(self._record(done=True))

    def _event(self, data: str | bytes) -> bytes:
        if self._over or data in DONE:
            return b""
        try:
            chunk = _CHUNK.decode(data)
        except UNREADABLE:
            return b""
        if chunk.error != NULL:
            return self._fail(error_text(chunk.error))
        self._note(chunk)
        said, thought, logprobs = self._take(chunk)
        lines = _line(self._record(thinking=thought)) if thought else b""
        return lines + _line(self._record(said, logprobs=logprobs)) if said or logprobs else lines

    def _fail(self, text: str) -> bytes:
        self._over = True
        return error_line(text)

    def whole(self, content: bytes) -> tuple[int, bytes]:
        """Return status and body for the body of an answer that went well."""
        try:
            chunks = _CHUNKS.decode(content) if content.lstrip()[:1] == b"[" else [_CHUNK.decode(content)]
        except UNREADABLE:
            return 502, error_body("the model's answer cannot be read")
        text, thinking, logprobs = "", "", list[JsonObject]()
        for chunk in chunks:
            if chunk.error != NULL:
                return 500, error_body(error_text(chunk.error))
            self._note(chunk)
            said, thought, more = self._take(chunk)
            text, thinking, logprobs = text + said, thinking + thought, logprobs + more
        calls = self._tools()
        if isinstance(calls, str):
            return 500, error_body(calls)
        return 200, self._last(self._record(text, thinking, calls, logprobs, done=True)).rstrip(b"\n")

    def _take(self, chunk: _Chunk) -> tuple[str, str, list[JsonObject]]:
        """Return the text, the reasoning and the log probabilities; parts of calls are put to the others."""
        if not chunk.choices:
            return chunk.content or "", "", _logprobs(chunk.completion_probabilities)
        choice = chunk.choices[0]
        said = choice.said
        for number, call in enumerate(said.tool_calls or ()):
            index = number if choice.message is not None else call.index or 0
            known, text = self._calls.setdefault(index, _Called()), call.function.argument_text
            known.id, known.name = call.id or known.id, call.function.name or known.name
            whole = bytes(call.function.arguments).startswith(b"{")
            known.arguments = text if whole else known.arguments + text
        logprobs = _logprobs(choice.logprobs.content) if choice.logprobs is not None else []
        return said.text or choice.text or "", said.thoughts, logprobs

    def _note(self, chunk: _Chunk) -> None:
        self._usage = chunk.usage or self._usage
        self._timings = chunk.timings or self._timings
        reason = chunk.choices[0].finish_reason if chunk.choices else chunk.stop_type
        if reason and reason != "none":
            self._reason = "length" if reason in ("length", "limit") else "stop"

    def _tools(self) -> list[JsonObject] | str:
        """Return all calls, or what is wrong with one. An answer that was cut short may end in the middle of one."""
        calls: list[JsonObject] = []
        for index, call in sorted(self._calls.items()):
            arguments = decoded(OBJECT, call.arguments or "{}")
            if arguments is None:
                if self._reason == "length":
                    continue
                return f"the model called the tool '{call.name}' with arguments that are not a JSON object"
            told: JsonObject = {"index": index, "name": call.name, "arguments": arguments}
            calls.append({"id": call.id, "function": told} if call.id else {"function": told})
        return calls

    def _record(
        self,
        text: str = "",
        thinking: str = "",
        calls: Sequence[JsonObject] = (),
        logprobs: Sequence[JsonObject] = (),
        *,
        done: bool = False,
    ) -> ChatLine | PromptLine:
        now, calls, logprobs = self._clock.now(), calls or (), logprobs or ()  # only the default is left out
        if self._chat:
            message = OllamaMessage("assistant", text, thinking, calls)
            return ChatLine(self._model, now, done, message=message, logprobs=logprobs)
        return PromptLine(self._model, now, done, response=text, thinking=thinking, tool_calls=calls, logprobs=logprobs)

    def _last(self, record: ChatLine | PromptLine) -> bytes:
        """The record with what the answer cost."""
        record.done_reason = self._reason
        times = {"total_duration": self._clock.total(), "load_duration": self._clock.loading()}
        costs = {name: value for name, value in {**times, **self._cost()}.items() if value}
        return _ENCODER.encode(record)[:-1] + (b"," + _ENCODER.encode(costs)[1:] if costs else b"}") + b"\n"

    def _cost(self) -> dict[str, int]:
        """Return Ollama's counts and times; tokens from the cache count as read."""
        if (timings := self._timings) is not None:
            return {
                "prompt_eval_count": max(0, timings.cache_n) + max(0, timings.prompt_n),
                "prompt_eval_duration": _nanoseconds(timings.prompt_ms),
                "eval_count": max(0, timings.predicted_n),
                "eval_duration": _nanoseconds(timings.predicted_ms),
            }
        usage = self._usage or ChatUsage()
        return {"prompt_eval_count": usage.prompt_tokens or 0, "eval_count": usage.completion_tokens or 0}


def _line(record: ChatLine | PromptLine) -> bytes:
    return _ENCODER.encode(record) + b"\n"


def _nanoseconds(milliseconds: float) -> int:
    return round(milliseconds * 1e6) if 0 < milliseconds < 1e12 else 0


def _logprobs(given: list[dict[str, object]] | None) -> list[JsonObject]:
    return [_logprob(one, top=True) for one in given or ()]


def _logprob(given: Mapping[str, object], *, top: bool) -> JsonObject:
    names = ("token", "logprob", "bytes")
    told: JsonObject = {name: msgspec.to_builtins(given[name]) for name in names if given.get(name) is not None}
    others = given.get("top_logprobs")
    if top and isinstance(others, list) and others:
        alternatives = msgspec.convert(others, list[dict[str, object]], strict=False)
        told["top_logprobs"] = [_logprob(other, top=False) for other in alternatives]
    return told


def idle_line(model: str, now: str, reason: str, *, chat: bool) -> bytes:
    """Return the answer to a request that only loads or unloads its model."""
    if chat:
        return _ENCODER.encode(ChatLine(model, now, True, message=OllamaMessage("assistant", ""), done_reason=reason))
    return _ENCODER.encode(PromptLine(model, now, True, response="", done_reason=reason))


def error_body(text: str) -> bytes:
    return _ENCODER.encode({"error": text or "the engine gave no reason"})


def error_line(text: str) -> bytes:
    """Return the record that ends a stream which has failed."""
    return error_body(text) + b"\n"


class _Reason(Struct):
    reason: str = ""


class _EngineErrorBody(Struct):
    error: Raw = Raw(b'""')


def translated_error(status: int, content: bytes, model: str) -> tuple[int, bytes]:
    """Return status and body of an error in Ollama's words. ``model`` is the name in the request, empty if unknown."""
    error = (decoded(_EngineErrorBody, content) or _EngineErrorBody(Raw(content))).error
    text, told = error_text(error), decoded(_Reason, error)
    if status == 401:
        return 401, error_body("unauthorized")
    if told is not None and told.reason == "model_not_found" and model:
        return 404, error_body(f"model '{model}' not found")
    if "Infill is not supported" in text and model:
        return 400, error_body(f'"{model}" does not support insert')
    return status, error_body(text)


def vectors_of(content: bytes) -> tuple[list[list[float]], int] | None:
    """Return the vectors of ``/v1/embeddings`` in their order, and how many tokens they cost; None if unreadable."""
    found = decoded(Embeddings, content)
    return (found.vectors, (found.usage or ChatUsage()).prompt_tokens or 0) if found is not None else None


def normalised(vector: list[float], dimensions: int | None = None) -> list[float]:
    """Return the first ``dimensions`` of a vector, of length 1; a vector of zeros stays as it is."""
    cut = vector[:dimensions] if dimensions else vector
    length = math.hypot(*cut)  # squares of small numbers would be nothing
    return [x / length for x in cut] if length > 0 and math.isfinite(length) else cut
