"""Models that call the tool they are asked to call, and have a context long enough for every client."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from gguf_files import write_model
from http_harness import model
from msgspec import structs

from appliance.core.models.gguf import read_gguf
from appliance.core.models.model import Model

CALL = [{"calls": [{"name": "read_file", "arguments": '{"path": "notes.txt"}'}]}]
LONG = "65536"


def clever(file: Path, name: str, script: Sequence[object] = CALL, context: str = LONG) -> Model:
    """A model that follows the script, with a header that allows a long context."""
    data = write_model(file.with_name(f"{name}.gguf"), llama__context_length=131072).read_bytes()
    made = model(file, name, args=("--script", json.dumps(script), "--ctx-size", context))
    return structs.replace(made, info=read_gguf(lambda offset, count: data[offset : offset + count], len(data)))
