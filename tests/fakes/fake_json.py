"""JSON values of unknown shape, looked at one step at a time."""

from __future__ import annotations

import json

Json = dict[str, object]


def encode(value: object) -> bytes:
    """Compact, as llama-server writes it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def as_object(value: object) -> Json:
    """The object itself, or an empty one for anything else."""
    return value if isinstance(value, dict) else {}  # pyright: ignore[reportUnknownVariableType]


def as_array(value: object) -> list[object]:
    return value if isinstance(value, list) else []  # pyright: ignore[reportUnknownVariableType]


def text_of(value: object) -> str:
    """All text within a prompt, a message or a list of messages, in order."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        fields = as_object(value)  # pyright: ignore[reportUnknownArgumentType]
        return text_of(fields.get("content", fields.get("text")))
    return "".join(text_of(part) for part in as_array(value))
