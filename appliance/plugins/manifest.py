"""A plugin's ``config.json``: its keys, and their mistakes."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct, field

from appliance.core.answers.families import FAMILIES, Family, family_of
from appliance.core.lenient_json import decoded

LARGEST = 1 << 20
"""Largest config.json, in bytes."""
DEFAULT_TIMEOUT = 300.0
"""Seconds for one hook; one that asks a model may have to wait until that is loaded."""
PROMPTS = ", ".join(f"/v1{path}" for path in FAMILIES)


class PluginManifest(Struct, frozen=True, kw_only=True):
    """The content of config.json; every key may be left out. ``end_point`` [] means every route that has a prompt."""

    enabled: bool = True
    description: str = ""
    end_point: str | list[str] = []
    settings: dict[str, object] = field(default_factory=dict[str, object])
    """JSON values."""
    timeout: Annotated[float, Meta(gt=0)] = DEFAULT_TIMEOUT

    @property
    def end_points(self) -> tuple[str, ...]:
        return (self.end_point,) if isinstance(self.end_point, str) else tuple(self.end_point)

    @property
    def families(self) -> frozenset[Family]:
        """The kinds of request that the plugin is for."""
        found = (family_of(path) for path in self.end_points or FAMILIES)
        return frozenset(family for family in found if family is not None)


class ParsedManifest(Struct, frozen=True, kw_only=True):
    """A parsed config.json."""

    manifest: PluginManifest
    keys: tuple[str, ...] = ()
    """The keys in the file; the others have their defaults."""
    warnings: tuple[str, ...] = ()


class BadManifest(ValueError):
    """One line: the mistake, its place, and the correction."""


KEYS = tuple(each.encode_name for each in msgspec.structs.fields(PluginManifest))


def read_manifest(data: bytes) -> ParsedManifest:
    """Return the manifest and its oddities. Raises BadManifest."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise BadManifest(f"config.json:{line}: is not UTF-8 text; save the file as UTF-8") from None
    given = decoded(object, text)
    if given is None:
        import json  # says where a mistake is, in lines

        try:
            given = json.loads(text)
        except json.JSONDecodeError as error:
            raise BadManifest(f"config.json:{error.lineno}:{error.colno}: {_lower(error.msg)}") from None
        except (RecursionError, ValueError) as error:
            raise BadManifest(f"config.json cannot be read: {error}") from None
    try:
        manifest = msgspec.convert(given, PluginManifest)
    except msgspec.ValidationError as error:
        raise BadManifest(f"config.json: {_lower(str(error))}") from None
    for path in manifest.end_points:
        if family_of(path) is None:
            raise BadManifest(f"config.json: end_point '{path}' is not a route with a prompt; these are: {PROMPTS}")
    names = tuple(str(name) for name in given) if isinstance(given, dict) else ()  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    warnings = tuple(_unknown(name) for name in names if name not in KEYS)
    return ParsedManifest(manifest=manifest, keys=names, warnings=warnings)


def _unknown(name: str) -> str:
    from difflib import get_close_matches  # only on the way to an error

    near = get_close_matches(name, KEYS, 1)
    meant = f"did you mean '{near[0]}'?" if near else f"the keys are {', '.join(KEYS)}"
    return f"config.json: unknown key '{name}'; {meant}"


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
