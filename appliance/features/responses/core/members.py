"""The members of OpenAI's Responses API, and what becomes of each. docs/dialects.md has the tables made from these.

Source: the types of OpenAI's own client, 3.52. A member that is null counts as absent. What is in no table is a member
of llama-server's own, and passes on as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec
from msgspec import Struct

from appliance.core.bodies.json_text import JSON, JsonObject
from appliance.core.bodies.keep_alive import kind_of
from appliance.errors import BadRequest

Treatment = Literal["used", "echoed", "ignored", "refused"]
"""``echoed``: it changes nothing here, and the answer repeats it. ``ignored``: told in ``X-Appliance-Ignored``."""


class KnownMember(Struct, frozen=True):
    """``kinds`` are the types that it may have. ``words`` say what becomes of it."""

    treatment: Treatment
    kinds: tuple[type, ...]
    words: str = ""


TRUTH, _WHOLE, _NUMBER, _TEXT, _OBJECT, _LIST = (bool,), (int,), (int, float), (str,), (dict,), (list,)
_NO_STATE = "nothing is stored here; send the whole conversation as `input`"

MEMBERS: Mapping[str, KnownMember] = {
    "model": KnownMember("used", _TEXT),
    "input": KnownMember("used", (str, list), "see the items below"),
    "instructions": KnownMember("used", (str, list), "the first system message"),
    "tools": KnownMember("used", _LIST, "see the tools below"),
    "tool_choice": KnownMember(
        "used",
        (str, dict),
        "`none`, `auto`, `required`, one function or custom tool, `allowed_tools`; the other tools are ignored then. A "
        "tool that is ignored is refused",
    ),
    "parallel_tool_calls": KnownMember("used", TRUTH),
    "text": KnownMember("used", _OBJECT, "`format`: `text`, `json_object`, `json_schema`; `verbosity` is ignored"),
    "reasoning": KnownMember(
        "used", _OBJECT, "`effort`; with `summary` the reasoning itself comes as the summary; others are ignored"
    ),
    "max_output_tokens": KnownMember("used", _WHOLE, "-1 means no limit"),
    "temperature": KnownMember("used", _NUMBER),
    "top_p": KnownMember("used", _NUMBER),
    "top_logprobs": KnownMember("used", _WHOLE, "not together with tools in a stream"),
    "include": KnownMember(
        "used",
        _LIST,
        "`message.output_text.logprobs`; `reasoning.encrypted_content`: the reasoning in base64, "
        "which is read when it is sent back; others ask for nothing that is here",
    ),
    "stream": KnownMember("used", TRUTH),
    "metadata": KnownMember("echoed", _OBJECT),
    "user": KnownMember("echoed", _TEXT),
    "safety_identifier": KnownMember("echoed", _TEXT),
    "prompt_cache_key": KnownMember("echoed", _TEXT, "it also says which conversation a request belongs to"),
    "store": KnownMember(
        "echoed",
        TRUTH,
        "as `false`: no response is stored. Unless it is `false`, the last items of all clients are kept in memory, "
        "4 MiB of them, for an `item_reference`",
    ),
    "service_tier": KnownMember("echoed", _TEXT, "as `default`"),
    "truncation": KnownMember("echoed", _TEXT, "as `disabled`: a prompt that is too long is refused"),
    "background": KnownMember(
        "refused", TRUTH, "unless it is `false`: the answer comes on the request's own connection"
    ),
    "previous_response_id": KnownMember("refused", _TEXT, f"unless it is empty, or in a websocket: {_NO_STATE}"),
    "conversation": KnownMember("refused", (str, dict), _NO_STATE),
    "prompt": KnownMember("refused", _OBJECT, "no prompt is stored here; send its text as `instructions`"),
    "max_tool_calls": KnownMember("ignored", _WHOLE, "it bounds the tools that OpenAI runs itself"),
    "prompt_cache_retention": KnownMember("ignored", _TEXT),
    "context_management": KnownMember("ignored", _LIST),
    "personality": KnownMember("ignored", (str, dict)),
    "client_metadata": KnownMember("ignored", _OBJECT),
    **dict.fromkeys(
        ("stream_options", "prompt_cache_options", "moderation", "access_programs", "image"),
        KnownMember("ignored", _OBJECT),
    ),
}
ITEMS: Mapping[str, tuple[str, str]] = {
    "message": ("used", "also without `type`; roles `user`, `assistant`, `system`, `developer`"),
    "function_call": ("used", "the call of a tool by the assistant, in the message that is open"),
    "function_call_output": ("used", "text, or parts with pictures"),
    "custom_tool_call": ("used", "a call whose one argument is `input`"),
    "custom_tool_call_output": ("used", "as `function_call_output`"),
    "reasoning": ("used", "its content, else its summary, else this program's own `encrypted_content`"),
    **dict.fromkeys(
        ("local_shell_call", "shell_call", "apply_patch_call", "computer_call", "local_shell_call_output",
         "shell_call_output", "apply_patch_call_output"),
        ("kept", ""),
    ),
    "computer_call_output": ("kept", "the screenshot as a picture"),
    "mcp_call": ("kept", "with its output"),
    "code_interpreter_call": ("kept", "with its outputs"),
    "file_search_call": ("kept", "with its results"),
    **dict.fromkeys(
        ("web_search_call", "image_generation_call", "mcp_list_tools", "mcp_approval_request", "mcp_approval_response",
         "tool_search_call", "tool_search_output", "additional_tools", "configuration_update", "compaction_trigger",
         "program", "program_output"),
        ("ignored", ""),
    ),
    "compaction": ("ignored", "its text is encrypted by OpenAI"),
    "item_reference": ("used", "the item, while it is kept (see `store`), else refused: send the item itself"),
}  # fmt: skip
"""``kept``: as the call of a tool with the item's name, or as its result, for the model to read."""
PARTS: Mapping[str, tuple[str, str]] = {
    "input_text": ("used", "also `output_text`, `text`, `summary_text`, `reasoning_text`"),
    "refusal": ("used", "as text"),
    "input_image": ("used", "`image_url`; `file_id` is refused, `detail` is ignored"),
    "input_audio": ("used", ""),
    "input_file": (
        "used",
        "`file_data` of a text file, a PDF or a Word document (.docx), these of at most 16 MiB; `file_id` and "
        "`file_url` are refused",
    ),
}
TOOLS: Mapping[str, tuple[str, str]] = {
    "function": ("used", ""),
    "custom": ("used", "as a function with the argument `input`; the model reads a grammar, which is not enforced"),
    "namespace": ("used", "its tools, with the namespace before their names; its description is ignored"),
}
"""All others are ignored: they would run on OpenAI's servers, or need a model that was trained for them."""


