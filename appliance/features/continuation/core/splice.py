"""The second half of a stream, from another engine, as its client must see it: as one answer.

Facts about the whole answer (id, model, the role, the beginnings of blocks and items) came with the first half and are
not repeated; counts cover both halves. A record marks the place, in a form that the official clients ignore.
"""

from __future__ import annotations

from typing import TypeGuard

import msgspec

from appliance.core.answers.families import Family
from appliance.core.answers.going_on import Seam
from appliance.core.bodies.json_text import JSON, OBJECT, JsonObject, object_of, objects_of
from appliance.core.bodies.sse import Decoder, RecordTooLong, SseEvent, encode
from appliance.core.lenient_json import decoded
from appliance.features.continuation.core.beginning import DONE, Partial

_SURE = 16
"""From so many characters on, a first delta that begins with all earlier text can only repeat it."""


_MOST_HELD = 64
"""Number of block beginnings that are kept; an answer has a handful."""


class Splicer:
    """Turns the second stream into the continuation of the first. No input makes it raise; ``broken`` says that it is
    not a stream.
    """

    def __init__(self, first: Partial, seam: Seam) -> None:
        self.broken = False
        self._done = False
        self._first = first
        self._seam = seam
        self._decoder = Decoder()
        self._heard: set[str] = set()
        self._blocks: dict[int, int] = {}
        self._open = dict(first.blocks)
        self._held: dict[int, JsonObject] = {}  # beginnings of blocks that may only repeat what was said
        self._next_block = first.next_block
        self._items: dict[str, str] = {}

    def begin(self) -> bytes:
        """The mark, as a comment and as a record."""
        first, seam = self._first, self._seam
        told: JsonObject = {"after": first.tokens, "from": seam.origin, "on": seam.on, "why": seam.why}
        mark: JsonObject = {"appliance": {"continued": told}}
        line = " ".join(f"continued on {seam.on} after {first.tokens} tokens: {seam.why}".split())
        match first.family:
            case Family.CHAT:
                choice: JsonObject = {"index": 0, "delta": {}, "finish_reason": None}
                event = _event({**first.head, "object": "chat.completion.chunk", "choices": [choice], **mark})
            case Family.COMPLETION if first.native:
                said: JsonObject = {"index": 0, "content": "", "tokens": [], "stop": False, "id_slot": -1}
                event = _event({**said, "tokens_predicted": first.tokens, "tokens_evaluated": 0, **mark})
            case Family.COMPLETION:
                choice = {"text": "", "index": 0, "logprobs": None, "finish_reason": None}
                event = _event({**first.head, "object": "text_completion", "choices": [choice], **mark})
            case Family.MESSAGES:
                event = _event({"type": "ping", **mark}, named=True)
            case Family.RESPONSES:
                event = _event({"type": "response.in_progress", "response": first.head, **mark}, named=True)
        return f": {line}\n\n".encode() + event

    def feed(self, piece: bytes) -> bytes:
        """Return the client's bytes for these."""
        if self.broken:
            return b""
        try:
            events = self._decoder.feed(piece)
        except RecordTooLong:
            self.broken = True
            return b""
        return b"".join(self._spliced(event) for event in events)

    def _spliced(self, event: SseEvent) -> bytes:
        if self._done:
            return b""  # a stream ends once
        if event.data.strip() == DONE:
            self._done = True
            return encode(event)
        if (record := decoded(OBJECT, event.data)) is None:
            return encode(event)
        if record.get("error") is not None or event.name == "error":
            return encode(event)
        self._retime(record)
        match self._first.family:
            case Family.CHAT | Family.COMPLETION if "choices" in record:
                return self._chunk(record)
            case Family.CHAT | Family.COMPLETION:
                return self._own(record)
            case Family.MESSAGES:
                return self._message(record)
            case Family.RESPONSES:
                return self._response(record)

    # ---- what all have -----------------------------------------------------------------------------------------------

    # Some engines begin a continuation with the text so far, others with what follows it, and nothing in the stream
    # says which. Only the first delta of each kind can tell, and only if it begins with all of the earlier text. That
    # may still be chance: after "ha" a model may well say "ha" again, and dropping it would lose text. So a delta is
    # taken for a repetition only if chance is out of the question (`_SURE` characters that came in several pieces), or
    # in Anthropic's messages, where a request cannot ask for the rest alone. A prompt completion never repeats.
    # Reasoning that equals the earlier one exactly is a repetition if the text had already begun: it had ended before.
    def _fresh(self, kind: str, said: str) -> str:
        """Return a delta without the text that came before; see `continuation` for the engines that repeat it."""
        first = self._first
        is_text = kind == "text"
        before, pieces = (first.text, first.text_pieces) if is_text else (first.reasoning, first.reasoning_pieces)
        if not said or kind in self._heard or not before or not said.startswith(before):
            if said:
                self._heard.add(kind)
            return said
        self._heard.add(kind)
        echoed = pieces > 1 and len(before.strip()) >= _SURE
        if first.family is Family.MESSAGES or (first.family is not Family.COMPLETION and echoed):
            return said[len(before) :]
        return "" if not is_text and first.text and said == before else said

    def _retime(self, record: JsonObject) -> None:
        """Change llama-server's ``timings`` to cover both halves; for the prompt only the second engine's count."""
        timings = record.get("timings")
        if not isinstance(timings, dict):
            return
        count, took = timings.get("predicted_n"), timings.get("predicted_ms")
        if _is_count(count):
            timings["predicted_n"] = count + self._first.tokens
            if isinstance(took, int | float):
                took += self._seam.milliseconds
                timings["predicted_ms"] = took
                timings["predicted_per_token_ms"] = took / max(count + self._first.tokens, 1)
                timings["predicted_per_second"] = 1000 * (count + self._first.tokens) / took if took > 0 else 0.0
        self._less(timings, "prompt_n")

    def _more(self, counts: JsonObject, name: str) -> None:
        if _is_count(count := counts.get(name)):
            counts[name] = count + self._first.tokens

    def _less(self, counts: JsonObject, name: str) -> None:
        """Correct the counts: the second engine read the first half as part of its prompt."""
        if _is_count(count := counts.get(name)):
            counts[name] = max(count - self._first.tokens, 0)

    # ---- OpenAI's chat and completions, and llama.cpp's own ----------------------------------------------------------

    def _chunk(self, record: JsonObject) -> bytes:
        choices = objects_of(record.get("choices"))
        says = not choices or any(name in record for name in ("usage", "timings", "prompt_progress"))
        for choice in choices:
            if isinstance(text := choice.get("text"), str):
                choice["text"] = self._fresh("text", text)
            delta = object_of(choice.get("delta"))
            if delta.pop("role", None) is not None and delta.get("content") is None:
                delta.pop("content", None)
            for name in ("content", "reasoning_content", "reasoning"):
                if isinstance(said := delta.get(name), str):
                    delta[name] = self._fresh("text" if name == "content" else "reasoning", said)
                    if not delta[name]:
                        del delta[name]
            says = says or bool(delta or choice.get("text")) or choice.get("finish_reason") is not None
        usage = object_of(record.get("usage"))
        self._more(usage, "completion_tokens")
        self._less(usage, "prompt_tokens")
        return _event({**record, **self._first.head}) if says else b""

    def _own(self, record: JsonObject) -> bytes:
        if isinstance(said := record.get("content"), str):
            record["content"] = self._fresh("text", said)
        self._more(record, "tokens_predicted")
        self._less(record, "tokens_evaluated")
        if isinstance(prompt := record.get("prompt"), str):
            record["prompt"] = prompt.removesuffix(self._first.text)
        return _event(record)

    # ---- Anthropic ---------------------------------------------------------------------------------------------------

    def _message(self, record: JsonObject) -> bytes:
        match record.get("type"):
            case "message_start":
                return b"" if self._first.begun else _event(record, named=True)
            case "content_block_start":
                return self._begin_block(record)
            case "content_block_delta":
                delta = object_of(record.get("delta"))
                for name, kind in (("text", "text"), ("thinking", "reasoning")):
                    if isinstance(said := delta.get(name), str):
                        delta[name] = said = self._fresh(kind, said)
                        if not said:
                            return b""
                        return self._release(_index(record)) + self._of_block(record)
                return self._of_block(record)
            case "content_block_stop":
                stopped = self._of_block(record)
                self._open.pop(self._blocks.get(_index(record), -1), None)
                return stopped
            case "message_delta":
                self._more(object_of(record.get("usage")), "output_tokens")
                return self._stop_all() + _event(record, named=True)
            case _:
                return _event(record, named=True)

    # Each engine numbers its content blocks from 0, and the client must see one row of numbers. `_blocks` maps the
    # second engine's numbers to the client's, `_open` has the client's blocks that have not stopped. A new text block
    # may turn out to hold only the repetition of the first half. Its beginning is therefore held until it says
    # something new, and a block that says nothing new never reaches the client.
    def _begin_block(self, record: JsonObject) -> bytes:
        """A block of a kind that is open continues that one; any other one comes after all existing ones."""
        kind, given = str(object_of(record.get("content_block")).get("type")), _index(record)
        for index, open_kind in self._open.items():
            if open_kind == kind and index not in self._blocks.values():
                self._blocks[given] = index
                return b""
        self._held[given] = record
        self.broken = self.broken or len(self._held) > _MOST_HELD
        return b"" if kind in ("text", "thinking") else self._release(given)

    def _release(self, given: int) -> bytes:
        record = self._held.pop(given, None)
        if record is None:
            return b""
        self._blocks[given] = self._next_block
        self._open[self._next_block] = str(object_of(record.get("content_block")).get("type"))
        self._next_block += 1
        return self._of_block(record)

    def _of_block(self, record: JsonObject) -> bytes:
        """Return the record with the index that its block has for the client; nothing for a block that it never saw."""
        given = _index(record)
        kept = given in self._first.blocks and given not in self._held
        index = self._blocks.get(given, given if kept else None)
        if index is None or index not in self._open:
            return b""
        self._blocks[given] = index
        return _event({**record, "index": index}, named=True)

    def _stop_all(self) -> bytes:
        stops: list[JsonObject] = [{"type": "content_block_stop", "index": index} for index in sorted(self._open)]
        self._open.clear()
        return b"".join(_event(stop, named=True) for stop in stops)

    # ---- OpenAI's responses ------------------------------------------------------------------------------------------

    def _response(self, record: JsonObject) -> bytes:
        kind = str(record.get("type"))
        if kind in ("response.created", "response.in_progress"):
            return b"" if self._first.begun else _event(record, named=True)
        item = record.get("item")
        if isinstance(item, dict):
            known = self._first.items.get(str(item.get("type")))
            if known is not None:
                self._items[str(item.get("id"))] = known
                if kind == "response.output_item.added":
                    return b""
            self._rename_item(item)
        if isinstance(given := record.get("item_id"), str):
            if kind == "response.content_part.added" and given in self._items and self._first.text:
                return b""
            record["item_id"] = self._items.get(given, given)
        if isinstance(said := record.get("delta"), str) and kind.endswith("_text.delta"):
            record["delta"] = said = self._fresh("text" if "output" in kind else "reasoning", said)
            if not said:
                return b""
        self._complete_part(record, kind)
        self._complete_part(object_of(record.get("part")), kind)
        if isinstance(whole := record.get("response"), dict):
            self._complete(whole)
        return _event(record, named=True)

    def _rename_item(self, item: JsonObject) -> None:
        item["id"] = self._items.get(str(item.get("id")), item.get("id"))
        for part in objects_of(item.get("content")):
            self._complete_part(part, str(part.get("type")))

    def _complete_part(self, part: JsonObject, kind: str) -> None:
        """Correct a text that the end repeats: it is the whole text."""
        if isinstance(text := part.get("text"), str) and "added" not in kind:
            before = self._first.reasoning if "reasoning" in f"{kind} {part.get('type')}" else self._first.text
            part["text"] = text if text.startswith(before) else before + text

    def _complete(self, whole: JsonObject) -> None:
        if "id" in self._first.head:
            whole["id"] = self._first.head["id"]
        for item in objects_of(whole.get("output")):
            known = self._first.items.get(str(item.get("type")))
            if known is not None:
                self._items.setdefault(str(item.get("id")), known)
            self._rename_item(item)
        usage = object_of(whole.get("usage"))
        self._more(usage, "output_tokens")
        self._less(usage, "input_tokens")


def _is_count(value: JSON) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _index(record: JsonObject) -> int:
    index = record.get("index")
    return index if isinstance(index, int) else 0


def _event(record: JsonObject, *, named: bool = False) -> bytes:
    return encode(SseEvent(msgspec.json.encode(record).decode(), str(record.get("type")) if named else None))
