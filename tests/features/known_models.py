"""Models of the fake engine whose headers are known, as the program knows those of models that it has looked at."""

from __future__ import annotations

from pathlib import Path

from gguf_files import write_model
from http_harness import model
from msgspec import structs

from appliance.core.models.gguf import GgufInfo, read_gguf
from appliance.core.models.model import Model


def read_info(path: Path) -> GgufInfo:
    """The facts that the program reads from a small model file."""
    content = path.read_bytes()
    return read_gguf(lambda offset, count: content[offset : offset + count], len(content))


def known(file: Path, model_id: str, *args: str, **keys: str | int | bool) -> Model:
    """A model that runs on this file, with a header of its own."""
    info = read_info(write_model(file.with_name(f"{model_id.replace('/', '-')}.gguf"), **keys))
    return structs.replace(model(file, model_id, args=args), info=info, size=1000)
