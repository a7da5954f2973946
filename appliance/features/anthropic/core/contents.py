"""The messages of a request as those of a chat, block by block."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from appliance.core.bodies.json_text import JSON, OBJECT, JsonObject
from appliance.core.lenient_json import decoded
from appliance.errors import BadRequest
from appliance.features.anthropic.core.members import SOURCES, Fate
from appliance.features.anthropic.core.reading import Notes, list_in, object_in, refuse, text_of, unknown

_TEXTS = ("text/", "application/json", "application/xml")
"""Media types of documents that are text."""
_CHECKSUM = re.compile(r"^(x-anthropic-billing-header:.*?cch=)\w{5}(?=;)")
"""The mark that Claude Code puts before its system prompt. It is another one each time, and would cost the cache of
prompts everything behind it.
"""
_WORDLESS = frozenset(
    (
        "type", "id", "tool_use_id", "caller", "cache_control", "signature", "data", "encrypted_content",
        "encrypted_index", "encrypted_stdout", "media_type", "file_id", "page_age", "citations", "retrieved_at",
    )
)  # fmt: skip
"""Members of blocks in which no text stands that a model could read."""
UNSEEN = "[an image, which this model cannot see]"


def _unpacked(data: str, where: str) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise BadRequest(f"'{where}' is not base64", param=where) from None


class Contents:
    """Turns the messages of one request. ``sees``: the model may know images.

    ``texts`` are those of PDF and Word documents, by their members. ``unread`` gets the name and the content of each
    one that is missing there.
    """

    def __init__(self, notes: Notes, texts: Mapping[str, str], *, sees: bool) -> None:
        self._notes = notes
        self._texts = texts
        self._sees = sees
        self.unread: dict[str, tuple[str, bytes]] = {}

    def messages(self, members: JsonObject) -> list[JSON]:
        """Return the messages of the chat, with the system prompt before them."""
        made: list[JSON] = []
        system = members.get("system", "")
        texts = [_CHECKSUM.sub(r"\g<1>fffff", _said(part)) for part in self._all(system, "system")]
        if text := "\n".join(each for each in texts if each):
            made.append({"role": "system", "content": text})
        given = list_in(members.get("messages"), "messages")
        for at, message in enumerate(given):
            made += self._message(object_in(message, f"messages[{at}]"), f"messages[{at}]")
        if not given:
            raise BadRequest("'messages' is empty; send at least one message", param="messages")
        return made

    def _message(self, message: JsonObject, where: str) -> list[JSON]:
        """Return what a message becomes: itself, and a message for each result of a tool in it.

        The results come first, as in their conversation: a chat wants them right behind the calls.
        """
        role = text_of(message.get("role"), f"{where}.role", empty=False)
        content = message.get("content")
        if content is None and role == "assistant":
            return []
        if isinstance(content, str):
            return [{name: value for name, value in message.items() if value is not None}]
        parts, calls, results, thoughts = list[JSON](), list[JSON](), list[JSON](), ""
        for at, given in enumerate(list_in(content, f"{where}.content")):
            here = f"{where}.content[{at}]"
            block = object_in(given, here)
            match block.get("type"):
                case "tool_use":
                    calls.append(self._call(block, here))
                case "tool_result":
                    results.append(self._result(block, here))
                case "thinking":
                    self._notes.take("thinking block", block, here)
                    thoughts += text_of(block.get("thinking"), f"{here}.thinking")
                case "redacted_thinking":
                    self._notes.take("redacted_thinking", block, here)
                case _:
                    parts += self._parts(block, here)
        if calls and role != "assistant":
            raise BadRequest(
                f"'{where}' has a tool_use block, which only the assistant's messages may have", param=where
            )
        if not (parts or calls or thoughts):
            return results
        said: JsonObject = {"role": role, "content": _content(parts)}
        if calls:
            said["tool_calls"] = calls
        if thoughts:
            said["reasoning_content"] = thoughts
        return [*results, said]

    def _call(self, block: JsonObject, where: str) -> JsonObject:
        self._notes.take("tool_use", block, where)
        given = block.get("input")
        if isinstance(given, str):  # some clients keep it as it came, in pieces of JSON
            given = decoded(OBJECT, given or "{}") or given
        arguments = object_in({} if given is None else given, f"{where}.input")
        name = text_of(block.get("name"), f"{where}.name", empty=False)
        function: JsonObject = {"name": name, "arguments": msgspec.json.encode(arguments).decode()}
        return {"id": text_of(block.get("id"), f"{where}.id"), "type": "function", "function": function}

    def _result(self, block: JsonObject, where: str) -> JsonObject:
        self._notes.take("tool_result", block, where)
        parts = self._all(block.get("content"), f"{where}.content", in_result=True)
        if block.get("is_error") is True and not (parts and _said(parts[0]).lower().startswith("error")):
            text = _said(parts[0]) if parts else ""
            parts = [_part(f"Error: {text}"), *parts[1:]] if text else [_part("Error:"), *parts]
        call = text_of(block.get("tool_use_id"), f"{where}.tool_use_id")
        made: JSON = "\n".join(map(_said, parts)) if all(map(_is_text, parts)) else list[JSON](parts)
        return {"role": "tool", "tool_call_id": call, "content": made}

    # ---- blocks ------------------------------------------------------------------------------------------------------

    def _parts(self, given: JSON, where: str, *, in_result: bool = False) -> list[JsonObject]:
        """Return the parts of a chat message that a block becomes; an empty text becomes nothing."""
        block = object_in(given, where)
        kind = text_of(block.get("type"), f"{where}.type", empty=False)
        match kind:
            case "text":
                self._notes.take("text", block, where)
                text = text_of(block.get("text"), f"{where}.text")
                return [_part(text)] if text else []
            case "image":
                return [self._image(block, where, in_result=in_result)]
            case "document":
                return self._document(block, where)
            case "search_result":
                self._notes.take("search_result", block, where)
                source = text_of(block.get("source"), f"{where}.source")
                parts = self._all(block.get("content"), f"{where}.content")
                return _between("search_result", {"title": self._title(block, where), "source": source}, parts)
            case "image_url" | "input_audio":  # OpenAI's form, which llama-server knows
                return [block]
            case _:
                self._notes.add("block", kind)
                words = "\n".join(_words(block))
                return [_part(f"[{kind}]\n{words}")] if words else []

    def _all(self, content: JSON, where: str, *, in_result: bool = False) -> list[JsonObject]:
        """The same for all blocks of a content, which may be a text."""
        if content is None or isinstance(content, str):
            return [_part(content)] if content else []
        blocks = [content] if isinstance(content, dict) else list_in(content, where)
        found = (self._parts(each, f"{where}[{at}]", in_result=in_result) for at, each in enumerate(blocks))
        return [part for parts in found for part in parts]

    def _title(self, block: JsonObject, where: str) -> str:
        return text_of(block.get("title"), f"{where}.title")

    def _source(self, kind: str, block: JsonObject, where: str) -> tuple[str, JsonObject]:
        """Return the type of a block's source, and the source. Raises BadRequest for one that cannot be had."""
        self._notes.take(kind, block, where)
        source = object_in(block.get("source"), f"{where}.source")
        form = text_of(source.get("type"), f"{where}.source.type")
        member = SOURCES.get(f"{kind} {form}")
        if member is None:
            known = ", ".join(name.removeprefix(f"{kind} ") for name in SOURCES if name.startswith(f"{kind} "))
            raise unknown(f"{where}.source.type", known, form)
        if member.fate is Fate.REFUSED:
            refuse(f"{where}.source", member)
        return form, source

    def _image(self, block: JsonObject, where: str, *, in_result: bool) -> JsonObject:
        form, source = self._source("image", block, where)
        if in_result and not self._sees:  # a tool's picture: the conversation has to go on
            self._notes.add("tool_result", "image")
            return _part(UNSEEN)
        if form == "url":
            url = text_of(source.get("url"), f"{where}.source.url", empty=False)
        else:
            media = text_of(source.get("media_type"), f"{where}.source.media_type") or "image/jpeg"
            url = text_of(source.get("data"), f"{where}.source.data", empty=False)
            url = url if url.startswith("data:") else f"data:{media};base64,{url}"
        return {"type": "image_url", "image_url": {"url": url}}

    def _document(self, block: JsonObject, where: str) -> list[JsonObject]:
        form, source = self._source("document", block, where)
        marks = {"title": self._title(block, where), "context": text_of(block.get("context"), f"{where}.context")}
        if form == "content":
            return _between("document", marks, self._all(source.get("content"), f"{where}.source.content"))
        text = text_of(source.get("data"), f"{where}.source.data")
        if form == "base64" and where in self._texts:
            text = self._texts[where]
        elif form == "base64":
            data = _unpacked(text, f"{where}.source.data")
            text = data.decode(errors="replace")
            if not str(source.get("media_type")).startswith(_TEXTS):
                self.unread[where] = marks["title"], data
        return _between("document", marks, [_part(text)] if text else [])


