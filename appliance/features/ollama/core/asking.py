"""Ollama's requests in llama-server's words: names, options, messages, pictures, formats, and what is wrong with them.

Source: Ollama 0.34 (``api/types.go``, ``server/routes.go``). An option that the request does not set is not sent, so
that the model's own sampling applies and not Ollama's built-in one.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec
from msgspec import Struct

from appliance.core.bodies.head import EXTENSION
from appliance.core.bodies.json_text import JSON, OBJECT, JsonObject
from appliance.core.bodies.keep_alive import kind_of, seconds_of
from appliance.core.lenient_json import UNREADABLE
from appliance.core.models.names import LATEST

T = TypeVar("T", str, bool, JsonObject)
_PART = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}"
_NAME = re.compile(
    rf"(?:[A-Za-z0-9_][A-Za-z0-9_.:-]{{0,349}}/)?(?:[A-Za-z0-9_][A-Za-z0-9_-]{{0,79}}/)?{_PART}(?::{_PART})?"
)
_CLOUD = (":cloud", "-cloud")
LEVELS = ("low", "medium", "high", "max")
MAX_TOP_LOGPROBS = 20
_LOADING = ("num_ctx", "num_batch", "num_gpu", "main_gpu", "num_thread", "draft_num_predict", "use_mmap")
"""Options of a start. They never restart an engine, so only their types are checked."""
_OPTIONS = {
    **dict.fromkeys((*_LOADING, "num_predict", "num_keep", "seed", "top_k", "repeat_last_n", "mirostat"), "integer"),
    **dict.fromkeys(("temperature", "top_p", "min_p", "typical_p", "mirostat_tau", "mirostat_eta"), "float32"),
    **dict.fromkeys(("repeat_penalty", "presence_penalty", "frequency_penalty"), "float32"),
    "stop": "array",
    "use_mmap": "boolean",
}
"""The type of each option, in Ollama's words."""
_OF_PROMPTS = ("prompt", "suffix", "images", "system", "raw", "context")
_MEMBERS = frozenset(
    (
        "model", "name", "messages", "tools", "stream", "format", "options", "keep_alive", "think", "truncate",
        "template", "logprobs", "top_logprobs", "_debug_render_only", EXTENSION, *_OF_PROMPTS,
    )
)  # fmt: skip
_OF_MESSAGES = frozenset(("role", "content", "thinking", "images", "tool_calls", "tool_name", "tool_call_id"))
_RENAMED = {"num_predict": "max_tokens", "num_keep": "n_keep"}
"""llama-server's names for these; it has Ollama's for all others."""
_AUDIO = {b"RIFF": "wav", b"ID3": "mp3", b"\xff\xfb": "mp3", b"\xff\xf3": "mp3", b"\xff\xf2": "mp3"}
_PICTURES = {b"\x89PNG": "png", b"\xff\xd8": "jpeg", b"GIF8": "gif", b"RIFF": "webp", b"BM": "bmp"}


class OllamaRefusal(Exception):
    """The request cannot be answered: its status, and the text that Ollama's clients know."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


def shown_name(model_id: str) -> str:
    """Return the name of a model in lists: with a tag, which is what follows a colon behind the last slash."""
    return model_id if ":" in model_id.rpartition("/")[2] else f"{model_id}{LATEST}"


def is_expressible(name: str) -> bool:
    """True for a name that Ollama's own rules allow."""
    return _NAME.fullmatch(name) is not None


def is_cloud(name: str) -> bool:
    """True for a model that Ollama would run on its own servers."""
    return name.lower().endswith(_CLOUD) and ":" in name


def read_body(body: bytes) -> JsonObject:
    """Return the members of a request by their names in lower case, as Ollama reads them. Raises OllamaRefusal."""
    if not body or body.isspace():
        raise OllamaRefusal(400, "missing request body")
    try:
        members = OBJECT.decode(body)
    except UNREADABLE as error:
        raise OllamaRefusal(400, f"the request body is not a JSON object: {error}") from None
    return {name.lower(): value for name, value in members.items()}


def member_of(members: JsonObject, name: str, otherwise: T) -> T:
    """Return a member, or ``otherwise`` where it is absent or null. Raises OllamaRefusal if it is of another type."""
    value = members.get(name)
    if value is None:
        return otherwise
    if not isinstance(value, type(otherwise)):
        raise OllamaRefusal(400, f"'{name}' must be {kind_of(otherwise)}, not {kind_of(value)}")
    return value


