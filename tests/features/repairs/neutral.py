"""Requests in a form of no dialect, and each of them as the official clients of four dialects would send it.

Every text has a word of its own (`WORD`), by which it is found again in what an engine gets.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count

from document_files import docx_of, pages_of, paragraph, run, text_of
from msgspec import Struct

Json = dict[str, object]
WORD = re.compile("q[0-9]+q")
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR42mNoAAAAggCB2kUIOwAAAABJRU5ErkJggg=="
WAV = base64.b64encode(
    b"RIFF\x28\0\0\0WAVEfmt \x10\0\0\0\1\0\1\0\x40\x1f\0\0\x80\x3e\0\0\2\0\x10\0data\4\0\0\0\0\0\0\0"
).decode()
DOCX = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
_numbers = count(1)


def w(said: str) -> str:
    """The text, with a word that no other text has."""
    return f"{said} q{next(_numbers)}q"


class Text(Struct, frozen=True):
    text: str


class Picture(Struct, frozen=True):
    data: str = PNG


class Sound(Struct, frozen=True):
    data: str = WAV


class File(Struct, frozen=True):
    """A file of this type with this text in it."""

    name: str
    media: str
    text: str

    @property
    def data(self) -> str:
        if self.media == "application/pdf":
            content = pages_of(text_of(self.text))
        else:
            content = docx_of(paragraph(run(self.text))) if self.media == DOCX else self.text.encode()
        return base64.b64encode(content).decode()


Part = Text | Picture | Sound | File


class Call(Struct, frozen=True):
    id: str
    name: str
    arguments: Json


class Said(Struct, frozen=True):
    """A turn of ``user``, ``assistant`` or ``system``."""

    role: str
    parts: tuple[Part, ...] = ()
    thought: str = ""
    calls: tuple[Call, ...] = ()


class Result(Struct, frozen=True):
    call: str
    parts: tuple[Part, ...]
    failed: bool = False


class Tool(Struct, frozen=True):
    name: str
    description: str
    schema: Json | None
    strict: bool = False


class Asked(Struct, frozen=True):
    """One request. ``choice`` is auto, none, required or a tool's name; ``think`` an effort, or whether to think."""

    turns: tuple[Said | Result, ...]
    tools: tuple[Tool, ...] = ()
    choice: str = ""
    schema: Json | None = None
    think: str | bool | None = None
    stops: tuple[str, ...] = ()
    more: Mapping[str, object] = {}
    """Numbers that have the same name in all dialects."""


class NotHere(Exception):
    """A dialect has no words for a request."""


def said(role: str, *parts: str | Part, thought: str = "", calls: Sequence[Call] = ()) -> Said:
    return Said(role, tuple(Text(w(each)) if isinstance(each, str) else each for each in parts), thought, tuple(calls))


# ---- each dialect ----------------------------------------------------------------------------------------------------


def _url(part: Picture) -> str:
    return f"data:image/png;base64,{part.data}"


def _only_text(parts: Sequence[Part]) -> str | None:
    return "\n".join(part.text for part in parts if isinstance(part, Text)) if len(parts) < 2 else None


def _chat_part(part: Part) -> Json:
    match part:
        case Text(text):
            return {"type": "text", "text": text}
        case Picture():
            return {"type": "image_url", "image_url": {"url": _url(part)}}
        case Sound(data):
            return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
        case File(name, media):
            return {"type": "file", "file": {"filename": name, "file_data": f"data:{media};base64,{part.data}"}}


def _chat_content(parts: Sequence[Part]) -> object:
    text = _only_text(parts)
    return [_chat_part(part) for part in parts] if text is None or not all(isinstance(p, Text) for p in parts) else text


