"""The values of a plugin: those of its config.json, what the program's configuration puts over them, and mistakes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal, TypeVar, cast

import msgspec
from msgspec import UNSET, Struct, UnsetType, structs

from appliance.core.bodies.json_text import JSON, JsonObject
from appliance.core.config.additions import PluginConfig
from appliance.plugins.folders import or_meant
from appliance.plugins.manifest import PluginManifest

T = TypeVar("T")
Source = Literal["configuration", "config.json", "default"]  # the sources of a value, the strongest first


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
    import dataclasses  # a plugin that has settings has imported it

    known = [field.name for field in dataclasses.fields(kind)]
    place = f"plugins.{name}.settings"
    warnings: list[str] = []
    for key in settings:
        if key not in known:
            where, then = (f"{place}.{key}", ", ignored") if key in given else (f"config.json: settings.{key}", "")
            warnings.append(f"{where}: unknown setting{then}{or_meant(key, known)}")
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
