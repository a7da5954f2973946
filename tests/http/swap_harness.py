"""Configuration files whose models are the fake engine, for the server of `http_harness`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from command_lines import command_line
from port_blocks import port_block

Configure = Callable[..., Path]
"""`configure` with the place and the fake engine filled in."""


def configure(path: Path, command: Sequence[str], model_file: Path, models: dict[str, object], **top: object) -> Path:
    """Write a configuration. A model is a mapping of its keys; ``args`` are flags of its fake engine.

    Written again, it keeps its ports.
    """
    told: dict[str, object] = {}
    for model_id, given in models.items():
        keys = dict(given)
        words = [*command, "--model", str(model_file), "--host", "127.0.0.1", *keys.pop("args", ())]
        told[model_id] = {"cmd": f"{command_line(words)} --port ${{PORT}}", "proxy": "http://127.0.0.1:${PORT}", **keys}
    port = json.loads(path.read_text("utf-8"))["startPort"] if path.exists() else port_block(4 * len(told))
    path.write_text(json.dumps({"startPort": port, "models": told, **top}), "utf-8")
    return path
