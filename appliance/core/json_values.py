"""JSON as Python values, for the few modules that look into all of a text."""

from __future__ import annotations

from typing import cast

import msgspec

JSON = None | bool | int | float | str | list["JSON"] | dict[str, "JSON"]
JsonObject = dict[str, JSON]

# A cast, because msgspec cannot follow a type that refers to itself; what it decodes untyped is of this type.
OBJECT = cast("msgspec.json.Decoder[JsonObject]", msgspec.json.Decoder(dict[str, object]))
"""Decodes an object; raises MsgspecError and UnicodeDecodeError for anything else, RecursionError."""
