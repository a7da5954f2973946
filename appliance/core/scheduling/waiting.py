"""How long a request is expected to wait for its model, from the times that loads have taken.

Only loads are foretold. How long the requests that hold other models go on nobody knows, so the figure is the least
that is to be expected; without a measured load of every model that comes first there is none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence


class LoadTimes:
    """The usual time of each model's load in seconds: each measurement counts as much as all before it."""

    def __init__(self) -> None:
        self._usual: dict[str, float] = {}

    def note(self, model: str, seconds: float) -> None:
        """A load took so long."""
        before = self._usual.get(model, seconds)
        self._usual[model] = (before + seconds) / 2

    def forget(self, models: Iterable[str]) -> None:
        """These models are gone, or are started in another way now."""
        for model in models:
            self._usual.pop(model, None)

    def usual(self, model: str) -> float | None:
        """None while it was never loaded."""
        return self._usual.get(model)

    def expected(self, awaited: Sequence[str], under_way: Mapping[str, float]) -> float | None:
        """Return the seconds until all of these have loaded: those ``under_way`` side by side, the others in turn.

        ``under_way`` are models that load now, with the seconds since their start.
        """
        beside, after = 0.0, 0.0
        for model in awaited:
            usual = self._usual.get(model)
            if usual is None:
                return None
            if model in under_way:
                beside = max(beside, usual - under_way[model])
            else:
                after += usual
        return beside + after