def checked(members: JsonObject) -> JsonObject:
    """Return the members that are not null. Raises BadRequest for one of a wrong type, and for one that is refused."""
    found: JsonObject = {name: value for name, value in members.items() if value is not None}
    for name, value in found.items():
        if (known := MEMBERS.get(name)) is None:
            continue
        check_kind(value, name, known.kinds)
        if known.treatment == "refused" and value:
            raise BadRequest(f"'{name}' is not supported: {known.words.rpartition(': ')[2]}", param=name)
    return found


def check_kind(value: JSON, path: str, kinds: tuple[type, ...]) -> None:
    """Raises BadRequest for a value of another type."""
    if type(value) not in kinds:
        names = " or ".join(dict.fromkeys(kind_of(kind()) for kind in kinds))
        names = "a whole number" if kinds == _WHOLE else names
        raise BadRequest(f"'{path}' must be {names}, not {kind_of(value)}", param=path)


def not_one_of(value: JSON, path: str, names: Iterable[str]) -> BadRequest:
    """Return the error for a value that is not one of these names."""
    shown = msgspec.json.encode(value).decode()[:100]
    return BadRequest(f"'{path}' must be one of {', '.join(names)}, not {shown}", param=path)


def text_of(value: JSON, path: str) -> str:
    """Return a string. Raises BadRequest for anything else."""
    check_kind(value, path, _TEXT)
    return str(value)


def object_of(value: JSON, path: str) -> JsonObject:
    """Return an object. Raises BadRequest for anything else."""
    if isinstance(value, dict):
        return value
    raise BadRequest(f"'{path}' must be an object, not {kind_of(value)}", param=path)


def list_of(value: JSON, path: str) -> list[JSON]:
    """Return an array. Raises BadRequest for anything else."""
    if isinstance(value, list):
        return value
    raise BadRequest(f"'{path}' must be an array, not {kind_of(value)}", param=path)
