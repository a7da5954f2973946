"""The questions before a start: which model, whether it calls tools, and whether its context is long enough. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from appliance.core.near_names import meant_or_all
from appliance.core.openai import ChatCompletion
from appliance.errors import UsageError
from appliance.features.launch.core.clients import Client

TOOL = "read_file"
PATH = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
FUNCTION = {"name": TOOL, "description": "Reads a file and returns its contents.", "parameters": PATH}
QUESTION: dict[str, object] = {
    "messages": [{"role": "user", "content": f"Call the tool {TOOL} to read the file notes.txt. Say nothing else."}],
    "tools": [{"type": "function", "function": FUNCTION}],
    "max_tokens": 2048,  # a model may think first
    "temperature": 0,
}
"""A chat without its model. Nothing but the words makes the model call the tool, as it is with clients."""


class OfferedModel(Struct, frozen=True, kw_only=True):
    """One model of ``GET /models``. ``context_length`` is that of one request, 0 if the server does not know it."""

    id: str
    aliases: tuple[str, ...] = ()
    context_length: int = 0


class OfferedModels(Struct, frozen=True):
    """``GET /models``."""

    data: tuple[OfferedModel, ...]


class ClientsAddress(Struct, frozen=True):
    """``GET /api/launch``: the URL that clients on the server's machine use; empty if it listens on files alone."""

    url: str


def calls_tool(answer: ChatCompletion | None) -> bool:
    """Return whether the answer to `QUESTION` is a call of its tool."""
    calls = [call for choice in (answer and answer.choices) or () for call in choice.said.tool_calls or ()]
    return any(call.function.name == TOOL for call in calls)


def chosen(models: Sequence[OfferedModel], wanted: str | None) -> OfferedModel | None:
    """Return the model to use, or None if somebody has to choose. Raises UsageError."""
    if wanted is not None:
        found = next((model for model in models if wanted in (model.id, *model.aliases)), None)
        if found is None:
            known = [model.id for model in models]
            raise UsageError(f"the server has no model {wanted!r}{meant_or_all(wanted, known)}")
        return found
    if not models:
        raise UsageError("the server has no model; 'llama-appliance pull REPO' downloads one")
    return models[0] if len(models) == 1 else None


def refuse_short(client: Client, model: OfferedModel) -> None:
    """Raises UsageError with the fix if the model's context is known and too short for the client."""
    if 0 < model.context_length < client.least:
        raise UsageError(
            f"{model.id} has a context of {model.context_length} tokens, and {client.title} needs {client.least} for "
            f"its own prompt and tools: start the server with 'llama-appliance serve -- --ctx-size {client.least}'"
        )
