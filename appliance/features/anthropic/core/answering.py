"""llama-server's chat completions as Anthropic's Messages: a stream of events, or one message.

Events come in Anthropic's order: ``message_start``, then each block from its start to its stop, then ``message_delta``
with the reason of the end and the cost, then ``message_stop``. The engine reports how far it has read (`asking`), so
that ``message_start`` has its tokens; each report behind the first is a ``ping``.

An event costs one decoding and one template of bytes: a stream has one for each token.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Raw, Struct

from appliance.core.answers.faults import fault_in
from appliance.core.answers.translate import ChatRecords
from appliance.core.bodies.json_text import OBJECT, JsonObject
from appliance.core.bodies.sse import ANTHROPIC_TYPES
from appliance.core.lenient_json import UNREADABLE, decoded
from appliance.core.openai import NULL, ToolCall, error_text

_DONE = ("[DONE]", b"[DONE]")
_REASONS = {"length": "max_tokens", "tool_calls": "tool_use", "function_call": "tool_use", "content_filter": "refusal"}
"""Anthropic's words; everything else is ``end_turn``."""
PING = b'event: ping\ndata: {"type":"ping"}\n\n'
_MARK = b': %b\n\nevent: ping\ndata: {"type":"ping","appliance":%b}\n\n'
_START = b'event: message_start\ndata: {"type":"message_start","message":%b}\n\n'
_BEGIN = b'event: content_block_start\ndata: {"type":"content_block_start","index":%d,"content_block":%b}\n\n'
_STOP = b'event: content_block_stop\ndata: {"type":"content_block_stop","index":%d}\n\n'
_DELTA = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":"'
_TEXT = _DELTA + b'text_delta","text":%b}}\n\n'
_THOUGHT = _DELTA + b'thinking_delta","thinking":%b}}\n\n'
_SIGNATURE = _DELTA + b'signature_delta","signature":""}}\n\n'
_INPUT = _DELTA + b'input_json_delta","partial_json":%b}}\n\n'
_END = (
    b'event: message_delta\ndata: {"type":"message_delta","delta":%b,"usage":%b}\n\n'
    b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
)
_encode = msgspec.json.encode


class _Said(Struct):
    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[ToolCall] | None = None


class _Choice(Struct):
    delta: _Said | None = None
    message: _Said | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    """vLLM's name for the stop sequence."""


class _Details(Struct):
    cached_tokens: int | None = None


