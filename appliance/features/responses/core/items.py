"""Input items as the messages of a chat.

The items of one turn of the assistant (reasoning, text, calls) become one message, as llama-server has them. The first
system and developer messages become one: many templates want that, and agents send two of them.
"""

from __future__ import annotations

import base64
import binascii
import codecs
from collections.abc import Callable, Mapping, Sequence

import msgspec

from appliance.core.bodies.json_text import JSON, JsonObject
from appliance.errors import BadRequest
from appliance.features.responses.core.members import ITEMS, list_of, not_one_of, object_of, text_of

PLAIN = "plain."
"""The beginning of an ``encrypted_content`` that this program has made: the rest is the reasoning in base64."""
_TEXTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
_PARTS = (*_TEXTS, "refusal", "input_image", "image_url", "input_file", "input_audio")
_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_RESULTS = ("output", "outputs", "results", "error")
_PDF = b"%PDF-"  # a PDF may have nothing but letters in it
_AROUND = ("type", "id", "status", "call_id", "name", "arguments", "namespace", "caller", *_RESULTS)
"""Members of a call that are not its arguments."""


Known = Callable[[str], JsonObject | None]


def chat_name(name: str, namespace: JSON) -> str:
    """Return the name of a tool for the model."""
    before = namespace if isinstance(namespace, str) else ""
    return f"{before}{name}" if not before or before.endswith("__") else f"{before}__{name}"


class ChatMessages:
    """Collects messages. ``ignored`` gets the places of what is left out.

    ``texts`` are those of files that do not consist of text, by their members. ``unread`` gets the name and the content
    of each one that is missing there. ``known`` returns the item of an earlier response, by its id.
    """

    def __init__(self, ignored: list[str], texts: Mapping[str, str], known: Known) -> None:
        self.messages: list[JsonObject] = []
        self.unread: dict[str, tuple[str, bytes]] = {}
        self._ignored = ignored
        self._texts = texts
        self._known = known

    def add(self, given: JSON, path: str, role: str = "user") -> None:
        """Add a text of this role, or items. Raises BadRequest."""
        if isinstance(given, str):
            self._say(role, given)
            return
        for number, item in enumerate(list_of(given, path)):
            self._add(object_of(item, f"{path}[{number}]"), f"{path}[{number}]")

    def _add(self, item: JsonObject, path: str) -> None:
        kind = item.get("type")
        match "message" if kind is None else kind:
            case "message":
                self._message(item, path)
            case "function_call":
                given = item.get("arguments")
                arguments = given if isinstance(given, str) else _as_text({} if given is None else given)
                self._call(
                    item, path, text_of(item.get("name"), f"{path}.name"), arguments if arguments.strip() else "{}"
                )
            case "custom_tool_call":
                self._call(
                    item, path, text_of(item.get("name"), f"{path}.name"), _as_text({"input": item.get("input") or ""})
                )
            case "function_call_output" | "custom_tool_call_output":
                self._result(_call_id(item, path), self._output(item.get("output"), f"{path}.output"))
            case "reasoning":
                self._reason(item, path)
            case str() as known if ITEMS.get(known, ("", ""))[0] == "kept":
                self._keep(item, known, path)
            case str() as known if ITEMS.get(known, ("", ""))[0] == "ignored":
                self._ignored.append(f"{path} ({known})")
            case "item_reference":
                if (known := self._known(text_of(item.get("id"), f"{path}.id"))) is None:
                    raise _unkept(path)
                self._add(known, path)
            case _:
                raise not_one_of(kind, f"{path}.type", ITEMS)

    # ---- messages ----------------------------------------------------------------------------------------------------

    def _message(self, item: JsonObject, path: str) -> None:
        role = item.get("role")
        if not isinstance(role, str) or role not in _ROLES:
            raise not_one_of(role, f"{path}.role", _ROLES)
        content = item.get("content")
        parts = content if isinstance(content, str) else self._parts(content, f"{path}.content")
        if _ROLES[role] == "system" and not isinstance(parts, str) and all(each["type"] == "text" for each in parts):
            parts = "\n".join(str(each["text"]) for each in parts)
        self._say(_ROLES[role], parts)

    def _say(self, role: str, content: str | Sequence[JsonObject]) -> None:
        last = self.messages[-1] if self.messages else None
        told = content if isinstance(content, str) else _simple(content)
        if last is not None and role == last["role"] == "assistant":
            before = last.get("content")
            last["content"] = [*_listed(before), *_listed(told)] if before else told
        elif last is not None and role == last["role"] == "system" and len(self.messages) == 1:
            before = last["content"]
            texts = isinstance(before, str) and isinstance(told, str)
            last["content"] = f"{before}\n\n{told}" if texts else [*_listed(before), *_listed(told)]
        else:
            self.messages.append({"role": role, "content": told})

    def _parts(self, given: JSON, path: str) -> list[JsonObject]:
        found = [] if given is None else list_of(given, path)
        return [self._part(part, f"{path}[{number}]") for number, part in enumerate(found)]

    def _part(self, given: JSON, path: str) -> JsonObject:
        if isinstance(given, str):
            return {"type": "text", "text": given}
        part = object_of(given, path)
        match kind := part.get("type"):
            case str() if kind in _TEXTS:
                return {"type": "text", "text": text_of(part.get("text"), f"{path}.text")}
            case "refusal":
                return {"type": "text", "text": text_of(part.get("refusal"), f"{path}.refusal")}
            case "input_image" | "image_url":
                url = part.get("image_url")
                url = url.get("url") if isinstance(url, dict) else url
                if url is None and part.get("file_id"):
                    raise _unstored(f"{path}.file_id", "image_url")
                return {"type": "image_url", "image_url": {"url": text_of(url, f"{path}.image_url")}}
            case "input_audio":
                return {"type": kind, kind: object_of(part.get(kind), f"{path}.{kind}")}
            case "input_file":
                return self._file(part, path)
            case _:
                raise not_one_of(kind, f"{path}.type", _PARTS)

    def _file(self, part: JsonObject, path: str) -> JsonObject:
        """The text of a file, behind its name."""
        for name in ("file_id", "file_url"):
            if part.get(name) and not part.get("file_data"):
                raise _unstored(f"{path}.{name}", "file_data")
        given = text_of(part.get("file_data"), f"{path}.file_data")
        try:
            data = base64.b64decode(given.partition(",")[2] if given.startswith("data:") else given, validate=True)
        except (binascii.Error, ValueError):
            why = "must be base64, with its padding, or a data URL of it"
            raise BadRequest(f"'{path}.file_data' {why}", param=f"{path}.file_data") from None
        name = part.get("filename")
        name = name if isinstance(name, str) and name else "file"
        text = self._texts.get(f"{path}.file_data")
        if text is None:
            text = data.decode("utf-8-sig", "ignore")
            if data.startswith(_PDF) or "\0" in text or text.encode() != data.removeprefix(codecs.BOM_UTF8):
                self.unread[f"{path}.file_data"] = name, data
        return {"type": "text", "text": f"{name}:\n{text}"}

    # ---- calls -------------------------------------------------------------------------------------------------------

    def _call(self, item: JsonObject, path: str, name: str, arguments: str) -> None:
        call: JsonObject = {
            "id": _call_id(item, path),
            "type": "function",
            "function": {"name": chat_name(name, item.get("namespace")), "arguments": arguments},
        }
        message = self._assistant()
        calls = message.get("tool_calls")
        message["tool_calls"] = [*(calls if isinstance(calls, list) else ()), call]

    def _result(self, call_id: str, content: JSON) -> None:
        self.messages.append({"role": "tool", "tool_call_id": call_id, "content": content})

    def _output(self, given: JSON, path: str) -> JSON:
        """The result of a tool: a text, parts that a message may have, or any other JSON as text."""
        match given:
            case None:
                return ""
            case str():
                return given
            case list() if given and all(isinstance(each, dict) and each.get("type") in _PARTS for each in given):
                return _simple(self._parts(given, path))
            case {"image_url": str(url)}:
                return [{"type": "image_url", "image_url": {"url": url}}]
            case _:
                return _as_text(given)

    def _keep(self, item: JsonObject, kind: str, path: str) -> None:
        """A call that another server has run, or a tool of the client's that only OpenAI's models know."""
        results = [item[name] for name in _RESULTS if item.get(name) is not None]
        if not kind.endswith("_call"):
            self._result(_call_id(item, path), self._output(results[0] if results else None, f"{path}.output"))
            return
        given = item.get("arguments")
        own: JsonObject = {name: value for name, value in item.items() if name not in _AROUND and value is not None}
        arguments = given if isinstance(given, str) and given.strip() else _as_text(own)
        name = item.get("name")
        self._call(item, path, name if isinstance(name, str) and name else kind.removesuffix("_call"), arguments)
        if results:
            self._result(_call_id(item, path), self._output(results[0], f"{path}.output"))

    def _reason(self, item: JsonObject, path: str) -> None:
        text = ""
        for name in ("content", "summary"):
            if not text and item.get(name) is not None:
                text = "\n\n".join(str(each.get("text") or "") for each in self._parts(item[name], f"{path}.{name}"))
        hidden = item.get("encrypted_content")
        if not text and isinstance(hidden, str) and hidden:
            text = _revealed(hidden)
            if not text:
                self._ignored.append(f"{path}.encrypted_content")
        if text:
            message = self._assistant()
            before = message.get("reasoning_content")
            message["reasoning_content"] = f"{before}\n\n{text}" if before else text

    def _assistant(self) -> JsonObject:
        """The message of the assistant that is open, or a new one."""
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self.messages.append({"role": "assistant", "content": ""})
        return self.messages[-1]