def model_of(members: JsonObject) -> str:
    """Return the model's name, which older clients call ``name``; empty where there is none."""
    return member_of(members, "model", "") or member_of(members, "name", "")


def keep_alive_of(value: JSON) -> float | None:
    """As `appliance.core.bodies.keep_alive.seconds_of`. Raises OllamaRefusal."""
    try:
        return seconds_of(value)
    except ValueError as error:
        raise OllamaRefusal(400, str(error)) from None


def sampling_of(options: Mapping[str, JSON]) -> JsonObject:
    """Return what the options are for llama-server. Unknown ones are ignored. Raises OllamaRefusal for a wrong type.

    A negative ``num_predict`` means no limit, which llama-server has anyway.
    """
    given = {name: value for name, value in options.items() if name in _OPTIONS and value is not None}
    checked = {name: _checked(name, _OPTIONS[name], value) for name, value in given.items()}
    if isinstance(most := checked.get("num_predict"), int) and most < 0:
        del checked["num_predict"]
    return {_RENAMED.get(name, name): value for name, value in checked.items() if name not in _LOADING}


def unheeded(asked: OllamaRequest) -> tuple[str, ...]:
    """Return the parts of a request that have no effect, by their names; as the client may have written these."""
    names = [name for name, value in asked.members.items() if name not in _MEMBERS and value is not None]
    heeded = _OPTIONS.keys() - _LOADING
    names += [f"options.{name}" for name, value in asked.options.items() if name not in heeded and value is not None]
    messages = asked.members.get("messages")
    for message in messages if isinstance(messages, list) else ():
        given = message if isinstance(message, dict) else {}
        names += [f"messages.{name}" for name, value in given.items() if name not in _OF_MESSAGES and value is not None]
    return tuple(dict.fromkeys(names))


def context_of(options: Mapping[str, JSON]) -> int | None:
    """Return ``num_ctx``, None where it is absent or asks for nothing."""
    value = options.get("num_ctx")
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else None


def _checked(name: str, kind: str, value: JSON) -> JSON:
    match kind, value:
        case "integer", int() | float() if not isinstance(value, bool) and abs(value) < 1 << 62:
            return int(value)
        case "float32", int() | float() if not isinstance(value, bool):
            return value
        case "boolean", bool():
            return value
        case "array", str():
            return [value]
        case "array", list() if all(isinstance(one, str) for one in value):
            return value
        case _:
            raise OllamaRefusal(500, f'option "{name}" must be of type {kind}')


class DerivedPreset(Struct, frozen=True, kw_only=True):
    """The additions of a derived model to the one that it is made from."""

    system: str = ""
    parameters: dict[str, JSON] = {}
    messages: tuple[dict[str, JSON], ...] = ()


PLAIN = DerivedPreset()


class OllamaRequest(Struct, frozen=True):
    """The members that chat and generate have in common, checked."""

    name: str  # as the request has it
    members: JsonObject
    streams: bool
    keep_alive: float | None
    options: JsonObject
    think: bool | str | None
    logprobs: JsonObject  # llama-server's members for log probabilities
    response_format: JsonObject | None


def read_asked(body: bytes) -> OllamaRequest:
    """Raises OllamaRefusal, in the order in which Ollama checks."""
    members = read_body(body)
    top = members.get("top_logprobs")
    if top is not None and not (isinstance(top, int) and not isinstance(top, bool) and 0 <= top <= MAX_TOP_LOGPROBS):
        raise OllamaRefusal(400, f"top_logprobs must be between 0 and {MAX_TOP_LOGPROBS}")
    if member_of(members, "_debug_render_only", False):
        raise OllamaRefusal(501, "_debug_render_only is not supported; POST /apply-template shows the rendered prompt")
    if member_of(members, "template", ""):
        raise OllamaRefusal(501, "templates of Go are not supported; the model's own chat template is used")
    logprobs: JsonObject = {"logprobs": True, "top_logprobs": top or 0} if member_of(members, "logprobs", False) else {}
    name, streams = model_of(members), member_of(members, "stream", True)
    keep_alive, options = keep_alive_of(members.get("keep_alive")), member_of(members, "options", JsonObject())
    think = members.get("think")
    if not (think is None or isinstance(think, bool) or (isinstance(think, str) and think in LEVELS)):
        told = f'invalid think value: {_shown(think)} (must be "high", "medium", "low", "max", true, or false)'
        raise OllamaRefusal(400, told)
    response_format = _format(members.get("format"))
    return OllamaRequest(name, members, streams, keep_alive, options, think, logprobs, response_format)