def as_chat(asked: Asked) -> Json:
    """The arguments of OpenAI's ``chat.completions.create``."""
    messages: list[Json] = []
    for turn in asked.turns:
        if isinstance(turn, Result):
            if any(not isinstance(part, Text) for part in turn.parts):
                raise NotHere
            messages.append({"role": "tool", "tool_call_id": turn.call, "content": _chat_content(turn.parts)})
            continue
        message: Json = {"role": turn.role, "content": _chat_content(turn.parts)}
        if turn.calls:
            message["tool_calls"] = [
                {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": json.dumps(c.arguments)}}
                for c in turn.calls
            ]
        if turn.thought:
            message["reasoning_content"] = turn.thought
        messages.append(message)
    found: Json = {"messages": messages, "max_completion_tokens": 3, **asked.more}
    if asked.tools:
        found["tools"] = [{"type": "function", "function": _function(tool)} for tool in asked.tools]
    if asked.choice:
        named = {"type": "function", "function": {"name": asked.choice}}
        found["tool_choice"] = asked.choice if asked.choice in ("auto", "none", "required") else named
    if asked.schema is not None:
        found["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": asked.schema}}
    if isinstance(asked.think, str):
        found["reasoning_effort"] = asked.think
    elif asked.think is not None:
        found["extra_body"] = {"chat_template_kwargs": {"enable_thinking": asked.think}}
    return found | ({"stop": list(asked.stops)} if asked.stops else {})


def _function(tool: Tool) -> Json:
    found: Json = {"name": tool.name, "description": tool.description}
    return (
        found
        | ({"parameters": tool.schema} if tool.schema is not None else {})
        | ({"strict": True} if tool.strict else {})
    )


def _block(part: Part) -> Json:
    match part:
        case Text(text):
            return {"type": "text", "text": text}
        case Picture(data):
            return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
        case File(name, "application/pdf" as media):
            source: Json = {"type": "base64", "media_type": media, "data": part.data}
            return {"type": "document", "title": name, "source": source}
        case File(name, "text/plain" as media, text):
            return {"type": "document", "title": name, "source": {"type": "text", "media_type": media, "data": text}}
        case _:
            raise NotHere


def as_messages(asked: Asked) -> Json:
    """The arguments of Anthropic's ``messages.create``. Results of tools are the user's, in one message."""
    messages: list[Json] = []
    systems: list[Json] = []
    for turn in asked.turns:
        if isinstance(turn, Said) and turn.role == "system":
            if messages:
                raise NotHere
            systems += [_block(part) for part in turn.parts]
            continue
        if isinstance(turn, Result):
            role, blocks = (
                "user",
                [{"type": "tool_result", "tool_use_id": turn.call, "content": [*map(_block, turn.parts)]}],
            )
            blocks[0] |= {"is_error": True} if turn.failed else {}
        else:
            role, blocks = turn.role, [_block(part) for part in turn.parts]
            thought = [{"type": "thinking", "thinking": turn.thought, "signature": "s"}] if turn.thought else []
            calls = [{"type": "tool_use", "id": c.id, "name": c.name, "input": c.arguments} for c in turn.calls]
            blocks = [*thought, *blocks, *calls]
        before = messages[-1]["content"] if messages and messages[-1]["role"] == role == "user" else None
        if isinstance(before, list) and isinstance(turn, Result):
            before += blocks
        else:
            messages.append({"role": role, "content": blocks})
    found: Json = {"messages": messages, "max_tokens": 3, **({"extra_body": asked.more} if asked.more else {})}
    if systems:
        found["system"] = systems[0]["text"] if len(systems) == 1 else systems
    if asked.tools:
        found["tools"] = [_anthropic_tool(tool) for tool in asked.tools]
    if asked.choice:
        kind = {"auto": "auto", "none": "none", "required": "any"}.get(asked.choice)
        found["tool_choice"] = {"type": "tool", "name": asked.choice} if kind is None else {"type": kind}
    if asked.schema is not None:
        found["output_config"] = {"format": {"type": "json_schema", "schema": asked.schema}}
    if isinstance(asked.think, str):
        found["output_config"] = {"effort": asked.think}
    elif asked.think is not None:
        found["thinking"] = {"type": "enabled", "budget_tokens": 1024} if asked.think else {"type": "disabled"}
    return found | ({"stop_sequences": list(asked.stops)} if asked.stops else {})


