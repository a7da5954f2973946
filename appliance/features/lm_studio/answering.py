"""llama-server's answers in LM Studio's form: OpenAI's with statistics (version 0), or a chat of items and events (1).

Each class is an `AnswerTranslate`. Figures come from the engine's ``timings``; other servers have only counted tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
from msgspec import Raw, Struct

from appliance.core.answers.translate import ChatRecords
from appliance.core.bodies.json_text import JSON, JsonObject
from appliance.core.bodies.sse import SseEvent, encode
from appliance.core.lenient_json import decoded
from appliance.core.openai import NULL, ChatCompletion, ChatUsage
from appliance.features.lm_studio.rules import told_error
from appliance.traffic.record import Record

UNREAD = b'{"error":{"message":"the model\'s answer cannot be read","type":"server_error"}}'
_STOPS = {"length": "maxPredictedTokensReached", "tool_calls": "toolCalls"}


class _Timings(Struct):
    """llama-server's; times in milliseconds."""

    prompt_ms: float = 0.0
    predicted_n: int = 0
    predicted_ms: float = 0.0


class _Chunk(ChatCompletion):
    timings: _Timings | None = None
    prompt_progress: dict[str, float] | None = None


_CHUNK = msgspec.json.Decoder(_Chunk)


class Unchanged:
    """Translates errors alone: the answer is in LM Studio's form already."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._records = ChatRecords()
        self._usage, self._timings, self._reason = ChatUsage(), _Timings(), ""

    def feed(self, data: bytes) -> bytes:
        return data

    def end(self) -> bytes:
        return b""

    def whole(self, content: bytes) -> tuple[int, bytes]:
        return 200, content

    def refused(self, status: int, content: bytes) -> tuple[int, bytes]:
        return status, msgspec.json.encode({"error": told_error(self._path, status, content)})

    def _read(self, content: bytes | str) -> _Chunk | None:
        """Return a record, or a whole answer, and note what it cost; None if it cannot be read."""
        if (chunk := decoded(_CHUNK, content)) is not None:
            self._usage, self._timings = chunk.usage or self._usage, chunk.timings or self._timings
            self._reason = next((one.finish_reason for one in chunk.choices or () if one.finish_reason), self._reason)
        return chunk

    def _speed(self) -> float:
        """Tokens per second."""
        timings = self._timings
        return timings.predicted_n * 1000 / timings.predicted_ms if timings.predicted_ms > 0 else 0.0


class WithStats(Unchanged):
    """Adds ``stats``, and what ``about`` returns when the answer is there, to OpenAI's: to a stream's last record.

    Every other record stays as it is, and so does every value of that one.
    """

    def __init__(self, path: str, about: Callable[[], JsonObject]) -> None:
        super().__init__(path)
        self._about = about

    def feed(self, data: bytes) -> bytes:
        return b"".join(encode(SseEvent(self._record(record))) for record in self._records.feed(data))

    def _record(self, data: bytes | str) -> str:
        text = data.decode("utf-8", "replace") if isinstance(data, bytes) else data
        chunk = self._read(text)
        is_last = chunk is not None and (chunk.timings or (chunk.usage is not None and not chunk.choices))
        return self._added(text.encode()).decode() if is_last else text

    def whole(self, content: bytes) -> tuple[int, bytes]:
        return (200, self._added(content)) if self._read(content) is not None else self.refused(502, UNREAD)

    def _added(self, content: bytes) -> bytes:
        stats: JsonObject = {
            "tokens_per_second": self._speed(),
            "time_to_first_token": self._timings.prompt_ms / 1000,
            "generation_time": self._timings.predicted_ms / 1000,
            "stop_reason": _STOPS.get(self._reason, "eosFound"),
        }
        members = msgspec.json.decode(content, type=dict[str, Raw])
        return msgspec.json.encode({**members, "stats": stats, **self._about()})


class ChatItems(Unchanged):
    """An answer of ``/api/v1/chat``; the request's ``record`` says which model answers, and how long that loaded."""

    def __init__(self, path: str, record: Record) -> None:
        super().__init__(path)
        self._record = record
        self._items: list[tuple[str, list[str]]] = []
        self._begun = False

    def feed(self, data: bytes) -> bytes:
        return b"".join(event for record in self._records.feed(data) for event in self._events(record))

    def _events(self, data: bytes | str) -> Iterator[bytes]:
        if (chunk := self._read(data)) is None:
            return
        yield from self._begin()
        if chunk.error != NULL:
            content = data if isinstance(data, bytes) else data.encode()
            yield _event("error", error=told_error(self._path, 200, content))
        if (read := chunk.prompt_progress) and read.get("total", 0) > 0 and not self._items:
            yield _event("prompt_processing.progress", progress=min(1.0, read.get("processed", 0) / read["total"]))
        for kind, text in _said(chunk):
            if not self._items or self._items[-1][0] != kind:
                yield self._close()
                yield _event(f"{kind}.start")
                self._items.append((kind, []))
            self._items[-1][1].append(text)
            yield _event(f"{kind}.delta", content=text)

    def _begin(self) -> Iterator[bytes]:
        """An answer begins when its model is there: the events of a load come when it is over."""
        if not self._begun:
            self._begun, name = True, self._record.model
            yield _event("chat.start", model_instance_id=name)
            if (seconds := self._loading()) is not None:
                yield _event("model_load.start", model_instance_id=name)
                yield _event("model_load.end", model_instance_id=name, load_time_seconds=seconds)
            yield _event("prompt_processing.start")

    def _loading(self) -> float | None:
        """Seconds of the model's load for this request; None where it was there."""
        return next((step.load[0] - step.load[1] for step in self._record.steps if step.load is not None), None)

    def _close(self) -> bytes:
        """End the item that was last, or the reading of the prompt."""
        return _event(f"{self._items[-1][0] if self._items else 'prompt_processing'}.end")

    def end(self) -> bytes:
        """Behind an error as well: what has been said until then is the result."""
        return b"".join((*self._begin(), self._close(), _event("chat.end", result=self._result())))

    def whole(self, content: bytes) -> tuple[int, bytes]:
        if (chunk := self._read(content)) is None or chunk.error != NULL:
            return self.refused(502, UNREAD if chunk is None else content)
        self._items = [(kind, [text]) for kind, text in _said(chunk)]
        return 200, msgspec.json.encode(self._result())

    def _result(self) -> JsonObject:
        items = [(kind, "".join(texts)) for kind, texts in self._items]
        length = sum(len(text) for _, text in items)
        thought = sum(len(text) for kind, text in items if kind == "reasoning")
        written = self._usage.completion_tokens or 0
        stats: JsonObject = {
            "input_tokens": self._usage.prompt_tokens or 0,
            "total_output_tokens": written,
            # No engine counts these apart: they are as large a part of the tokens as of the letters.
            "reasoning_output_tokens": round(written * thought / length) if length else 0,
            "tokens_per_second": self._speed(),
            "time_to_first_token_seconds": self._timings.prompt_ms / 1000,
        }
        stats |= {"model_load_time_seconds": seconds} if (seconds := self._loading()) is not None else {}
        output: list[JSON] = [{"type": kind, "content": text} for kind, text in items]
        return {"model_instance_id": self._record.model, "output": output, "stats": stats}


def _said(chunk: _Chunk) -> list[tuple[str, str]]:
    """The reasoning and the message of a record that are not empty."""
    said = chunk.choices[0].said if chunk.choices else None
    parts = (("reasoning", said.thoughts), ("message", said.text)) if said is not None else ()
    return [(kind, text) for kind, text in parts if text]


def _event(kind: str, **members: JSON) -> bytes:
    return encode(SseEvent(msgspec.json.encode({"type": kind, **members}).decode(), kind))
