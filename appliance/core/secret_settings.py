"""Secrets among named values: which names promise one, and values without it.

No rule finds every secret. A secret under an innocent name is shown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import cast

from appliance.core.bodies.json_text import JSON
from appliance.core.records.captures import REDACTED

SECRET_WORDS = (
    "KEY",
    "TOKEN",
    "SECRET",
    "PASSWORD",
    "PASSWD",
    "PASSPHRASE",
    "CREDENTIAL",
    "_PASS",
    "_PAT",
    "AUTH",
    "AUTHORIZATION",
)
_COUNTED = "TOKEN"
"""A number under such a name is a count, as in ``answer_tokens``."""
_LOGIN = re.compile(r"(?<=://)[^/?#\s]+(?=@)")
"""The user and password of an address."""


def without_secret_values(values: Mapping[str, object]) -> dict[str, object]:
    """Return the values, JSON by name, with `REDACTED` for what a name of `SECRET_WORDS` holds, at any depth, and for
    the logins in addresses. Switches, nulls and empty values are not secrets.
    """
    return {name: _shown(cast("JSON", value), name) for name, value in values.items()}


def _shown(value: JSON, name: str) -> JSON:
    if not value or isinstance(value, bool):
        return value
    counted = isinstance(value, int | float)
    if any(word in name.upper() for word in SECRET_WORDS if not (counted and word == _COUNTED)):
        return REDACTED
    if isinstance(value, dict):
        return {inner: _shown(each, inner) for inner, each in value.items()}
    if isinstance(value, list):
        return [_shown(each, name) for each in value]
    return _LOGIN.sub(REDACTED, value) if isinstance(value, str) else value
