"""Chat completions for plugins: texts of requests and answers, whole and streamed. Pure.

Source: the OpenAI chat completions API as llama-server (b11434) speaks it.
"""

from __future__ import annotations

from collections.abc import Sequence

from appliance.plugins import JSON, Event, JsonObject, Refused


def as_object(value: JSON) -> JsonObject:
    """Return ``value`` if it is an object, else a new empty one."""
    return value if isinstance(value, dict) else {}


def as_array(value: JSON) -> list[JSON]:
    return value if isinstance(value, list) else []


def as_text(value: JSON) -> str:
    return value if isinstance(value, str) else ""


def messages_of(body: JsonObject) -> list[JsonObject]:
    """Return the messages themselves, not copies. Raises Refused if the request has none."""
    messages = [entry for entry in as_array(body.get("messages")) if isinstance(entry, dict)]
    if not messages:
        raise Refused("this slash command works on chat completions: the request has no 'messages'")
    return messages


def last_user(body: JsonObject) -> JsonObject:
    """Return the last message of the user. Raises Refused if there is none."""
    for message in reversed(messages_of(body)):
        if message.get("role") == "user":
            return message
    raise Refused("the request has no message with the role 'user'")


def text_of(message: JsonObject) -> str:
    """Return the text of a message; for one in parts, its text parts on lines of their own."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = [as_object(part) for part in as_array(content)]
    return "\n".join(as_text(part.get("text")) for part in parts if part.get("type") == "text")


def set_text(message: JsonObject, text: str) -> None:
    """Replace the message's text by ``text``; images and other parts stay."""
    content = message.get("content")
    if not isinstance(content, list):
        message["content"] = text
        return
    others = [part for part in content if as_object(part).get("type") != "text"]
    message["content"] = [{"type": "text", "text": text}, *others]


def answer_message(body: JsonObject) -> JsonObject:
    """Return the message of an answer's first choice; an empty object if it has none."""
    choices = as_array(body.get("choices"))
    return as_object(as_object(choices[0]).get("message")) if choices else {}


def answer_text(body: JsonObject) -> str:
    return text_of(answer_message(body))


class Streamed:
    """The text of a streamed answer so far, of its first choice. Feed it every event."""

    def __init__(self) -> None:
        self.text = ""
        self.tool_calls = False
        self.finish_reason: str | None = None
        self._shape: JsonObject = {"object": "chat.completion.chunk"}

    def add(self, event: Event) -> None:
        if event.data is None or "choices" not in event.data:
            return
        self._shape = _shape(event.data)
        for entry in as_array(event.data["choices"]):
            choice = as_object(entry)
            if choice.get("index", 0) != 0:
                continue
            delta = as_object(choice.get("delta"))
            self.text += as_text(delta.get("content"))
            self.tool_calls = self.tool_calls or bool(delta.get("tool_calls"))
            self.finish_reason = as_text(choice.get("finish_reason")) or self.finish_reason

    def take_shape(self, body: JsonObject) -> None:
        """Before the first record: make records look like those of ``body``, another answer or record."""
        if "id" not in self._shape:
            self._shape = _shape(body)

    def record(self, delta: JsonObject, *, finish_reason: str | None = None, index: int = 0) -> Event:
        """Return one more record in the form of this stream."""
        return Event(
            data={**self._shape, "choices": [{"index": index, "delta": delta, "finish_reason": finish_reason}]}
        )


def _shape(body: JsonObject) -> JsonObject:
    """Return the members that all records of one stream share."""
    alike: JsonObject = {key: body[key] for key in ("id", "created", "model", "system_fingerprint") if key in body}
    return alike | {"object": "chat.completion.chunk"}


def finished(event: Event) -> list[int]:
    """Return the indexes of the choices that end with this record."""
    choices = [as_object(entry) for entry in as_array((event.data or {}).get("choices"))]
    indexes = [choice.get("index", 0) for choice in choices if choice.get("finish_reason")]
    return [index for index in indexes if isinstance(index, int)]


def after_end(records: Sequence[Event]) -> list[Event]:
    """Return the records after the one that ends the answer: usage, and the final record, which always exists."""
    ends = [at for at, event in enumerate(records) if finished(event)]
    return list(records[ends[-1] + 1 :] if ends else ()) or [Event(data=None)]


def saying(said: Streamed, records: Sequence[Event], text: str) -> list[Event]:
    """Return the stream ``records``, of which ``said`` was fed, with ``text`` for its answer."""
    told = said.record({"role": "assistant", "content": text})
    return [told, said.record({}, finish_reason="stop"), *after_end(records)]


def with_member(records: Sequence[Event], name: str, value: JSON) -> list[Event]:
    """Return the records; those that end the answer have one more member."""
    return [Event(data={**(r.data or {}), name: value}, name=r.name) if finished(r) else r for r in records]