def _anthropic_tool(tool: Tool) -> Json:
    if tool.schema is None:
        raise NotHere
    found: Json = {"name": tool.name, "description": tool.description, "input_schema": tool.schema}
    return found | ({"strict": True} if tool.strict else {})


def _input_part(part: Part, role: str) -> Json:
    match part:
        case Text(text):
            return {"type": "output_text" if role == "assistant" else "input_text", "text": text}
        case Picture():
            return {"type": "input_image", "image_url": _url(part), "detail": "auto"}
        case File(name, media):
            return {"type": "input_file", "filename": name, "file_data": f"data:{media};base64,{part.data}"}
        case _:
            raise NotHere


def as_responses(asked: Asked) -> Json:
    """The arguments of OpenAI's ``responses.create``. The first words of the system are the instructions."""
    items: list[Json] = []
    found: Json = {"input": items, "max_output_tokens": 3, "store": False, **asked.more}
    for number, turn in enumerate(asked.turns):
        if isinstance(turn, Result):
            output = _only_text(turn.parts) if all(isinstance(p, Text) for p in turn.parts) else None
            parts = [_input_part(part, "tool") for part in turn.parts]
            items.append(
                {"type": "function_call_output", "call_id": turn.call, "output": parts if output is None else output}
            )
            continue
        if number == 0 and turn.role == "system" and (text := _only_text(turn.parts)) is not None:
            found["instructions"] = text
            continue
        if turn.thought:
            summary = [{"type": "summary_text", "text": turn.thought}]
            items.append({"type": "reasoning", "id": f"rs_{number}", "summary": summary})
        if turn.parts:
            item: Json = {
                "type": "message",
                "role": turn.role,
                "content": [_input_part(p, turn.role) for p in turn.parts],
            }
            if turn.role == "assistant":
                item |= {"id": f"msg_{number}", "status": "completed"}
                for part in item["content"]:
                    part["annotations"] = []
            items.append(item)
        items += [
            {"type": "function_call", "call_id": c.id, "name": c.name, "arguments": json.dumps(c.arguments)}
            for c in turn.calls
        ]
    if asked.tools:
        found["tools"] = [_response_tool(tool) for tool in asked.tools]
    if asked.choice:
        named: Json = {"type": "function", "name": asked.choice}
        found["tool_choice"] = asked.choice if asked.choice in ("auto", "none", "required") else named
    if asked.schema is not None:
        found["text"] = {"format": {"type": "json_schema", "name": "answer", "schema": asked.schema}}
    if isinstance(asked.think, str):
        found["reasoning"] = {"effort": asked.think}
    elif asked.think is not None:
        found["extra_body"] = {"chat_template_kwargs": {"enable_thinking": asked.think}}
    if asked.stops:
        raise NotHere
    return found


def _response_tool(tool: Tool) -> Json:
    return {"type": "function", "strict": tool.strict, "parameters": tool.schema, **_function(tool)}


def as_ollama(asked: Asked) -> Json:
    """The arguments of Ollama's ``chat``. It has no ids of calls, and no files but pictures and sound."""
    messages: list[Json] = []
    names = {call.id: call.name for turn in asked.turns if isinstance(turn, Said) for call in turn.calls}
    for turn in asked.turns:
        if any(isinstance(part, File) for part in turn.parts) or (isinstance(turn, Result) and turn.failed):
            raise NotHere
        text = "\n".join(part.text for part in turn.parts if isinstance(part, Text))
        images = [part.data for part in turn.parts if isinstance(part, Picture | Sound)]
        if isinstance(turn, Result):
            message: Json = {"role": "tool", "content": text, "tool_name": names.get(turn.call, "look")}
        else:
            message = {"role": turn.role, "content": text}
            calls = [{"function": {"name": c.name, "arguments": c.arguments}} for c in turn.calls]
            message |= {"tool_calls": calls} if calls else {}
            message |= {"thinking": turn.thought} if turn.thought else {}
        messages.append(message | ({"images": images} if images else {}))
    options: Json = {"num_predict": 3, **asked.more}
    if asked.stops:
        options["stop"] = list(asked.stops)
    found: Json = {"messages": messages, "options": options, "stream": False}
    if asked.tools:
        found["tools"] = [{"type": "function", "function": _function(tool)} for tool in asked.tools]
    if asked.choice not in ("", "auto"):
        raise NotHere
    if asked.schema is not None:
        found["format"] = asked.schema
    return found | ({"think": asked.think} if asked.think is not None else {})


