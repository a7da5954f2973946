"""The bodies of requests that edit a configuration."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

Setting = str | int | float | bool | list[str] | None  # a value of a form; None takes the key out


class FieldEdit(Struct, frozen=True):
    """Another value for one key; null takes the key out."""

    path: Annotated[list[str], Meta(min_length=1)]
    value: Setting


class ConfigCheck(Struct, frozen=True, forbid_unknown_fields=True):
    """Body of ``POST /api/config/check``: a text, without one the file's, and values of a form that are put into it."""

    file: str | None = None
    text: str | None = None
    set: tuple[FieldEdit, ...] = ()


class ConfigEdit(Struct, frozen=True, forbid_unknown_fields=True):
    """Body of ``PUT /api/config``. ``version`` is that of the file on which the edit was begun."""

    text: str
    version: str
    file: str | None = None