class _EngineUsage(Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Progress(Struct):
    total: int = 0
    cache: int = 0


class _Timings(Struct):
    cache_n: int = 0


class _Verbose(Struct):
    stopping_word: str | None = None


class _Chunk(Struct):
    choices: list[_Choice] | None = None
    usage: _EngineUsage | None = None
    timings: _Timings | None = None
    prompt_progress: _Progress | None = None
    verbose: _Verbose | None = msgspec.field(name="__verbose", default=None)
    error: Raw = NULL
    appliance: Raw = NULL
    """This program's mark where another engine goes on."""


class _Head(_Chunk):
    id: str | None = None
    model: str | None = None


class _Continued(Struct):
    after: int
    on: str
    why: str


class _Mark(Struct):
    continued: _Continued


class _Usage(Struct):
    input_tokens: int = 0
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0
    output_tokens: int = 0


class _Ended(Struct):
    stop_reason: str | None = None
    stop_sequence: str | None = None


class _Message(Struct, kw_only=True):
    id: str
    type: str = "message"
    role: str = "assistant"
    model: str
    content: Sequence[JsonObject] = ()
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: _Usage


_CHUNK = msgspec.json.Decoder(_Chunk)
_HEAD = msgspec.json.Decoder(_Head)
_THINKING: JsonObject = {"type": "thinking", "thinking": "", "signature": ""}
_SAYING: JsonObject = {"type": "text", "text": ""}


class MessageAnswer:
    """As `appliance.core.answers.translate.AnswerTranslate`, for one request.

    ``model`` is the name in the request, ``stops`` are its stop sequences.
    """

    def __init__(self, model: str, stops: Sequence[str] = ()) -> None:
        self._records = ChatRecords()
        self._id, self._model, self._stops = "", model, stops
        self._started = self._over = False
        self._index = -1  # of the block that is open, or was
        self._kind = ""  # of the block that is open: a member of `_Said`, or "" for none
        self._call: int | None = None
        """The engine's number of the call whose block is open."""
        self._calls: set[int] = set()
        self._finish = ""
        self._stop: str | None = None
        self._usage = _Usage()

    # ---- streams -----------------------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> bytes:
        return b"".join([self._event(record) for record in self._records.feed(data)])

    def end(self) -> bytes:
        if self._over:
            return b""
        begun = b"" if self._started else self._begin(_Head())
        self._over = True
        ended = _Ended(self._reason(), self._stop)
        return begun + self._close() + _END % (_encode(ended), _encode(self._usage))

    def _event(self, record: bytes | str) -> bytes:
        if self._over:
            return b""
        if record in _DONE:
            return self.end()
        try:
            chunk = _CHUNK.decode(record) if self._started else _HEAD.decode(record)
        except UNREADABLE:
            return b""
        if chunk.error != NULL:
            self._over = True
            _, body = told_error(500, bytes(record) if isinstance(record, bytes) else record.encode())
            return b"event: error\ndata: %b\n\n" % body
        said = b""
        if chunk.usage is not None or chunk.timings is not None or chunk.verbose is not None or chunk.prompt_progress:
            self._note(chunk)
            said = PING if chunk.prompt_progress is not None and self._started else b""
        if isinstance(chunk, _Head):
            said = self._begin(chunk)
        if chunk.appliance != NULL:
            said += _mark(chunk.appliance)
        for choice in chunk.choices or ():
            if choice.finish_reason is not None:
                self._finished(choice)
            if choice.delta is not None:
                said += self._say(choice.delta)
        return said

    def _begin(self, head: _Head) -> bytes:
        self._started = True
        self._name(head)
        message = _Message(id=self._id, model=self._model, usage=self._usage)
        return _START % _encode(message) + PING

    def _say(self, delta: _Said) -> bytes:
        said = b""
        if thought := delta.reasoning_content or delta.reasoning:
            said = b"" if self._kind == "thinking" else self._open("thinking", _THINKING)
            said += _THOUGHT % (self._index, _encode(thought))
        if text := delta.content or delta.refusal:
            said += b"" if self._kind == "text" else self._open("text", _SAYING)
            said += _TEXT % (self._index, _encode(text))
        for call in delta.tool_calls or ():
            said += self._piece(call)
        return said

    def _piece(self, call: ToolCall) -> bytes:
        """A piece of a call. They come one call after the other; Messages could not tell another order."""
        number, said = call.index or 0, b""
        if self._kind != "tool_use" or number != self._call:
            if number in self._calls:
                self._over = True
                return b"event: error\ndata: %b\n\n" % _error(
                    500, "the model's calls of tools came in pieces of each other"
                )
            self._calls.add(number)
            said = self._open("tool_use", self._used(call, len(self._calls), {}))
            self._call = number
        if arguments := call.function.argument_text:
            said += _INPUT % (self._index, _encode(arguments))
        return said

    def _open(self, kind: str, block: JsonObject) -> bytes:
        closed = self._close()
        self._kind = kind
        self._index += 1
        return closed + _BEGIN % (self._index, _encode(block))

    def _close(self) -> bytes:
        kind, self._kind = self._kind, ""
        if not kind:
            return b""
        signed = _SIGNATURE % self._index if kind == "thinking" else b""
        return signed + _STOP % self._index

    # ---- whole answers -----------------------------------------------------------------------------------------------

    def whole(self, content: bytes) -> tuple[int, bytes]:
        head = decoded(_HEAD, content)
        if head is None:
            return 502, _error(502, "the model's answer cannot be read")
        if head.error != NULL:
            return told_error(500, content)
        self._name(head)
        self._note(head)
        blocks: list[JsonObject] = []
        for choice in head.choices or ():
            self._finished(choice)
            said = choice.message or _Said()
            if thought := said.reasoning_content or said.reasoning:
                blocks.append({**_THINKING, "thinking": thought})
            if text := said.content or said.refusal:
                blocks.append({**_SAYING, "text": text})
            for call in said.tool_calls or ():
                self._calls.add(len(self._calls))
                text = call.function.argument_text
                given = decoded(OBJECT, text or "{}")
                if given is None:  # a call that was cut short, or words of the model's that must not get lost
                    given = JsonObject() if self._finish == "length" else JsonObject(unreadable=text)
                blocks.append(self._used(call, len(self._calls), given))
            break
        ended = self._reason()
        message = _Message(
            id=self._id,
            model=self._model,
            content=blocks,
            stop_reason=ended,
            stop_sequence=self._stop,
            usage=self._usage,
        )
        return 200, _encode(message)

    def refused(self, status: int, content: bytes) -> tuple[int, bytes]:
        return told_error(status, content)

    # ---- both --------------------------------------------------------------------------------------------------------

    def _name(self, head: _Head) -> None:
        self._id = f"msg_{(head.id or 'unnamed').removeprefix('chatcmpl-')}"
        self._model = head.model or self._model

    def _note(self, chunk: _Chunk) -> None:
        usage, progress = self._usage, chunk.prompt_progress
        if progress is not None:
            usage.cache_read_input_tokens = max(progress.cache, 0)
            usage.input_tokens = max(progress.total - progress.cache, 0)
        if chunk.verbose is not None and chunk.verbose.stopping_word in self._stops:
            self._stop = chunk.verbose.stopping_word  # a template has stop sequences of its own
        if (said := chunk.usage) is not None:
            details, timings = said.prompt_tokens_details, chunk.timings
            cached = details.cached_tokens if details is not None else timings.cache_n if timings is not None else None
            if cached is not None:
                usage.cache_read_input_tokens = max(cached, 0)
            if said.prompt_tokens is not None:
                usage.input_tokens = max(said.prompt_tokens - usage.cache_read_input_tokens, 0)
            usage.output_tokens = max(said.completion_tokens or 0, 0)

    def _finished(self, choice: _Choice) -> None:
        self._finish = choice.finish_reason or ""
        if isinstance(choice.stop_reason, str) and choice.stop_reason in self._stops:
            self._stop = choice.stop_reason

    def _reason(self) -> str:
        """Return the reason of the end. Calls go before a stop sequence: they are what the client has to do next."""
        reason = _REASONS.get(self._finish, "end_turn")
        if reason == "end_turn" and self._calls:
            reason = "tool_use"
        if reason != "end_turn":
            self._stop = None
        return "stop_sequence" if self._stop is not None else reason

    def _used(self, call: ToolCall, number: int, given: JsonObject) -> JsonObject:
        named = call.id or f"toolu_{self._id.removeprefix('msg_')}_{number}"
        return {"type": "tool_use", "id": named, "name": call.function.name or "", "input": given}


def _mark(given: Raw) -> bytes:
    """Return the comment and the record for a place where another engine goes on."""
    mark = decoded(_Mark, given)
    if mark is None:
        return b""
    told = mark.continued
    line = " ".join(f"continued on {told.on} after {told.after} tokens: {told.why}".split())
    return _MARK % (line.encode(), given)


class MessageTokens:
    """As `appliance.core.answers.translate.AnswerTranslate`, for a number of tokens, which is never a stream."""

    def feed(self, data: bytes) -> bytes:
        return data

    def end(self) -> bytes:
        return b""

    def whole(self, content: bytes) -> tuple[int, bytes]:
        counted = decoded(_Counted, content)
        if counted is None:
            return 502, _error(502, "the model's server did not say how many tokens there are")
        return 200, _encode(counted)

    def refused(self, status: int, content: bytes) -> tuple[int, bytes]:
        return told_error(status, content)


class _Counted(Struct):
    input_tokens: int


# ---- errors ----------------------------------------------------------------------------------------------------------


class _EngineError(Struct):
    code: int | str | None = None
    type: str | None = None
    n_prompt_tokens: int | None = None
    n_ctx: int | None = None


class _EngineErrorBody(Struct):
    error: _EngineError


def told_error(status: int, content: bytes) -> tuple[int, bytes]:
    """Return status and body of an engine's error in Anthropic's words. ``status`` counts where the body has none.

    Anthropic's words for a request that is too long for the context are those that clients look for, to shorten a
    conversation.
    """
    found, text = decoded(_EngineErrorBody, content), error_text(content) or "the engine gave no reason"
    error = found.error if found is not None else _EngineError()
    status = error.code if isinstance(error.code, int) and 400 <= error.code < 600 else status
    if error.type == "exceed_context_size_error":
        status = 400
        if error.n_prompt_tokens and error.n_ctx:
            text = f"prompt is too long: {error.n_prompt_tokens} tokens > {error.n_ctx} maximum"
    elif status >= 500 and fault_in(text) is not None:
        status = 400
    return status, _error(status, text)


def _error(status: int, text: str) -> bytes:
    kind = ANTHROPIC_TYPES.get(status, "api_error")
    return _encode({"type": "error", "error": {"type": kind, "message": text}})