def _format(value: JSON) -> JsonObject | None:
    match value:
        case None | "":
            return None
        case "json":
            return {"type": "json_object"}
        case dict():
            return {"type": "json_schema", "json_schema": {"name": "schema", "schema": value}}
        case _:
            told = f'invalid format: {_shown(value)}; expected "json" or a valid JSON Schema object'
            raise OllamaRefusal(500, told)


def _shown(value: JSON) -> str:
    return msgspec.json.encode(value).decode()


def has_prompt(asked: OllamaRequest, *, chat: bool) -> bool:
    """False for a request that only loads or unloads its model."""
    if chat:
        return bool(asked.members.get("messages"))
    return any(asked.members.get(name) for name in ("prompt", "suffix", "images"))


def chat_body(asked: OllamaRequest, model: str, preset: DerivedPreset, *, thinks: bool) -> bytes:
    """Return the body for ``/v1/chat/completions``. ``thinks``: the model can. Raises OllamaRefusal."""
    given = asked.members.get("messages")
    if not isinstance(given, list):
        raise OllamaRefusal(400, f"'messages' must be an array, not {kind_of(given)}")
    messages = [_object(message, "a message") for message in given]
    return _chat(asked, model, preset, messages, thinks=thinks)


def prompt_body(asked: OllamaRequest, model: str, preset: DerivedPreset, *, thinks: bool) -> bytes:
    """Return the same for the prompt of ``/api/generate``, which is one message of the user. Raises OllamaRefusal."""
    if asked.members.get("context"):
        raise OllamaRefusal(501, "'context' is not supported; send the conversation as messages to /api/chat")
    message: JsonObject = {"role": "user", "content": member_of(asked.members, "prompt", "")}
    if images := asked.members.get("images"):
        message["images"] = images
    system = member_of(asked.members, "system", "")
    before: list[JsonObject] = [{"role": "system", "content": system}] if system else []
    return _chat(asked, model, preset, [*before, message], thinks=thinks)


def raw_body(asked: OllamaRequest, model: str, preset: DerivedPreset) -> bytes:
    """Return the body for ``/v1/completions``: the prompt as it is. Raises OllamaRefusal."""
    for name in ("template", "system", "context"):
        if asked.members.get(name):
            raise OllamaRefusal(400, "raw mode does not support template, system, or context")
    if asked.members.get("images"):
        raise OllamaRefusal(501, "images in raw mode are not supported; leave out raw, or use /api/chat")
    sent: JsonObject = {"model": model, "prompt": member_of(asked.members, "prompt", "")}
    sent |= _common(asked, preset)
    if "top_logprobs" in sent:  # here one number says both
        sent["logprobs"] = sent.pop("top_logprobs") or 1
    return msgspec.json.encode(sent)


def infill_body(asked: OllamaRequest, model: str, preset: DerivedPreset) -> bytes:
    """Return the body for ``/infill``. Raises OllamaRefusal."""
    before, behind = member_of(asked.members, "prompt", ""), member_of(asked.members, "suffix", "")
    sent: JsonObject = {"model": model, "input_prefix": before, "input_suffix": behind}
    sent |= {name: value for name, value in _common(asked, preset).items() if name != "stream_options"}
    if "max_tokens" in sent:
        sent["n_predict"] = sent.pop("max_tokens")
    if sent.pop("logprobs", None):
        sent["n_probs"] = sent.pop("top_logprobs", None) or 1
    return msgspec.json.encode(sent)


def _common(asked: OllamaRequest, preset: DerivedPreset) -> JsonObject:
    sent: JsonObject = {"stream": asked.streams}
    if asked.streams:
        sent["stream_options"] = {"include_usage": True}
    sent |= sampling_of({**preset.parameters, **asked.options}) | asked.logprobs
    if asked.response_format is not None:
        sent["response_format"] = asked.response_format
    return sent


