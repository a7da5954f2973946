"""The source of each option of a model, and the values that it overrides."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct

from appliance.core.preset_keys import NONE, Choice
from appliance.core.presets import Layers

FILES = "files"
"""Options that the model's own files need."""
EVERYWHERE = "[*]"


class Said(Struct, frozen=True, kw_only=True):
    """A value and its source. ``layer``: ``command line``, ``section``, `FILES`, `EVERYWHERE` or ``environment``."""

    value: str
    layer: str
    origin: str
    """A place in a file, a variable, a flag; for `FILES` the place where the model was found."""


class Told(Struct, frozen=True, kw_only=True):
    """One option of a model with its effective value, and the values of weaker layers, strongest first."""

    option: str
    said: Said
    instead_of: tuple[Said, ...] = ()


def explain(layers: Layers, section: str, origins: Iterable[tuple[str, str]], values: Mapping[str, str]) -> list[Told]:
    """``section`` is the name of the model's section; ``origins`` and ``values`` are what counts for it."""
    told: list[Told] = []
    for option, origin in origins:
        layered = list(_said(layers, section, option))
        at = next((number for number, said in enumerate(layered) if said.origin == origin), None)
        if at is None:
            counts, weaker = Said(value=values.get(option, ""), layer=FILES, origin=origin), _behind_files(layered)
        else:
            counts, weaker = layered[at], layered[at + 1 :]
        told.append(Told(option=option.lstrip("-"), said=counts, instead_of=tuple(weaker)))
    return told


def _said(layers: Layers, section: str, option: str) -> Iterator[Said]:
    """Return the choices of all layers except the files, strongest first."""
    for name, layer in (
        ("command line", layers.command),
        ("section", layers.presets.sections.get(section, NONE)),
        (EVERYWHERE, layers.presets.everywhere),
        ("environment", layers.environment),
    ):
        choice: Choice | None = layer.get(option)
        if choice is not None:
            yield Said(value=choice.text, layer=name, origin=choice.origin)


def _behind_files(layered: Iterable[Said]) -> list[Said]:
    return [said for said in layered if said.layer in (EVERYWHERE, "environment")]
