"""The plugins that ship with the program, imported as the program imports them."""

from __future__ import annotations

import importlib
from functools import cache
from pathlib import Path
from types import ModuleType

from appliance.plugins.loading import PREFIX, load_hooks

PLUGINS = Path(__file__).resolve().parents[2] / "plugins"
NAMES = ("json", "parallel", "rag", "summarize")


def module(plugin: str, name: str) -> ModuleType:
    """One of a plugin's modules."""
    return importlib.import_module(f"{_package(plugin)}.{name}")


@cache
def _package(plugin: str) -> str:
    package = f"{PREFIX}tests_{plugin}"
    load_hooks(PLUGINS / plugin, package)
    return package
