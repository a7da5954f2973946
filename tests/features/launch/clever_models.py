"""Models that call the tool they are asked to call, and have a context long enough for every client."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from known_models import known

from appliance.core.models.model import Model

CALL = [{"calls": [{"name": "read_file", "arguments": '{"path": "notes.txt"}'}]}]
LONG = "65536"


def clever(file: Path, name: str, script: Sequence[object] = CALL, context: str = LONG) -> Model:
    """A model that follows the script, with a header that allows a long context."""
    return known(file, name, "--script", json.dumps(script), "--ctx-size", context, llama__context_length=131072)