DIALECTS: Mapping[str, Callable[[Asked], Json]] = {
    "chat": as_chat,
    "messages": as_messages,
    "responses": as_responses,
    "ollama": as_ollama,
}


# ---- the requests ----------------------------------------------------------------------------------------------------


def _properties(**more: object) -> Json:
    return {
        "type": "object",
        "properties": {"q": {"type": "string", "description": w("What")}, **more},
        "required": ["q"],
    }


def tool(name: str = "look", schema: Json | None = None, *, strict: bool = False) -> Tool:
    return Tool(name, w("Looks"), _properties() if schema is None else schema, strict)


def called(*names: str, said_too: bool = False, thought: bool = False, first: int = 1) -> tuple[Said | Result, ...]:
    """A turn that calls these tools, and their results."""
    calls = [Call(f"abcdefgh{first + at}", name, {"q": w("of")}) for at, name in enumerate(names)]
    words = [w("Let me see")] if said_too else []
    turn = Said("assistant", tuple(map(Text, words)), w("Hm") if thought else "", tuple(calls))
    return turn, *(Result(call.id, (Text(w("found")),)) for call in calls)


def _systems() -> Iterator[tuple[str, tuple[Said, ...]]]:
    yield "no system", ()
    yield "a system", (said("system", "Be kind"),)
    yield "a system of parts", (said("system", "Be kind", "Be short"),)
    yield "two systems", (said("system", "Be kind"), said("system", "Be short"))


def _talks() -> Iterator[tuple[str, tuple[Said | Result, ...], bool]]:
    """What is said, and whether tools belong to it."""
    hi = said("user", "Hi")
    yield "one question", (hi,), False
    yield "parts", (said("user", "Hi", "there", "you"),), False
    yield "two questions", (hi, said("user", "there")), False
    yield "talk", (hi, said("assistant", "Hello"), said("user", "More")), False
    yield "long talk", tuple(said(("user", "assistant")[at % 2], f"Turn {at}") for at in range(21)), False
    yield "assistant first", (said("assistant", "Hello"), hi), False
    yield "assistant twice", (hi, said("assistant", "One"), said("assistant", "two"), said("user", "More")), False
    yield "begun answer", (hi, said("assistant", "Once")), False
    yield "thought", (hi, said("assistant", "Hello", thought=w("Hm")), said("user", "More")), False
    yield "call", (hi, *called("look")), True
    yield "call with words", (hi, *called("look", said_too=True)), True
    yield "thought and call", (hi, *called("look", thought=True)), True
    yield "all of it and call", (hi, *called("look", said_too=True, thought=True)), True
    yield "two calls", (hi, *called("look", "read")), True
    yield "call after call", (hi, *called("look"), *called("read", first=4)), True
    yield "call, then talk", (hi, *called("look"), said("assistant", "It is so"), said("user", "More")), True
    yield "call, and more words", (hi, *called("look"), said("user", "More")), True
    found = called("look")
    yield "failed call", (hi, found[0], Result("abcdefgh1", (Text(w("no file")),), failed=True)), True
    yield "empty result", (hi, found[0], Result("abcdefgh1", ())), True
    yield "result of parts", (hi, found[0], Result("abcdefgh1", (Text(w("one")), Text(w("two"))))), True


