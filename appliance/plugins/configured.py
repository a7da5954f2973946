"""The configuration's part in plugins: whether there are any, and what overrides a plugin's own config.json."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal, TypeVar, cast

import msgspec
from msgspec import UNSET, Struct, UnsetType, structs

from appliance.core.bodies.json_text import JSON, JsonObject
from appliance.core.config.nodes import Problem
from appliance.core.config.types import PluginConfig
from appliance.core.words import meant_or_all
from appliance.plugins.manifest import Manifest

Source = Literal["configuration", "config.json", "default"]
"""The sources of a value, the strongest first."""
T = TypeVar("T")


class Choice(Struct, frozen=True, kw_only=True):
    """The selection of plugins."""

    folders: tuple[Path, ...] = ()
    given: Mapping[str, PluginConfig] = {}
    """The configuration of single plugins, by name."""
    off: str | None = None
    """The reason why there are none at all, and how to switch them on."""


class Value(Struct, frozen=True, kw_only=True):
    value: JSON
    source: Source


def merged(manifest: Manifest, told: Iterable[str], given: PluginConfig) -> tuple[Manifest, dict[str, Value]]:
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


class Checked(Struct, frozen=True, kw_only=True):
    """The settings for a plugin. ``mistake``: the reason why it cannot use them."""

    settings: Mapping[str, JSON]
    warnings: tuple[str, ...] = ()
    mistake: str | None = None


def check_settings(name: str, settings: Mapping[str, JSON], given: Mapping[str, object], kind: type | None) -> Checked:
    """Compare settings with the dataclass ``kind`` of the plugin ``name``, None if it has none.

    An unknown setting of the configuration, ``given``, is left out. Runs the plugin's own checks.
    """
    if kind is None:
        return Checked(settings=settings)
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
        return Checked(settings=kept, warnings=tuple(warnings), mistake=f"{where}: {text}")
    return Checked(settings=kept, warnings=tuple(warnings))


def _placed(text: str) -> tuple[str, str]:
    """Return msgspec's or the plugin's message, and the setting that msgspec means; '' for a message of the plugin."""
    found = re.fullmatch(r"(.*) - at `\$\.(\w+).*`", text, re.DOTALL)
    return (f"{found[1][:1].lower()}{found[1][1:]}", found[2]) if found else (text, "")


def _or(name: str, known: list[str]) -> str:
    return meant_or_all(name, known) if known else ""
