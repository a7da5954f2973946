"""The beginning that a broken stream has delivered, and the request that asks another engine to continue it.

llama-server (b11434) continues an assistant's message that stands last. If the request says so explicitly
(``continue_final_message``), it answers with the rest alone. If it finds out by itself, b11434 repeats the beginning in
its first delta, and b11549 does not: see `features.continuation.core.splice`.
"""

from __future__ import annotations

import re

import msgspec
from msgspec import Struct

from appliance.core.answers.families import Family
from appliance.core.answers.going_on import Refusal
from appliance.core.bodies.json_text import (
    JSON,
    OBJECT,
    JsonEdit,
    JsonObject,
    Path,
    PathStep,
    apply_edits,
    object_of,
    objects_of,
)
from appliance.core.bodies.sse import Decoder, RecordTooLong
from appliance.core.lenient_json import decoded

MAX_TEXT = 1 << 20
"""Characters of text and reasoning; a longer answer is not continued."""
DONE = "[DONE]"

_PLAIN = re.compile(rb"(?:event: (?P<name>[^\n]*)\n)?data: (?P<data>[^\n]*)")
_BLOCKS = ("text", "thinking")
_SEVERAL = "it is one of several answers"
_CALLS = "a tool call had begun"
_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict")
_COUNTS = ("n", "n_cmpl", "best_of")
_PROBABILITIES = ("logprobs", "top_logprobs", "n_probs")
_FORCED = ("continue_final_message", "add_generation_prompt", "generation_prompt")
_THOUGHT_MARKS = ("<think", "[THINK]", "<|channel|>", "<seed:think>", "<|START_THINKING|>")
_APPENDED = PathStep(b"-1", -1)


class Partial(Struct, frozen=True, kw_only=True):
    """The beginning of an answer. ``text_pieces`` and ``reasoning_pieces`` count records: at least so many tokens."""

    family: Family
    text: str
    reasoning: str
    text_pieces: int
    reasoning_pieces: int
    head: JsonObject
    """Facts about the whole answer in its records: id, created, model; {} if they have none."""
    begun: bool
    """True after the first record."""
    native: bool
    """llama.cpp's own format."""
    blocks: dict[int, str]
    """Anthropic: the blocks that have begun and not ended, with their types."""
    next_block: int
    items: dict[str, str]
    """Responses: the id of the item of each type."""
    finished: bool
    """True if only ``closing`` is missing."""
    closing: bytes

    @property
    def tokens(self) -> int:
        return self.text_pieces + self.reasoning_pieces