def _odd_schemas() -> Iterator[tuple[str, Json]]:
    yield "no member", {"type": "object", "properties": {}}
    yield "a pattern", _properties(a={"type": "string", "pattern": "^[a-z]+$"})
    yield "a look ahead", _properties(a={"type": "string", "pattern": "^(?=a)b"})
    yield "a date", _properties(a={"type": "string", "format": "date-time"})
    yield "an unknown type", _properties(a={"type": "date"})
    yield "a missing ref", _properties(a={"$ref": "#/$defs/none"})
    yield "a ref", {**_properties(a={"$ref": "#/$defs/one"}), "$defs": {"one": {"type": "string", "title": w("One")}}}
    yield "anyOf", _properties(a={"anyOf": [{"type": "string"}, {"type": "null"}], "title": w("A")})
    yield "an enum", _properties(a={"type": "string", "enum": [w("red"), w("blue")]})
    yield (
        "nested",
        _properties(a={"type": "array", "items": _properties(b={"type": "object", "additionalProperties": True})}),
    )
    yield "large bounds", _properties(a={"type": "array", "items": {"type": "string"}, "minItems": 5000})


def _requests() -> Iterator[tuple[str, Asked]]:
    for talk, turns, uses in _talks():
        for system, before in _systems():
            tools = (tool(), tool("read")) if uses else ()
            yield f"{talk}, {system}", Asked((*before, *turns), tools)
        if uses:
            yield f"{talk}, tools gone", Asked(turns)
    hi = said("user", "Hi")
    late = said("system", "Be short")
    yield "system between", Asked((hi, said("assistant", "Hello"), late, said("user", "More")))
    yield "system last", Asked((hi, late))
    yield "only a system", Asked((late,))
    for choice in ("auto", "none", "required", "look"):
        yield f"tool choice {choice}", Asked((hi,), (tool(), tool("read")), choice)
    for what, schema in _odd_schemas():
        yield f"tool: {what}", Asked((hi,), (tool(schema=schema),))
        yield f"strict tool: {what}", Asked((hi,), (tool(schema=schema, strict=True),))
        yield f"answer: {what}", Asked((hi,), schema=schema)
    yield "tool without a schema", Asked((hi,), (Tool("look", w("Looks"), None),))
    yield "forty tools", Asked((hi,), tuple(tool(f"tool_{at}") for at in range(40)))
    yield "a form, and tools", Asked((hi,), (tool(),), schema=_properties())
    for think in ("low", "medium", "high", True, False):
        yield f"think {think}", Asked((hi,), think=think)
        yield f"think {think}, with tools", Asked((hi, *called("look")), (tool(),), think=think)
    yield "stops", Asked((hi,), stops=("\n\n", "END"))
    yield "numbers", Asked((hi,), more={"temperature": 0.5, "top_p": 0.9})
    yield "zero", Asked((hi,), more={"temperature": 0})
    media: dict[str, Part] = {
        "picture": Picture(),
        "sound": Sound(),
        "text file": File("a.txt", "text/plain", w("A file")),
        "PDF": File("a.pdf", "application/pdf", w("A page")),
        "Word document": File("a.docx", DOCX, w("A paragraph")),
    }
    for what, part in media.items():
        yield f"{what}", Asked((said("user", "What is this", part),))
        yield (
            f"{what} before",
            Asked((said("user", part, "What is this"), said("assistant", "That"), said("user", "Sure"))),
        )
        yield f"{what} alone", Asked((said("user", part),))
        found = called("look")
        yield f"{what} in a result", Asked((hi, found[0], Result("abcdefgh1", (Text(w("See")), part))), (tool(),))
    for what, text in {
        "quotes": '"a" \\ {b}',
        "marks of a template": "{{ x }} {% if %} <|im_end|>",
        "letters": "h\u00e9 \u4f60\u597d \U0001f999",
        "lines": "a\n\n\tb\r\n",
        "a null": "a\0b",
        "much": "word " * 90,
    }.items():
        yield f"text of {what}", Asked((said("user", f"{text} "),))


REQUESTS: Mapping[str, Asked] = dict(_requests())
