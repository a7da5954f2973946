"""llama-server's chat completions as answers of the Responses API: events of a stream, or one object.

Source: the types of OpenAI's own client, 3.52, and the order of its events. A piece of text becomes one event. Every
event has a number without gaps, and its place: the item and the part of it. Calls of tools stay open until the answer
ends or says more, since a server may write several of them at once. The input of a custom tool comes in one piece.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
from msgspec import Raw, Struct

from appliance.core.answers.faults import fault_in
from appliance.core.answers.translate import ChatRecords
from appliance.core.bodies.json_text import OBJECT, JsonObject
from appliance.core.lenient_json import UNREADABLE, decoded
from appliance.core.openai import NULL, TextPart, ToolCall, error_text
from appliance.features.responses.core.asking import AskedResponse, ToolName
from appliance.features.responses.core.items import hidden

DONE = ("[DONE]", b"[DONE]")
TOO_LONG = "context_length_exceeded"
"""The code by which clients know that the prompt does not fit."""
_OVERFLOW = "exceed_context_size_error"
_CODES: Mapping[object, str] = {400: "invalid_prompt", 429: "rate_limit_exceeded"}
"""OpenAI's codes of a response that failed, by the status of the error; any other is ``server_error``."""
_encode = msgspec.json.Encoder().encode


class _Said(Struct):
    """A message, or in a stream the delta of one."""

    content: str | list[TextPart] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[ToolCall] | None = None


class _Logprobs(Struct):
    content: Raw = NULL


class _Choice(Struct):
    delta: _Said | None = None
    message: _Said | None = None
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None


