"""The five answer formats of llama-server's completions: whole bodies, stream records, and their order.

Shapes as llama.cpp b11434 sends them; the contract tests hold them to it. A dialect is told what happens (begin, one
token, the end) and says which bytes that is on the wire.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from fake_json import Json, as_object, encode

BUILD = "b11434-fake"
DONE = b"data: [DONE]\n\n"


def data(value: object) -> bytes:
    return b"data: " + encode(value) + b"\n\n"


def event(kind: str, **fields: object) -> bytes:
    return b"event: " + kind.encode() + b"\n" + data({"type": kind, **fields})


class Dialect:
    """What one answer is made of. ``prompt_tokens`` is known from the start, the rest grows."""

    paths: tuple[str, ...]
    prompt_field = "prompt"
    limit_field = "max_tokens"
    missing_status = 400
    """What a request without its prompt is answered."""

    def __init__(self, model: str, prompt: str, prompt_tokens: int, body: Json) -> None:
        self.model = model
        self.prompt = prompt
        self.prompt_tokens = prompt_tokens
        self.body = body
        self.text = ""
        self.cached = 0  # of the prompt's tokens
        self.read = 0
        self.tokens = 0
        self.slot = 0
        self.created = int(time.time())
        self.unique = f"{time.monotonic_ns():x}".rjust(32, "0")

    def begin(self) -> Iterator[bytes]:
        """Records that precede the first token."""
        return iter(())

    def add(self, piece: str) -> Iterator[bytes]:
        """Records of one token."""
        self.text += piece
        self.tokens += 1
        return self.on_token(piece)

    def on_token(self, piece: str) -> Iterator[bytes]:
        raise NotImplementedError

    def end(self) -> Iterator[bytes]:
        """Records that follow the last token; they share a chunk."""
        raise NotImplementedError

    done = b""
    """What ends the stream behind them, as a chunk of its own."""

    def whole(self) -> Json:
        raise NotImplementedError

    def error(self, error: Json) -> bytes:
        """An error once the head is out: the last record, no [DONE] behind it."""
        return data({"error": error})

    def timings(self) -> Json:
        return {
            "cache_n": self.cached,
            "prompt_n": self.prompt_tokens - self.cached,
            "prompt_ms": 1.0,
            "prompt_per_token_ms": 0.1,
            "prompt_per_second": 10000.0,
            "predicted_n": self.tokens,
            "predicted_ms": 1.0,
            "predicted_per_token_ms": 0.1,
            "predicted_per_second": 10000.0,
        }

    def usage(self) -> Json:
        return {
            "completion_tokens": self.tokens,
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.tokens + self.prompt_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }

    def object_of(self, kind: str, choices: list[Json]) -> Json:
        """A whole answer or a record, as OpenAI has them."""
        return {
            "choices": choices,
            "created": self.created,
            "id": f"chatcmpl-{self.unique}",
            "model": self.model,
            "system_fingerprint": BUILD,
            "object": kind,
        }

    def wants_usage(self) -> bool:
        return bool(as_object(self.body.get("stream_options")).get("include_usage"))


class Native(Dialect):
    """POST /completion."""

    paths = ("/completion", "/completions")
    limit_field = "n_predict"

    def on_token(self, piece: str) -> Iterator[bytes]:
        yield data(
            {
                "index": 0,
                "content": piece,
                "tokens": [ord(piece[0])],
                "stop": False,
                "id_slot": -1,
                "tokens_predicted": self.tokens,
                "tokens_evaluated": self.prompt_tokens,
            }
        )

    def end(self) -> Iterator[bytes]:
        yield data(self._final(""))

    def whole(self) -> Json:
        return self._final(self.text)

    def _final(self, content: str) -> Json:
        return {
            "index": 0,
            "content": content,
            "tokens": [],
            "id_slot": self.slot,
            "stop": True,
            "model": self.model,
            "tokens_predicted": self.tokens,
            "tokens_evaluated": self.prompt_tokens,
            "generation_settings": {"n_predict": self.tokens, "stream": bool(self.body.get("stream"))},
            "prompt": self.prompt,
            "has_new_line": False,
            "truncated": False,
            "stop_type": "limit",
            "stopping_word": "",
            "tokens_cached": self.tokens + self.prompt_tokens - 1,
            "timings": self.timings(),
        }


class Infill(Native):
    """POST /infill."""

    paths = ("/infill",)
    prompt_field = "input_prefix"


class Completion(Dialect):
    """POST /v1/completions."""

    paths = ("/v1/completions",)
    done = DONE

    def _said(self, text: str, finish: str | None) -> Json:
        choice = {"text": text, "index": 0, "logprobs": None, "finish_reason": finish}
        return self.object_of("text_completion", [choice])

    def on_token(self, piece: str) -> Iterator[bytes]:
        yield data(self._said(piece, None))

    def end(self) -> Iterator[bytes]:
        yield data(self._said("", "length") | {"usage": self.usage(), "timings": self.timings()})

    def whole(self) -> Json:
        return self._said(self.text, "length") | {"usage": self.usage(), "timings": self.timings()}


class Chat(Dialect):
    """POST /v1/chat/completions."""

    paths = ("/v1/chat/completions", "/chat/completions")
    prompt_field = "messages"
    limit_field = "max_completion_tokens"
    done = DONE

    def _chunk(self, choices: list[Json]) -> Json:
        return self.object_of("chat.completion.chunk", choices)

    def _delta(self, delta: Json, finish: str | None) -> Json:
        return self._chunk([{"finish_reason": finish, "index": 0, "delta": delta}])

    def begin(self) -> Iterator[bytes]:
        yield data(self._delta({"role": "assistant", "content": None}, None))

    def reading(self) -> bytes:
        """How much of the prompt has been read."""
        told = {"total": self.prompt_tokens, "cache": 0, "processed": self.read, "time_ms": 1}
        return data(self._delta({"role": "assistant", "content": None}, None) | {"prompt_progress": told})

    def on_token(self, piece: str) -> Iterator[bytes]:
        yield data(self._delta({"content": piece}, None))

    def end(self) -> Iterator[bytes]:
        last = self._delta({}, "length")
        if self.wants_usage():
            yield data(last)
            last = self._chunk([]) | {"usage": self.usage()}
        yield data(last | {"timings": self.timings()})

    def whole(self) -> Json:
        message = {"role": "assistant", "content": self.text}
        choices: list[Json] = [{"finish_reason": "length", "index": 0, "message": message}]
        return self.object_of("chat.completion", choices) | {"usage": self.usage(), "timings": self.timings()}


class Messages(Dialect):
    """POST /v1/messages (Anthropic): records carry an event name, and no [DONE] ends them."""

    paths = ("/v1/messages",)
    prompt_field = "messages"
    missing_status = 500

    def _message(self, content: list[Json], stop: str | None, output: int) -> Json:
        return {
            "id": f"chatcmpl-{self.unique}",
            "type": "message",
            "role": "assistant",
            "content": content,
            "model": self.model,
            "stop_reason": stop,
            "stop_sequence": None,
            "usage": {
                "cache_read_input_tokens": 0,
                "input_tokens": self.prompt_tokens,
                "output_tokens": output,
            },
        }

    def begin(self) -> Iterator[bytes]:
        yield event("message_start", message=self._message([], None, 0))
        yield event("content_block_start", index=0, content_block={"type": "text", "text": ""})

    def on_token(self, piece: str) -> Iterator[bytes]:
        yield event("content_block_delta", index=0, delta={"type": "text_delta", "text": piece})

    def end(self) -> Iterator[bytes]:
        yield event("content_block_stop", index=0)
        delta = {"stop_reason": "max_tokens", "stop_sequence": None}
        yield event("message_delta", delta=delta, usage={"output_tokens": self.tokens})
        yield event("message_stop")

    def whole(self) -> Json:
        return self._message([{"type": "text", "text": self.text}], "max_tokens", self.tokens)

    def error(self, error: Json) -> bytes:
        return b"event: error\n" + data({"type": "error", "error": error})


class Responses(Dialect):
    """POST /v1/responses (OpenAI): event names, no [DONE]."""

    paths = ("/v1/responses", "/responses")
    prompt_field = "input"
    limit_field = "max_output_tokens"

    def _item(self) -> Json:
        return {"id": f"msg_{self.unique}", "type": "message", "role": "assistant"}

    def _part(self) -> Json:
        return {"type": "output_text", "annotations": [], "logprobs": [], "text": self.text}

    def begin(self) -> Iterator[bytes]:
        started = {"id": f"resp_{self.unique}", "object": "response", "status": "in_progress"}
        yield event("response.created", response=started)
        yield event("response.in_progress", response=started)
        item: Json = {"content": [], "status": "in_progress"}
        yield event("response.output_item.added", item=self._item() | item)
        yield event(
            "response.content_part.added", item_id=f"msg_{self.unique}", part={"type": "output_text", "text": ""}
        )

    def on_token(self, piece: str) -> Iterator[bytes]:
        yield event("response.output_text.delta", item_id=f"msg_{self.unique}", delta=piece)

    def end(self) -> Iterator[bytes]:
        message = f"msg_{self.unique}"
        yield event("response.output_text.done", item_id=message, text=self.text)
        yield event("response.content_part.done", item_id=message, part=self._part())
        yield event("response.output_item.done", item=self._item() | {"status": "completed", "content": [self._part()]})
        yield b"event: response.completed\n" + data(
            {"type": "response.completed", "response": self.whole(), "timings": self.timings()}
        )

    def whole(self) -> Json:
        return {
            "completed_at": self.created,
            "created_at": self.created,
            "id": f"resp_{self.unique}",
            "model": self.model,
            "object": "response",
            "output": [self._item() | {"status": "completed", "content": [self._part()]}],
            "status": "completed",
            "usage": {
                "input_tokens": self.prompt_tokens,
                "output_tokens": self.tokens,
                "total_tokens": self.tokens + self.prompt_tokens,
                "input_tokens_details": {"cached_tokens": 0},
            },
        }