def hidden(reasoning: str) -> str:
    """Return reasoning as ``encrypted_content``: clients that keep nothing else send it back."""
    return PLAIN + base64.b64encode(reasoning.encode(errors="replace")).decode()


def _revealed(given: str) -> str:
    """The opposite; empty for what others have encrypted."""
    if not given.startswith(PLAIN):
        return ""
    try:
        return base64.b64decode(given.removeprefix(PLAIN), validate=True).decode()
    except (binascii.Error, ValueError):
        return ""


def _simple(parts: Sequence[JsonObject]) -> JSON:
    """One text is not a list: not every template knows of parts."""
    return parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else list(parts)


def _listed(content: JSON) -> list[JSON]:
    return content if isinstance(content, list) else [{"type": "text", "text": content}] if content else []


def _call_id(item: JsonObject, path: str) -> str:
    """The id of a call; where it is absent, that of the item, as some clients send it."""
    return text_of(item.get("call_id") or item.get("id"), f"{path}.call_id")


def _as_text(value: JSON) -> str:
    return msgspec.json.encode(value).decode()


def _unkept(path: str) -> BadRequest:
    why = "names an item that is not kept here; send the item itself, as clients do with 'store': false"
    return BadRequest(f"'{path}' {why}", param=path)


def _unstored(path: str, instead: str) -> BadRequest:
    return BadRequest(f"'{path}' is not supported: nothing is stored here; send '{instead}'", param=path)