class _Details(Struct):
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class _Usage(Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None


class _Cached(Struct):
    """The part of llama-server's timings that counts here."""

    cache_n: int = 0


class _Error(Struct):
    type: str | None = None
    code: int | str | None = None


class _Input(Struct):
    """The arguments of a custom tool's call."""

    input: str


class _Chunk(Struct):
    """A record of a stream, or a whole answer."""

    choices: list[_Choice] | None = None
    model: str | None = None
    usage: Raw = NULL
    timings: Raw = NULL
    prompt_progress: Raw = NULL
    error: Raw = NULL
    appliance: Raw = NULL


_CHUNK = msgspec.json.Decoder(_Chunk)


class _Kind(Struct, frozen=True):
    """A kind of output: the beginning of its items' ids, its events, and the member that has its whole text.

    ``place`` is the number of the part within the item, ``part`` the type of that part; "" where it has no parts.
    """

    prefix: str
    event: bytes
    member: bytes
    place: bytes = b""
    parts: bytes = b""
    part: str = ""


_AT, _PART = b'"content_index":0,', b"response.content_part"
_TEXT = _Kind("msg", b"response.output_text", b"text", _AT, _PART, "output_text")
_REFUSAL = _Kind("msg", b"response.refusal", b"refusal", _AT, _PART, "refusal")
_REASONING = _Kind("rs", b"response.reasoning_text", b"text", _AT, _PART, "reasoning_text")
_SUMMARY_TEXT, _SUMMARY_PART = b"response.reasoning_summary_text", b"response.reasoning_summary_part"
_SUMMARY = _Kind("rs", _SUMMARY_TEXT, b"text", b'"summary_index":0,', _SUMMARY_PART, "summary_text")
_FUNCTION = _Kind("fc", b"response.function_call_arguments", b"arguments")
_CUSTOM = _Kind("ctc", b"response.custom_tool_call_input", b"input")


class _Item:
    """An output item while it grows. ``call`` has the members of a call that do not grow."""

    def __init__(self, kind: _Kind, at: int, item_id: str, call: JsonObject | None = None) -> None:
        self.kind = kind
        self.at = at
        self.id = item_id
        self.call = call
        self.pieces: list[str] = []
        self.logprobs: list[bytes] = []
        self.place = b'"item_id":%b,"output_index":%d,%b' % (_encode(item_id), at, kind.place)
        name, place = b"%b.delta" % kind.event, self.place.replace(b"%", b"%%")
        # A stream has one for each token, so all but the number, the text and more members is written once.
        self.delta = b'event: %b\ndata: {"type":"%b","sequence_number":%%d,%b"delta":%%b%%b}\n\n' % (name, name, place)

    def text(self) -> str:
        """Return all of it; for a custom tool its one argument, or else whatever the model wrote."""
        text = "".join(self.pieces)
        found = decoded(_Input, text) if self.kind is _CUSTOM else None
        return found.input if found is not None else text

    def part(self, text: str) -> dict[str, object]:
        if self.kind is _TEXT:
            return {"type": "output_text", "text": text, "annotations": [], "logprobs": Raw(self.probabilities())}
        return {"type": self.kind.part, self.kind.member.decode(): text}

    def probabilities(self) -> bytes:
        return b"[%b]" % b",".join(self.logprobs)


class ResponseAnswer:
    """The answer to one request; see `AnswerTranslate`.

    ``ident`` makes the ids of the response and its items, ``now`` returns seconds since 1970. ``keep`` gets each item
    that is whole, with its id.
    """

    def __init__(
        self,
        asked: AskedResponse,
        ident: str,
        now: Callable[[], float],
        keep: Callable[[str, bytes], None] | None = None,
    ) -> None:
        self._asked = asked
        self._keep = keep
        self._ident = ident
        self._now = now
        self._created = int(now())
        self._model = asked.model
        self._records = ChatRecords()
        self._number = 0
        self._begun = self._over = False
        self._between = True
        self._at = 0
        self._open: _Item | None = None
        self._calls: dict[int, _Item] = {}
        self._output: dict[int, Raw] = {}
        self._thought = self._written = 0
        self._reason = ""
        self._usage, self._timings = NULL, NULL

    # ---- AnswerTranslate ---------------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> bytes:
        """Return the events that these bytes of a chat stream complete. Raises RecordTooLong."""
        comment = b""
        if self._between and data.startswith(b":"):  # the program's own, of an answer that goes on elsewhere
            comment = data[: data.find(b"\n\n") + 2] if b"\n\n" in data else b""
        self._between = data.endswith(b"\n\n")
        return comment + b"".join([self._on_record(record) for record in self._records.feed(data)])

    def end(self) -> bytes:
        """Return the last events of a stream that has ended in good order; none behind an error."""
        if self._over:
            return b""
        return self._begin() + self._finish()

    def whole(self, content: bytes) -> tuple[int, bytes]:
        """Return status and body for a chat completion."""
        try:
            chunk = _CHUNK.decode(content)
        except UNREADABLE:
            return self.refused(502, b"the model's answer cannot be read")
        if chunk.error != NULL:
            return self.refused(500, content)
        self._model = self._model or chunk.model or ""
        self._take(chunk)
        self._finish()
        return 200, self._response(self._state, b"" if chunk.timings == NULL else b',"timings":' + chunk.timings)

    def refused(self, status: int, content: bytes) -> tuple[int, bytes]:
        """Return status and body for an engine's error. Clients know by a code that a prompt is too long."""
        found = decoded(OBJECT, content)
        given = found.get("error") if found is not None else None
        told: JsonObject = {"message": error_text(content) or "the engine gave no reason", "code": None}
        told["type"] = "server_error" if status >= 500 else "invalid_request_error"
        told = given if isinstance(given, dict) else told
        if told.get("type") == _OVERFLOW:
            status, told = 400, {**told, "type": "invalid_request_error", "code": TOO_LONG, "param": "input"}
        elif status >= 500 and fault_in(error_text(content)) is not None:
            status, told = 400, {**told, "type": "invalid_request_error", "code": None}
        return status, _encode({"error": {"param": None, **told}})

    # ---- records -----------------------------------------------------------------------------------------------------

    def _on_record(self, data: bytes | str) -> bytes:
        if self._over or data in DONE:
            return b""
        try:
            chunk = _CHUNK.decode(data)
        except UNREADABLE:
            return b""
        begun = b""
        if not self._begun:
            self._model = self._model or chunk.model or ""
            begun = self._begin()
        if chunk.error != NULL:
            return begun + self._fail(chunk.error)
        if chunk.prompt_progress != NULL:
            begun += self._progress(b"prompt_progress", chunk.prompt_progress)
        if chunk.appliance != NULL:
            begun += self._progress(b"appliance", chunk.appliance)
        return begun + self._take(chunk)

    def _progress(self, name: bytes, told: Raw) -> bytes:
        progress = b'"%b":%b,"response":%b' % (name, told, self._response("in_progress"))
        return self._event(b"response.in_progress", progress)

    def _take(self, chunk: _Chunk) -> bytes:
        """Return the events for what a chunk says, or for a whole answer."""
        if chunk.usage != NULL:
            self._usage = chunk.usage
        extra = b""
        if chunk.timings != NULL:
            self._timings, extra = chunk.timings, b',"timings":' + chunk.timings
        if not chunk.choices:
            return b""
        choice = chunk.choices[0]
        said, events = choice.delta or choice.message or _Said(), b""
        if thought := said.reasoning_content or said.reasoning:
            self._thought += len(thought)
            events = self._say(_SUMMARY if self._asked.summarises else _REASONING, thought, extra)
        if content := said.content:
            text = content if isinstance(content, str) else "".join([part.text or "" for part in content])
            found = choice.logprobs.content if choice.logprobs is not None else NULL
            events += self._say(_TEXT, text, extra, b"" if found == NULL else bytes(found).strip()[1:-1])
        if said.refusal:
            events += self._say(_REFUSAL, said.refusal, extra)
        for number, call in enumerate(said.tool_calls or ()):
            events += self._on_call(call, number if call.index is None else call.index, extra)
        self._reason = choice.finish_reason or self._reason  # last: it is not the reason why an item before ended
        return events

    def _say(self, kind: _Kind, text: str, extra: bytes, probabilities: bytes = b"") -> bytes:
        self._written += len(text)
        item, before = self._open, b""
        if item is None or item.kind is not kind:
            before = self._close()
            item = self._open = self._item(kind)
            before += self._added(item)
        item.pieces.append(text)
        if kind is _TEXT:
            if probabilities:
                item.logprobs.append(probabilities)
            extra = b',"logprobs":[%b]%b' % (probabilities, extra)
        return before + self._grown(item, text, extra)

    def _on_call(self, piece: ToolCall, index: int, extra: bytes) -> bytes:
        events, name, text = b"", piece.function.name or "", piece.function.argument_text
        if (item := self._calls.get(index)) is None:
            events = self._close() if self._open is not None else b""
            tool = self._asked.tools.get(name) or ToolName(name)
            told: JsonObject = {"call_id": piece.id or f"call_{self._ident}_{self._at}", "name": tool.name}
            told |= {"namespace": tool.namespace} if tool.namespace else {}
            item = self._calls[index] = self._item(_CUSTOM if tool.custom else _FUNCTION, told)
            events += self._added(item)
        self._written += len(text)
        item.pieces.append(text)
        # The input of a custom tool is known when its arguments are whole.
        return events + self._grown(item, text, extra) if text and item.kind is _FUNCTION else events

    # ---- items -------------------------------------------------------------------------------------------------------

    def _item(self, kind: _Kind, call: JsonObject | None = None) -> _Item:
        at = self._at
        self._at += 1
        return _Item(kind, at, f"{kind.prefix}_{self._ident}_{at}", call)

    def _added(self, item: _Item) -> bytes:
        kind, events = item.kind, self._item_event(b"response.output_item.added", item, None, "in_progress")
        if kind.part:
            events += self._event(b"%b.added" % kind.parts, b'%b"part":%b' % (item.place, _encode(item.part(""))))
        return events

    def _grown(self, item: _Item, text: str, extra: bytes = b"") -> bytes:
        number, self._number = self._number, self._number + 1
        return item.delta % (number, _encode(text), extra)

    def _close(self) -> bytes:
        """Return the events that end every open item."""
        events = b""
        if self._open is not None:
            events, self._open = self._done(self._open), None
        for item in self._calls.values():
            events += self._done(item)
        self._calls.clear()
        return events

    def _done(self, item: _Item) -> bytes:
        kind, text = item.kind, item.text()
        events = self._grown(item, text) if kind is _CUSTOM and text else b""
        whole = b'%b"%b":%b' % (item.place, kind.member, _encode(text))
        if kind is _TEXT:
            whole += b',"logprobs":' + item.probabilities()
        events += self._event(b"%b.done" % kind.event, whole)
        if kind.part:
            events += self._event(b"%b.done" % kind.parts, b'%b"part":%b' % (item.place, _encode(item.part(text))))
        status = "incomplete" if self._reason == "length" else "completed"
        return events + self._item_event(b"response.output_item.done", item, text, status, keep=True)

    def _item_event(self, name: bytes, item: _Item, text: str | None, status: str, *, keep: bool = False) -> bytes:
        told: dict[str, object] = {"id": item.id, "type": "message", "status": status}
        parts = [] if text is None else [item.part(text)]
        match item.kind.prefix:
            case "msg":
                told |= {"role": "assistant", "content": parts}
            case "rs":
                summary = item.kind is _SUMMARY
                told |= {"type": "reasoning", "summary": parts if summary else []}
                told |= {} if summary else {"content": parts}
                told |= {"encrypted_content": hidden(text or "")} if self._asked.hides else {}
            case _:
                kind = "function_call" if item.kind is _FUNCTION else "custom_tool_call"
                told |= {"type": kind, **(item.call or {}), item.kind.member.decode(): text or ""}
        shown = _encode(told)
        if keep:
            self._output[item.at] = Raw(shown)
            if self._keep is not None:
                self._keep(item.id, shown)
        return self._event(name, b'"output_index":%d,"item":%b' % (item.at, shown))

    # ---- the response ------------------------------------------------------------------------------------------------

    def _event(self, name: bytes, members: bytes) -> bytes:
        number, self._number = self._number, self._number + 1
        return b'event: %b\ndata: {"type":"%b","sequence_number":%d,%b}\n\n' % (name, name, number, members)

    def _begin(self) -> bytes:
        """The events that every stream begins with, once."""
        if self._begun:
            return b""
        self._begun = True
        response = b'"response":' + self._response("in_progress")
        return self._event(b"response.created", response) + self._event(b"response.in_progress", response)

    def _finish(self) -> bytes:
        events, self._over = self._close(), True
        extra = b"" if self._timings == NULL else b',"timings":' + self._timings
        ended = b'"response":%b%b' % (self._response(self._state), extra)
        return events + self._event(b"response.%b" % self._state.encode(), ended)

    def _fail(self, error: Raw) -> bytes:
        self._over = True
        found = decoded(_Error, error) or _Error()
        code = TOO_LONG if found.type == _OVERFLOW else _CODES.get(found.code, "server_error")
        response = self._response("failed", error={"code": code, "message": error_text(error)})
        return self._event(b"response.failed", b'"response":' + response)

    @property
    def _state(self) -> str:
        return "incomplete" if self._reason in ("length", "content_filter") else "completed"

    def _response(self, status: str, more: bytes = b"", *, error: JsonObject | None = None) -> bytes:
        """``more`` are further members, each behind a comma."""
        ended = status in ("completed", "incomplete")
        reason = "max_output_tokens" if self._reason == "length" else self._reason
        told: dict[str, object] = {
            "id": f"resp_{self._ident}",
            "object": "response",
            "created_at": self._created,
            "completed_at": int(self._now()) if status == "completed" else None,
            "status": status,
            "error": error,
            "incomplete_details": {"reason": reason} if status == "incomplete" else None,
            "model": self._model,
            "output": [] if status == "in_progress" else [item for _, item in sorted(self._output.items())],
            "usage": self._cost() if ended else None,
            **self._asked.echo,
        }
        return _encode(told)[:-1] + more + b"}"

    def _cost(self) -> JsonObject:
        """The tokens. No engine counts those of the reasoning, so they are its share of the characters."""
        usage, timings = decoded(_Usage, self._usage) or _Usage(), decoded(_Cached, self._timings) or _Cached()
        prompt, written = max(0, usage.prompt_tokens or 0), max(0, usage.completion_tokens or 0)
        read, thought = usage.prompt_tokens_details, usage.completion_tokens_details
        cached = read.cached_tokens if read is not None and read.cached_tokens is not None else timings.cache_n
        counted = thought.reasoning_tokens if thought is not None else None
        share = round(written * self._thought / self._written) if self._written else 0
        return {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": max(0, cached), "cache_write_tokens": 0},
            "output_tokens": written,
            "output_tokens_details": {"reasoning_tokens": share if counted is None else counted},
            "total_tokens": prompt + written,
        }


class ResponseTokens(ResponseAnswer):
    """The answer to the question how many tokens a request has. It is never a stream."""

    def whole(self, content: bytes) -> tuple[int, bytes]:
        """Return it as it is: llama-server names it as OpenAI does."""
        return 200, content