class SoFar:
    """Reads a stream piece by piece; no input makes it raise."""

    def __init__(self, family: Family) -> None:
        self._family = family
        self._decoder = Decoder()
        self._between = True  # records: the last piece ended where one does
        self._why = ""
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._size = 0
        self._head: JsonObject = {}
        self._begun = self._native = self._finished = self._done = self._ending = False
        self._blocks: dict[int, str] = {}
        self._next_block = 0
        self._items: dict[str, str] = {}

    def feed(self, piece: bytes) -> None:
        if self._between and piece.endswith(b"\n\n") and b"\r" not in piece:  # whole records, one line each
            for record in piece.split(b"\n\n"):
                if plain := _PLAIN.fullmatch(record):
                    self._on_record(plain["data"], plain["name"] == b"error")
                elif record:
                    self._decode(record + b"\n\n")
        else:
            self._decode(piece)
            self._between = piece.endswith(b"\n\n")

    def _decode(self, piece: bytes) -> None:
        if self._why:
            return
        try:
            events = self._decoder.feed(piece)
        except RecordTooLong as error:
            self._why = str(error)
            return
        for event in events:
            self._on_record(event.data.encode(), event.name == "error")

    def _on_record(self, data: bytes, is_error: bool) -> None:
        if self._why:
            return
        if data.strip() == DONE.encode():
            self._done = True
            return
        if (record := decoded(OBJECT, data)) is None:
            self._why = "its stream has a record that is not a JSON object"
            return
        self._begun = True
        if is_error or record.get("error") is not None:
            self._why = "the engine itself reported an error"
        elif self._family is Family.MESSAGES:
            self._message(record)
        elif self._family is Family.RESPONSES:
            self._response(record)
        elif "choices" in record:
            self._choices(record)
        else:
            self._own(record)
        if self._size > MAX_TEXT:
            self._why = f"it has more than {MAX_TEXT >> 20} MiB of text"
            self._text.clear()
            self._reasoning.clear()

    def _append_text(self, said: JSON, into: list[str]) -> None:
        if isinstance(said, str) and said:
            into.append(said)
            self._size += len(said)

    def _choices(self, record: JsonObject) -> None:
        if not self._head:
            self._head = {name: record[name] for name in ("id", "created", "model") if name in record}
        for choice in objects_of(record.get("choices")):
            delta = object_of(choice.get("delta"))
            if choice.get("index"):
                self._why = _SEVERAL
            if delta.get("tool_calls"):
                self._why = _CALLS
            self._append_text(delta.get("reasoning_content") or delta.get("reasoning"), self._reasoning)
            self._append_text(delta.get("content", choice.get("text")), self._text)
            self._finished = self._finished or choice.get("finish_reason") is not None

    def _own(self, record: JsonObject) -> None:
        self._native = True
        if record.get("index"):
            self._why = _SEVERAL
        self._append_text(record.get("content"), self._text)
        self._finished = self._finished or record.get("stop") is True

    def _message(self, record: JsonObject) -> None:
        index = record.get("index")
        index = index if isinstance(index, int) else 0
        match record.get("type"):
            case "message_start":
                self._head = self._head or object_of(record.get("message"))
            case "content_block_start":
                block = object_of(record.get("content_block"))
                kind = block.get("type")
                if kind not in _BLOCKS:
                    self._why = _CALLS if kind == "tool_use" else "it has more than text"
                    return
                self._blocks[index] = str(kind)
                self._next_block = max(self._next_block, index + 1)
                self._append_text(block.get(str(kind)), self._text if kind == "text" else self._reasoning)
            case "content_block_delta":
                delta = object_of(record.get("delta"))
                self._append_text(delta.get("text"), self._text)
                self._append_text(delta.get("thinking"), self._reasoning)
            case "content_block_stop":
                self._blocks.pop(index, None)
            case "message_delta":
                self._finished = True
            case "message_stop":
                self._done = True
            case _:
                pass  # a ping

    def _response(self, record: JsonObject) -> None:
        match record.get("type"):
            case "response.created" | "response.in_progress":
                self._head = self._head or object_of(record.get("response"))
            case "response.output_item.added":
                item = object_of(record.get("item"))
                kind = item.get("type")
                if kind not in ("message", "reasoning"):
                    self._why = _CALLS
                self._items[str(kind)] = str(item.get("id", ""))
            case "response.output_text.delta":
                self._append_text(record.get("delta"), self._text)
            case "response.reasoning_text.delta":
                self._append_text(record.get("delta"), self._reasoning)
            case "response.output_text.done" | "response.output_item.done":
                self._ending = True
            case "response.completed" | "response.incomplete" | "response.failed":
                self._finished = self._done = True
            case _:
                pass

    def partial(self) -> Partial | Refusal:
        """Return the content read so far."""
        if self._why:
            return Refusal(self._why)
        if self._ending and not self._finished:
            return Refusal("only its last records were missing")
        return Partial(
            family=self._family,
            text="".join(self._text),
            reasoning="".join(self._reasoning),
            text_pieces=len(self._text),
            reasoning_pieces=len(self._reasoning),
            head=self._head,
            begun=self._begun,
            native=self._native,
            blocks=dict(self._blocks),
            next_block=self._next_block,
            items=dict(self._items),
            finished=self._finished or self._done,
            closing=b"" if self._done or self._native else _closing(self._family),
        )


def _closing(family: Family) -> bytes:
    match family:
        case Family.CHAT | Family.COMPLETION:
            return b"data: [DONE]\n\n"
        case Family.MESSAGES:
            return b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
        case Family.RESPONSES:
            return b""


def continued_body(body: bytes, partial: Partial) -> bytes | Refusal:
    """Return the same request, now asking for the rest; unchanged members keep their bytes."""
    if (asked := decoded(OBJECT, body)) is None:
        return Refusal("the request is not a JSON object")
    if not partial.tokens:  # nothing was said that another engine would have to take up
        return body
    if why := _obstacle(asked, partial):
        return Refusal(why)
    edits = _prefill(asked, partial)
    if isinstance(edits, Refusal):
        return edits
    for name in _LIMITS:
        limit = asked.get(name)
        if isinstance(limit, int) and not isinstance(limit, bool) and limit > 0:
            edits.append(_edit(max(limit - partial.tokens, 1), name))
    return apply_edits(body, edits)


