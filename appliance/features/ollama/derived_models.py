"""The file of models that clients of Ollama's API have derived from others. Everything here waits for the disk."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Raw, Struct, structs

from appliance.core.bodies.json_text import OBJECT
from appliance.core.lenient_json import UNREADABLE
from appliance.features.ollama.core.asking import DerivedPreset
from appliance.features.ollama.core.models import Derived
from appliance.store.model_files import read_start, replace, write_whole

VERSION = 1
MAX_SIZE = 16 << 20

log = logging.getLogger(__name__)


class _Kept(Struct, frozen=True, kw_only=True):
    """One model; the values of its members are any JSON."""

    name: str
    base: str
    system: str
    parameters: Raw
    messages: list[Raw]
    made_at: float

    def model(self) -> Derived:
        messages = tuple(OBJECT.decode(message) for message in self.messages)
        preset = DerivedPreset(system=self.system, parameters=OBJECT.decode(self.parameters), messages=messages)
        return Derived(name=self.name, base=self.base, preset=preset, made_at=self.made_at)


class _DerivedFile(Struct, frozen=True, kw_only=True):
    version: int
    models: list[_Kept]


def read_derived(path: Path) -> Mapping[str, Derived]:
    """Return the models by their names in lower case; the file need not be there yet.

    One that cannot be understood is set aside, with a line in the log.
    """
    try:
        contents = msgspec.json.decode(read_start(path, MAX_SIZE), type=_DerivedFile)
        if contents.version != VERSION:
            raise ValueError(f"its version is {contents.version}")
        models = [kept.model() for kept in contents.models]
    except FileNotFoundError:
        return {}
    except OSError as error:
        log.warning("%s cannot be read: %s", path, error.strerror or error)
        return {}
    except (*UNREADABLE, ValueError) as error:
        aside = path.with_name(f"{path.name}.unreadable")
        replace(path, aside)
        log.warning("%s is damaged, or from a newer version (%s); it is now %s", path, error, aside.name)
        return {}
    return {model.name.casefold(): model for model in models}


def write_derived(path: Path, models: Mapping[str, Derived]) -> None:
    """Replace the file. Raises OSError."""
    kept = [
        {"name": each.name, "base": each.base, **structs.asdict(each.preset), "made_at": each.made_at}
        for each in models.values()
    ]
    write_whole(path, msgspec.json.encode({"version": VERSION, "models": kept}), private=True)
