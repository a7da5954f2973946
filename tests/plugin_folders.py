"""Plugins written for one test."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent


def write_plugin(folder: Path, name: str, code: str, config: object | None = None, **helpers: str) -> Path:
    """One plugin below ``folder``; ``helpers`` are modules beside its agent.py. ``config`` may be JSON text."""
    home = folder / name
    home.mkdir(parents=True, exist_ok=True)
    (home / "agent.py").write_text(dedent(code), encoding="utf-8")
    text = config if isinstance(config, str) else json.dumps(config if config is not None else {})
    (home / "config.json").write_text(text, encoding="utf-8")
    for module, source in helpers.items():
        (home / f"{module}.py").write_text(dedent(source), encoding="utf-8")
    return home
