"""The file of models that clients of Ollama's API have derived from others. Everything here waits for the disk."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Raw, Struct

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


class DerivedModels:
    """One such file, which need not be there yet; None keeps nothing."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def read(self) -> Mapping[str, Derived]:
        """Return the models by their names in lower case. A file that cannot be understood is set aside, with a line
        in the log.
        """
        if self._path is None:
            return {}
        try:
            contents = msgspec.json.decode(read_start(self._path, MAX_SIZE), type=_DerivedFile)
            if contents.version != VERSION:
                raise ValueError(f"its version is {contents.version}")
            models = [kept.model() for kept in contents.models]
        except FileNotFoundError:
            return {}
        except OSError as error:
            log.warning("%s cannot be read: %s", self._path, error.strerror or error)
            return {}
        except (*UNREADABLE, ValueError) as error:
            aside = self._path.with_name(f"{self._path.name}.unreadable")
            replace(self._path, aside)
            log.warning("%s is damaged, or from a newer version (%s); it is now %s", self._path, error, aside.name)
            return {}
        return {model.name.casefold(): model for model in models}

    def write(self, models: Mapping[str, Derived]) -> None:
        """Replace the file. Raises OSError."""
        if self._path is not None:
            kept = [_kept(model) for model in models.values()]
            write_whole(self._path, msgspec.json.encode(_DerivedFile(version=VERSION, models=kept)), private=True)


def _kept(model: Derived) -> _Kept:
    preset = model.preset
    return _Kept(
        name=model.name,
        base=model.base,
        system=preset.system,
        parameters=Raw(msgspec.json.encode(preset.parameters)),
        messages=[Raw(msgspec.json.encode(message)) for message in preset.messages],
        made_at=model.made_at,
    )
