"""OpenAI's chat completions as Structs: the shapes that the program reads of answers, and writes in requests.

Reading is lenient, since servers differ: null means absent, a whole answer and a record of a stream have one shape, and
other fields are ignored. ``reasoning_content`` is llama-server's name for thoughts, ``reasoning`` vLLM's. In writing,
absent fields are left out; a ``content`` that is null is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from appliance.core.lenient_json import decoded

NULL = Raw(b"null")
NO_PARAMETERS = Raw(b'{"type":"object","properties":{}}')
"""The schema of a function that takes no arguments."""
QUOTED = 1000
"""Number of characters quoted from an error in an unknown form."""


class TextPart(Struct):
    text: str | None = None


class CalledFunction(Struct, frozen=True, omit_defaults=True):
    """``arguments`` is a string of JSON, or an object if the server does not follow the format."""

    name: str | None = None
    arguments: Raw = NULL

    @property
    def argument_text(self) -> str:
        text, raw = decoded(str, self.arguments), bytes(self.arguments)
        return text if text is not None else "" if raw == b"null" else raw.decode("utf-8", "replace")


class ToolCall(Struct, omit_defaults=True):
    """A call, or in a stream a piece of one."""

    index: int | None = None
    id: str | None = None
    type: str | None = None
    function: CalledFunction = CalledFunction()


class ChatMessage(Struct, omit_defaults=True):
    """A message, or in a stream the delta of one."""

    role: str | None = None
    content: str | Sequence[TextPart] | UnsetType | None = UNSET
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: Sequence[ToolCall] | None = None
    tool_call_id: str | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text or "" for part in self.content or ())

    @property
    def thoughts(self) -> str:
        return self.reasoning_content or self.reasoning or ""


class ChatChoice(Struct):
    index: int | None = None
    delta: ChatMessage | None = None
    message: ChatMessage | None = None
    finish_reason: str | None = None

    @property
    def said(self) -> ChatMessage:
        return self.delta or self.message or ChatMessage()


class ChatUsage(Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None


class ChatCompletion(Struct):
    """A whole answer or a record of a stream, or an error instead of one."""

    model: str | None = None
    choices: Sequence[ChatChoice] | None = None
    usage: ChatUsage | None = None
    error: Raw = NULL


class FunctionDefinition(Struct, frozen=True):
    """``parameters`` is a JSON schema."""

    name: Annotated[str, Meta(min_length=1)]
    description: str = ""
    parameters: Raw = NO_PARAMETERS


class ToolDefinition(Struct, frozen=True):
    function: FunctionDefinition
    type: str = "function"


class TextVector(Struct):
    embedding: list[float]
    index: int = 0


class Embeddings(Struct):
    """The answer of ``/v1/embeddings``."""

    data: list[TextVector]
    model: str = ""
    usage: ChatUsage | None = None

    @property
    def vectors(self) -> list[list[float]]:
        return [each.embedding for each in sorted(self.data, key=lambda each: each.index)]


class _ErrorForm(Struct):
    error: Raw = NULL
    message: str | None = None


_REFUSED = msgspec.json.Decoder(_ErrorForm)


def tool_call(call_id: str, name: str, arguments: str, index: int | None = None) -> ToolCall:
    """Return a call to be written. ``arguments`` is JSON text."""
    function = CalledFunction(name, Raw(msgspec.json.encode(arguments)))
    return ToolCall(index=index, id=call_id, type="function", function=function)


def error_text(error: bytes | Raw) -> str:
    """Return the words of an error: a string, its ``message``, or those of its ``error``; else its beginning."""
    raw = bytes(error)
    while (found := decoded(_REFUSED, raw)) is not None and found.error != NULL:
        raw = bytes(found.error)
    said = found.message if found is not None else decoded(str, raw)
    return (
        said if said is not None else "" if raw in (b"null", b"{}") else raw.decode("utf-8", "replace")[:QUOTED].strip()
    )
