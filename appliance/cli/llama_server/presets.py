"""``config show --models-preset``: the options of each model in router mode, and their sources."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import click
from msgspec import Struct

from appliance.catalog.catalog import Catalog
from appliance.cli.llama_server.command import from_surroundings
from appliance.cli.llama_server.router import router_mode
from appliance.cli.show import print_json, print_table
from appliance.core.llama import flags as llama_flags
from appliance.core.llama.presets import Layers, Told, explain
from appliance.core.models.model import Model


class ShownModel(Struct, frozen=True, kw_only=True):
    """One model as ``--json`` prints it."""

    source: str
    path: str
    fetch: list[str]
    """The downloads that wait for the first request."""
    error: str | None
    options: list[Told]


def show_presets(file: Path, flags: Sequence[str], *, as_json: bool) -> int:
    """Print it for these flags of llama-server and this environment. Raises UsageError, InvalidConfig."""
    from_argv = llama_flags.split(("--models-preset", str(file), *flags))
    sources = router_mode(from_argv, from_surroundings(os.environ), os.environ).sources
    layers = sources.presets.layers if sources.presets is not None else Layers()
    snapshot = Catalog(sources).scan()
    shown = {model.id: _shown(model, layers) for model in snapshot.models}
    if as_json:
        print_json({"models": shown, "notes": snapshot.notes})
        return 0
    for number, (model_id, model) in enumerate(shown.items()):
        click.echo(("\n" if number else "") + f"{model_id}{_about(model)}")
        rows = [(f"  {told.option}", told.said.value, _who(told), _instead(told)) for told in model.options]
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


def _who(told: Told) -> str:
    return f"{told.said.layer} ({told.said.origin})"


def _instead(told: Told) -> str:
    return ", ".join(f"{said.value} of {said.layer} ({said.origin})" for said in told.instead_of)
