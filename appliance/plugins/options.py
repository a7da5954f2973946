"""The ``settings`` of a plugin's config.json as a typed object, with mistakes reported by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, TypeVar

import msgspec

from appliance.core.near_names import meant_or_all
from appliance.plugins import JSON, Refused

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

D = TypeVar("D", bound="DataclassInstance")


def options(settings: Mapping[str, JSON], kind: type[D]) -> D:
    """Return ``settings`` as a dataclass whose fields are the settings, with their defaults; ``object`` is any JSON.

    A ValueError of ``kind`` in ``__post_init__`` counts as a mistake in the settings. Raises Refused.
    """
    known = [field.name for field in fields(kind)]
    for name in settings:
        if name not in known:
            raise Refused(f"unknown setting '{name}'{meant_or_all(name, known)}")
    try:
        return msgspec.convert(dict(settings), kind)
    except (msgspec.ValidationError, ValueError) as error:
        raise Refused(f"wrong settings: {error}") from None
