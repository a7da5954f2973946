"""``config show --models-preset``: the options of each model of router mode, and their sources."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import click
from msgspec import Struct

from appliance.catalog.catalog import scan_models
from appliance.cli.show import print_json, print_table
from appliance.core.llama.flags import split
from appliance.core.models.model import Model
from appliance.features.stand_in.core.presets import Layers, ToldOption, explain
from appliance.features.stand_in.preset_models import PresetSource
from appliance.features.stand_in.router import router_mode
from appliance.features.stand_in.surroundings import from_surroundings


class ShownModel(Struct, frozen=True, kw_only=True):
    """One model as ``--json`` prints it."""

    source: str
    path: str
    fetch: list[str]  # the downloads that wait for the first request
    error: str | None
    options: list[ToldOption]


def show_presets(file: Path, flags: Sequence[str], as_json: bool) -> int:
    """Print it for these flags of llama-server and this environment. Raises UsageError, InvalidConfig."""
    from_argv = split(("--models-preset", str(file), *flags))
    sources = router_mode(from_argv, from_surroundings(os.environ), os.environ).sources
    layers = sources.presets.layers if isinstance(sources.presets, PresetSource) else Layers()
    snapshot = scan_models(sources)
    shown = {model.id: _shown(model, layers) for model in snapshot.models}
    if as_json:
        print_json({"models": shown, "notes": snapshot.notes})
        return 0
    for place, (model_id, model) in enumerate(shown.items()):
        click.echo(("\n" if place else "") + f"{model_id}{_about(model)}")
        rows: list[tuple[str, ...]] = []
        for told in model.options:
            instead = ", ".join(f"{said.value} of {said.source}" for said in told.instead_of)
            rows.append((f"  {told.option}", told.said.value, told.said.source, instead))
        print_table(("  OPTION", "VALUE", "FROM", "INSTEAD OF"), rows)
    return 0


def _shown(model: Model, layers: Layers) -> ShownModel:
    section = next((name for name in (model.id, *model.aliases) if name in layers.presets.sections), model.id)
    settings = (line.partition(" = ") for line in model.preset.splitlines() if " = " in line)
    return ShownModel(
        source=model.source,
        path=model.path,
        fetch=[str(wanted) for wanted in model.fetch],
        error=model.error,
        options=explain(layers, section, model.origins, {f"--{name}": value for name, _, value in settings}),
    )


def _about(model: ShownModel) -> str:
    if model.error is not None:
        return f": cannot be used: {model.error}"
    if model.fetch:
        return f": {' and '.join(model.fetch)} is downloaded on the first request"
    return f": {model.path}" if model.path else ""