def _chat(asked: OllamaRequest, model: str, preset: DerivedPreset, given: list[JsonObject], *, thinks: bool) -> bytes:
    messages = [*preset.messages, *given]
    if preset.system and not (messages and messages[0].get("role") == "system"):
        messages.insert(0, {"role": "system", "content": preset.system})
    sent: JsonObject = {"model": model, "messages": list(_messages(messages))}
    if tools := asked.members.get("tools"):
        sent["tools"] = tools
    sent |= _common(asked, preset)
    if thinks or asked.think:
        kwargs: JsonObject = {"enable_thinking": asked.think is not False}
        if isinstance(asked.think, str):
            kwargs["reasoning_effort"] = asked.think
        sent["chat_template_kwargs"] = kwargs
    return msgspec.json.encode(sent)


def _messages(given: Sequence[JsonObject]) -> list[JsonObject]:
    """Turn messages into OpenAI's. A result without the id of its call belongs to the oldest call without a result."""
    sent: list[JsonObject] = []
    open_calls: list[tuple[str, JSON]] = []  # id and name of each, in order
    for message in given:
        role = str(message.get("role") or "").lower()
        one: JsonObject = {"role": role, "content": _content(message)}
        if message.get("thinking"):
            one["reasoning_content"] = message["thinking"]
        if calls := message.get("tool_calls"):
            named = _calls(calls, len(sent))
            one["tool_calls"] = [call for call, _, _ in named]
            open_calls += [(call_id, name) for _, call_id, name in named]
        if role == "tool":
            name, call_id = message.get("tool_name"), message.get("tool_call_id")
            if not call_id:
                same = [call for call in open_calls if name and call[1] == name] or open_calls
                call_id = same[0][0] if same else None
            open_calls = [call for call in open_calls if call[0] != call_id]
            one |= {"name": name} if name else {}
            one |= {"tool_call_id": call_id} if call_id else {}
        sent.append(one)
    return sent


def _content(message: JsonObject) -> JSON:
    text, images = message.get("content"), message.get("images")
    text = "" if text is None else text
    if not images:
        return text
    if not isinstance(images, list):
        raise OllamaRefusal(400, f"'images' must be an array, not {kind_of(images)}")
    parts: list[JSON] = list(text) if isinstance(text, list) else [{"type": "text", "text": text}] if text else []
    return [*parts, *map(_medium, images)]


def _medium(given: JSON) -> JsonObject:
    """Return a part of a message for a picture or a sound; its content says which of them it is."""
    if not isinstance(given, str):
        raise OllamaRefusal(400, f"'images' must hold strings of base64, not {kind_of(given)}")
    data = given.partition(",")[2] if given.startswith("data:") else given
    try:
        head = base64.b64decode(data[:64], validate=True)
        if len(data) % 4:
            raise binascii.Error
    except (binascii.Error, ValueError):
        told = "illegal base64 data in images; send the bytes of the file in base64, with its padding"
        raise OllamaRefusal(400, told) from None
    if head[:4] != b"RIFF" or head[8:12] == b"WAVE":
        for mark, kind in _AUDIO.items():
            if head.startswith(mark):
                return {"type": "input_audio", "input_audio": {"data": data, "format": kind}}
    picture = next((kind for mark, kind in _PICTURES.items() if head.startswith(mark)), "png")
    return {"type": "image_url", "image_url": {"url": f"data:image/{picture};base64,{data}"}}


def _calls(given: JSON, place: int) -> list[tuple[JsonObject, str, JSON]]:
    """Return each call in OpenAI's form, with its id and its tool's name."""
    if not isinstance(given, list):
        raise OllamaRefusal(400, f"'tool_calls' must be an array, not {kind_of(given)}")
    made: list[tuple[JsonObject, str, JSON]] = []
    for number, one in enumerate(given):
        call = _object(one, "a call of a tool")
        function = _object(call.get("function"), "the function of a call")
        arguments, name = function.get("arguments"), function.get("name")
        text = arguments if isinstance(arguments, str) else _shown(arguments or {})
        call_id = str(call.get("id") or f"call_{place}_{number}")
        told: JsonObject = {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}
        made.append((told, call_id, name))
    return made


def _object(value: JSON, what: str) -> JsonObject:
    if not isinstance(value, dict):
        raise OllamaRefusal(400, f"{what} must be an object, not {kind_of(value)}")
    return value
