"""One edit of JSON text by the path as a user writes it."""

from __future__ import annotations

from appliance.core.bodies.json_text import JsonEdit, apply_edits, parse_path


def set_path(text: bytes, path: str, value: bytes) -> bytes:
    """Set one value; a path that cannot be used changes nothing."""
    parsed = parse_path(path)
    return text if parsed is None else apply_edits(text, (JsonEdit(parsed, value),))


def delete_path(text: bytes, path: str) -> bytes:
    parsed = parse_path(path)
    return text if parsed is None else apply_edits(text, (JsonEdit(parsed),))
