"""The keys of the schema: which there are, and which one an unknown key was meant to be."""

from __future__ import annotations

from functools import cache
from itertools import takewhile

import msgspec.inspect as mi

from appliance.core.config.types import Config
from appliance.core.words import fold, near

ANY = "<id>"
"""Stands in a pattern for a key that the user chooses: ``models.<id>.ttl``."""


@cache
def root() -> mi.StructType:
    """The type of a whole configuration."""
    info = mi.type_info(Config)
    assert isinstance(info, mi.StructType)
    return info


def advice(key: str, info: mi.StructType, pattern: str) -> str:
    """Return advice about a key that ``info``, the type at ``pattern``, does not have.

    The same key but for its spelling comes first, then the same key elsewhere, then one that looks like it.
    """
    meant = near(key, (field.encode_name for field in info.fields))
    if meant is None or fold(meant) != fold(key):
        here = join(pattern, key).split(".")
        homes = [home.split(".") for home in _homes().get(fold(key), ())]
        if homes:
            return f"its place is {'.'.join(max(homes, key=lambda home: (_shared(home, here), -len(home))))}"
    return f"did you mean '{meant}'?" if meant else "'llama-appliance config schema' lists the keys there are"


def bare(kind: mi.Type) -> mi.Type:
    """A type without its description, and without the None of a key that may be absent."""
    if isinstance(kind, mi.Metadata):
        return bare(kind.type)
    if isinstance(kind, mi.UnionType):
        rest = [each for each in kind.types if not isinstance(each, mi.NoneType)]
        if len(rest) == 1 and not isinstance(bare(rest[0]), mi.StrType):
            return bare(rest[0])
    return kind


def join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


@cache
def _homes() -> dict[str, list[str]]:
    """Every key of the schema, folded, to the patterns of the places where it means something."""
    homes: dict[str, list[str]] = {}

    def visit(kind: mi.Type, pattern: str) -> None:
        match bare(kind):
            case mi.StructType(fields=fields):
                for field in fields:
                    here = join(pattern, field.encode_name)
                    homes.setdefault(fold(field.encode_name), []).append(here)
                    visit(field.type, here)
            case mi.DictType(value_type=item):
                visit(item, join(pattern, ANY))
            case _:
                pass

    visit(root(), "")
    return homes


def _shared(home: list[str], here: list[str]) -> int:
    """How many steps two ways have in common."""
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(home, here, strict=False))))
