"""Requests that wait for their model: their entry in the queue, and how long they are expected to wait."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from appliance.core.scheduling.effects import Terms


class QueueEntry:
    """The queued tickets of one model."""

    def __init__(self, model: str, terms: Terms, number: int) -> None:
        self.model = model
        self.terms = terms
        self.number = number
        self.tickets: dict[int, float] = {}
        """Ticket -> when it came, oldest first."""

    def overdue_at(self) -> float:
        return next(iter(self.tickets.values())) + self.terms.patience

    def rank(self, now: float) -> tuple[bool, int, int]:
        # An overdue entry loses its priority as well as its place: among the overdue, age alone decides. Otherwise a
        # stream of requests with a high priority would be overdue first for ever, and the low ones would starve in
        # spite of rule 5.
        overdue = now >= self.overdue_at()
        return not overdue, 0 if overdue else -self.terms.priority, self.number


class LoadTimes:
    """The usual time of each model's load in seconds: each measurement counts as much as all before it.

    Only loads are estimated. The requests that hold other models may run for any time, so the figure is a lower bound.
    There is no figure without a measured load of every model that comes first.
    """

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
        # Loads that are under way share the machine, so the slowest of them counts. Those in the queue are counted one
        # behind the other. A load that takes longer than usual counts as just about to end.
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
