"""A plugin's ``config.json``: its keys, their mistakes, and what the program's configuration puts over them."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Literal, TypeVar, cast

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, field, structs

from appliance.core.answers.families import FAMILIES, Family, family_of
from appliance.core.bodies.json_text import JSON, JsonObject
from appliance.core.config.additions import PluginConfig
from appliance.core.config.nodes import Problem
from appliance.core.near_names import meant_or_all

LARGEST = 1 << 20
"""Largest config.json, in bytes."""
DEFAULT_TIMEOUT = 300.0
"""Seconds for one hook; one that asks a model may have to wait until that is loaded."""
PROMPTS = ", ".join(f"/v1{path}" for path in FAMILIES)
T = TypeVar("T")


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
        given: object = json.loads(text)  # says where a mistake is, in lines
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise BadManifest(f"config.json:{line}: is not UTF-8 text; save the file as UTF-8") from None
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


Source = Literal["configuration", "config.json", "default"]
"""The sources of a value, the strongest first."""


class PluginSelection(Struct, frozen=True, kw_only=True):
    """The selection of plugins."""

    folders: tuple[Path, ...] = ()
    given: Mapping[str, PluginConfig] = {}
    """The configuration of single plugins, by name."""
    off: str | None = None
    """The reason why there are none at all, and how to switch them on."""


class Value(Struct, frozen=True, kw_only=True):
    value: JSON
    source: Source


def merged(
    manifest: PluginManifest, told: Iterable[str], given: PluginConfig
) -> tuple[PluginManifest, dict[str, Value]]:
    """Return the manifest with the configuration over it, settings key by key; and its values, by dotted key.

    ``told`` are the keys in config.json.
    """
    settings = cast("JsonObject", {**manifest.settings, **given.settings})
    enabled, enabled_from = _stronger(given.enabled, manifest.enabled, "enabled" in told)
    timeout, timeout_from = _stronger(given.timeout, manifest.timeout, "timeout" in told)
    values = {
        "enabled": Value(value=enabled, source=enabled_from),
        "timeout": Value(value=timeout, source=timeout_from),
    }
    for name, value in settings.items():
        source: Source = "configuration" if name in given.settings else "config.json"
        values[f"settings.{name}"] = Value(value=value, source=source)
    return structs.replace(manifest, enabled=enabled, timeout=float(timeout), settings=settings), values


def _stronger(given: T | UnsetType, own: T, told: bool) -> tuple[T, Source]:
    return (given, "configuration") if given is not UNSET else (own, "config.json" if told else "default")


def unknown_plugins(given: Mapping[str, PluginConfig], names: Iterable[str]) -> list[Problem]:
    """Return the plugins that the configuration names and no folder contains."""
    known = list(names)
    return [
        Problem(message=f"there is no plugin '{name}'{_or(name, known)}", path=f"plugins.{name}", level="warning")
        for name in given
        if name not in known
    ]


class CheckedSettings(Struct, frozen=True, kw_only=True):
    """The settings for a plugin. ``mistake``: the reason why it cannot use them."""

    settings: Mapping[str, JSON]
    warnings: tuple[str, ...] = ()
    mistake: str | None = None


def check_settings(
    name: str, settings: Mapping[str, JSON], given: Mapping[str, object], kind: type | None
) -> CheckedSettings:
    """Compare settings with the dataclass ``kind`` of the plugin ``name``, None if it has none.

    An unknown setting of the configuration, ``given``, is left out. Runs the plugin's own checks.
    """
    if kind is None:
        return CheckedSettings(settings=settings)
    known = [field.name for field in dataclasses.fields(kind)]
    place = f"plugins.{name}.settings"
    warnings: list[str] = []
    for key in settings:
        if key not in known:
            where, then = (f"{place}.{key}", ", ignored") if key in given else (f"config.json: settings.{key}", "")
            warnings.append(f"{where}: unknown setting{then}{_or(key, known)}")
    kept = {key: value for key, value in settings.items() if key in known or key not in given}
    try:
        msgspec.convert({key: value for key, value in kept.items() if key in known}, kind)
    except (msgspec.ValidationError, ValueError) as error:
        text, key = _placed(str(error))
        path = f".{key}" if key else ""
        where = f"{place}{path}" if key in given or (not key and given) else f"config.json: settings{path}"
        return CheckedSettings(settings=kept, warnings=tuple(warnings), mistake=f"{where}: {text}")
    return CheckedSettings(settings=kept, warnings=tuple(warnings))


def _placed(text: str) -> tuple[str, str]:
    """Return msgspec's or the plugin's message, and the setting that msgspec means; '' for a message of the plugin."""
    found = re.fullmatch(r"(.*) - at `\$\.(\w+).*`", text, re.DOTALL)
    return (f"{found[1][:1].lower()}{found[1][1:]}", found[2]) if found else (text, "")


def _or(name: str, known: list[str]) -> str:
    return meant_or_all(name, known) if known else ""
