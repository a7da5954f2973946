"""The engine that is inside this program, if a feature brings one: `__main__` says at the start."""

from __future__ import annotations

from collections.abc import Sequence

from appliance.core.engine import EngineInside
from appliance.errors import EngineNotFound

_inside: EngineInside | None = None


def bring_engine(inside: EngineInside | None) -> None:
    """From now on this is the engine inside the program; None: there is not any."""
    global _inside
    _inside = inside


def engine_inside() -> EngineInside | None:
    return _inside


def engine_not_found(looked: Sequence[str]) -> EngineNotFound:
    """Return the error, with the advice that holds for this program. ``looked`` are the places."""
    return EngineNotFound(looked, install=_inside.install if _inside is not None else "")