def _obstacle(asked: JsonObject, partial: Partial) -> str:
    """Return what in the request forbids a continuation; "" if nothing does."""
    for name in _COUNTS:
        count = asked.get(name)
        if isinstance(count, int) and count > 1:
            return f"several answers were requested ('{name}')"
    for name in _PROBABILITIES:
        if asked.get(name):
            return f"'{name}' was requested"
    formats = {
        "response_format": asked.get("response_format"),
        "text.format": object_of(asked.get("text")).get("format"),
        "output_config.format": object_of(asked.get("output_config")).get("format"),
    }
    for name, wanted in formats.items():
        if wanted is not None and object_of(wanted).get("type") not in (None, "text"):
            return f"its form is prescribed ('{name}')"
    for name in ("grammar", "json_schema"):
        if asked.get(name):
            return f"its form is prescribed ('{name}')"
    choice = asked.get("tool_choice")
    word = choice.get("type") if isinstance(choice, dict) else choice
    if word not in (None, "auto", "none"):
        return "a tool call was required ('tool_choice')"
    for name in _FORCED:
        if asked.get(name) is not None:
            return f"the request itself continues a text ('{name}')"
    if asked.get("echo"):
        return "'echo' was requested"
    if partial.family is Family.CHAT and partial.text.lstrip().startswith(_THOUGHT_MARKS):
        return "its text includes the reasoning"
    return ""


def _prefill(asked: JsonObject, partial: Partial) -> list[JsonEdit] | Refusal:
    text, reasoning = partial.text, partial.reasoning
    match partial.family:
        case Family.COMPLETION:
            return _longer_prompt(asked.get("prompt"), text)
        case Family.CHAT:
            message: JsonObject = {"role": "assistant", "content": text}
            if reasoning:
                message["reasoning_content"] = reasoning
            return _appended("messages", asked, [message], asks=True)
        case Family.MESSAGES:
            content: list[JSON] = []
            if reasoning:
                content.append({"type": "thinking", "thinking": reasoning, "signature": ""})
            if text:
                content.append({"type": "text", "text": text})
            return _appended("messages", asked, [{"role": "assistant", "content": content}], asks=False)
        case Family.RESPONSES:
            items: list[JsonObject] = []
            if reasoning:
                thought: JsonObject = {"type": "reasoning_text", "text": reasoning}
                items.append({"type": "reasoning", "summary": [], "content": [thought]})
            if text:
                said: JsonObject = {"type": "output_text", "text": text}
                items.append({"type": "message", "role": "assistant", "content": [said]})
            return _appended("input", asked, items, asks=True)


def _appended(name: str, asked: JsonObject, added: list[JsonObject], *, asks: bool) -> list[JsonEdit] | Refusal:
    """``asks``: the route knows the members that ask to continue the last message (Anthropic's always does so)."""
    edits: list[JsonEdit] = []
    given = asked.get(name)
    if isinstance(given, str):
        edits.append(_edit([{"role": "user", "content": given}], name))
    elif not isinstance(given, list) or not given:
        return Refusal(f"the request has no '{name}' to continue")
    else:
        last = object_of(given[-1])
        if last.get("role") == "assistant" or last.get("type") in ("reasoning", "function_call"):
            return Refusal("the request itself continues a text of the assistant")
    edits += [JsonEdit(Path((PathStep(name.encode()), _APPENDED)), msgspec.json.encode(one)) for one in added]
    if asks:
        edits += [_edit(True, "continue_final_message"), _edit(False, "add_generation_prompt")]
    return edits


def _longer_prompt(prompt: JSON, text: str) -> list[JsonEdit] | Refusal:
    """llama-server takes a text, tokens, texts and tokens mixed, a text with media, and a list of all of these."""
    if isinstance(prompt, str):
        return [_edit(prompt + text, "prompt")]
    if isinstance(prompt, dict) and isinstance(inner := prompt.get("prompt_string"), str):
        return [_edit(inner + text, "prompt", "prompt_string")]
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(only := prompt[0], str):
        return [_edit([only + text], "prompt")]
    if isinstance(prompt, list) and any(isinstance(part, int) for part in prompt):
        return [JsonEdit(Path((PathStep(b"prompt"), _APPENDED)), msgspec.json.encode(text))]
    return Refusal("its prompt is not a single text")


def _edit(value: object, *names: str) -> JsonEdit:
    return JsonEdit(Path(tuple(PathStep(name.encode()) for name in names)), msgspec.json.encode(value))