def _content(parts: list[JSON]) -> JSON:
    """Return a single text as a string, which every template can read, and "" for no part."""
    match parts:
        case []:
            return ""
        case [{"type": "text", "text": str(text)}]:
            return text
        case _:
            return parts


def _between(kind: str, marks: Mapping[str, str], parts: Sequence[JsonObject]) -> list[JsonObject]:
    """Return the parts between marks that a model knows from its training."""
    told = "".join(f' {name}="{value.replace(chr(34), chr(39))}"' for name, value in marks.items() if value)
    if all(map(_is_text, parts)):
        inner = "\n".join(map(_said, parts))
        return [_part(f"<{kind}{told}>\n{inner}\n</{kind}>")]
    return [_part(f"<{kind}{told}>"), *parts, _part(f"</{kind}>")]


def _words(value: JSON, name: str = "") -> Iterator[str]:
    """Yield what a model could read in a block of an unknown type: all texts, by their names."""
    match value:
        case str() if value:
            yield value if name in ("text", "content", "") else f"{name}: {value}"
        case list():
            for each in value:
                yield from _words(each, name)
        case dict():
            is_text = value.get("type") == "text"
            for inner, each in value.items():
                if inner not in _WORDLESS or (inner == "data" and is_text):
                    yield from _words(each, inner)
        case _:
            pass


def _part(text: str) -> JsonObject:
    return {"type": "text", "text": text}


def _is_text(part: JsonObject) -> bool:
    return part.get("type") == "text"


def _said(part: JsonObject) -> str:
    text = part.get("text")
    return text if isinstance(text, str) else ""
