"""Checks whether the arguments of a call are an object that fits the tool's JSON schema. Fetches nothing; work is
bounded.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, cast

import msgspec

if TYPE_CHECKING:
    from appliance.core.bodies.json_text import JsonObject
    from appliance.core.bodies.schema_keywords import Bounded

MAX_ARGUMENTS = 8 << 20
"""Bytes of one call's arguments; the largest are files to be written."""
MAX_DEPTH = 64
"""Nested arrays and objects, in arguments and in schemas."""
_MAX_TOLD = 300
"""Characters of the package's text about a mistake: it begins with the value, and ends with the mistake."""

_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_AS_ARRAYS = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_TOO_DEEP = f"nested deeper than {MAX_DEPTH} levels"


class NotAnObject(ValueError):
    """JSON text that is not an object, not JSON, or too long; the message continues after "they are"."""


def schema_problem(parameters: bytes) -> str | None:
    """Return why this cannot be the schema of a tool's arguments, or None."""
    try:
        schema = _read_object(parameters)
    except NotAnObject as error:
        return f"it is {error}"
    # jsonschema: most programs never call a tool
    from appliance.core.bodies.schema_keywords import SchemaUnusable, mistake_of_schema

    try:
        mistake = mistake_of_schema(schema)
    except SchemaUnusable as error:
        return f"it {error}"
    except RecursionError:
        return f"it is {_TOO_DEEP}"
    return None if mistake is None else _described(mistake.message, mistake.json_path)


class ArgumentCheck:
    """Checks arguments against one schema. An MCP server's schema may be unusable: then no arguments pass."""

    def __init__(self, parameters: bytes) -> None:
        self._parameters = parameters
        self._schema: Bounded | None = None

    def problem(self, arguments: str) -> str | None:
        """Return the mistake in the arguments, a JSON text; None if there is none."""
        from appliance.core.bodies.schema_keywords import Bounded, SchemaUnusable

        try:
            value = _read_object(arguments.encode(errors="replace"))
        except NotAnObject as error:
            return f"they are {error}"
        if self._schema is None:
            if wrong := schema_problem(self._parameters):
                return f"the tool's own schema is invalid: {wrong}"
            self._schema = Bounded(_read_object(self._parameters))
        try:
            mistake = self._schema.mistake(value)
        except SchemaUnusable as error:
            return f"the tool's schema {_short(str(error))}"
        return None if mistake is None else _described(mistake.message, mistake.json_path)


def nests_deeper(text: bytes, levels: int) -> bool:
    """True if valid JSON nests arrays and objects deeper than ``levels``."""
    brackets = _STRING.sub(b"", text).translate(_AS_ARRAYS, _NO_BRACKETS)
    for _ in range(levels):
        if not brackets:
            return False
        brackets = brackets.replace(b"[]", b"")
    return bool(brackets)


def _read_object(raw: bytes) -> JsonObject:
    """Parse the arguments. Raises NotAnObject."""
    if len(raw) > MAX_ARGUMENTS:
        raise NotAnObject(f"{len(raw)} bytes long, more than {MAX_ARGUMENTS}")
    try:
        value: object = msgspec.json.decode(raw)
    except RecursionError:
        raise NotAnObject(_TOO_DEEP) from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise NotAnObject(f"not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise NotAnObject("not a JSON object")
    if nests_deeper(raw, MAX_DEPTH):
        raise NotAnObject(_TOO_DEEP)
    return cast("JsonObject", value)  # what JSON decodes to


def _described(message: str, path: str) -> str:
    place = path.removeprefix("$").removeprefix(".")
    return f"{place}: {_short(message)}" if place else _short(message)


def _short(text: str) -> str:
    return text if len(text) <= _MAX_TOLD else f"{text[: _MAX_TOLD // 2]} … {text[-_MAX_TOLD // 2 :]}"
