"""The sign-in of the feature."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.cli.verb import ReadPresets, Verb
from appliance.feature import Feature

if TYPE_CHECKING:
    import click

    from appliance.catalog.sources import ModelPresets


def _llama_server() -> click.Command:
    from appliance.features.stand_in.verb import llama_server

    return llama_server


def _llama() -> click.Command:
    from appliance.features.stand_in.verb import llama

    return llama


def _read_presets(file: Path) -> ModelPresets:
    from appliance.features.stand_in.router import presets_of

    return presets_of(file)


def _show_presets(file: Path, flags: Sequence[str], as_json: bool) -> int:
    from appliance.features.stand_in.preset_table import show_presets

    return show_presets(file, flags, as_json)


PAGE = "llama-server.md"
SERVER = "Take llama-server's place: its flags, its behaviour."
UNIFIED = "Take the place of llama.cpp's llama: 'llama serve' is llama-server."
PRESETS = ReadPresets(_read_presets, _show_presets)
STAND_IN = Feature(
    name="stand_in",
    verbs=(
        Verb("llama-server", "server", SERVER, _llama_server, page=PAGE, exits_with_1=True, presets=PRESETS),
        Verb("llama", "server", UNIFIED, _llama, page=PAGE, exits_with_1=True),
    ),
)
