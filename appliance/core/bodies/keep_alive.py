"""The time that a model is to stay after a request: a client's wish, in the words of Ollama, which others use."""

from __future__ import annotations

import math
import re

from appliance.core.bodies.json_text import JSON
from appliance.core.config.scalars import parse_duration

FOR_EVER = math.inf
"""Seconds of a model that is kept until something else needs its place."""
_NUMBER = re.compile(r"-?\d{1,15}(?:\.\d*)?", re.ASCII)
_KINDS: dict[type, str] = {
    bool: "true or false",
    str: "a string",
    list: "an array",
    dict: "an object",
    type(None): "null",
}


def kind_of(value: object) -> str:
    """Return the name of a value's type in JSON."""
    return _KINDS.get(type(value), "a number")


def seconds_of(value: JSON) -> float | None:
    """Return seconds, infinity for a negative number, None for what leaves the model as it is. Raises ValueError."""
    match value:
        case None:
            return None
        case bool() | list() | dict():
            raise ValueError(
                f"'keep_alive' must be a number of seconds or a duration such as \"5m\", not {kind_of(value)}"
            )
        case str():
            if (seconds := parse_duration(value)) is None:
                raise ValueError(f'time: invalid duration "{value}"; write it with a unit, as in "5m", or as a number')
            return FOR_EVER if seconds < 0 else seconds
        case _:
            return FOR_EVER if value < 0 else float(value)


def seconds_in(header: str) -> float | None:
    """The same for a header, where a number is text too. Raises ValueError."""
    text = header.strip()
    if _NUMBER.fullmatch(text):
        return seconds_of(float(text))
    return seconds_of(text) if text else None
