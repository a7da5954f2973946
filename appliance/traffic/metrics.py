"""The counters of one server, and those of its features; the counts of models are a feature's."""

from __future__ import annotations

from collections import Counter

from msgspec import Struct, field

MAX_MODELS = 500
"""Distinct values of a ``model`` label; models beyond are counted together as `OTHER`."""
OTHER = "other"


class OwnCounter(Struct, eq=False):
    """The counter of a feature, by its name in ``/metrics`` without the program's; in ``values`` by its ``labels``."""

    name: str
    text: str
    value: int = 0
    labels: tuple[str, ...] = ()
    values: Counter[tuple[str, ...]] = field(default_factory=Counter[tuple[str, ...]])


class Metrics:
    """A model's label is always the id of one that exists, never a name as a client wrote it: names that nobody knows
    would use up the labels.
    """

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        """All requests, by route and status."""
        self.response_bytes = 0
        self.under_way = 0
        self.own: list[OwnCounter] = []
        """Counters of features."""
        self._labels: set[str] = set()

    def count(self, route: str, status: int, sent: int) -> None:
        """One finished request; ``status`` 499 stands for a client that left before it was answered."""
        self.requests[route, status] += 1
        self.response_bytes += sent

    def counter(self, name: str, text: str, labels: tuple[str, ...] = ()) -> OwnCounter:
        """Return a new counter, which the caller counts up."""
        self.own.append(counter := OwnCounter(name, text, labels=labels))
        return counter

    def label(self, model: str) -> str:
        """Return the model's name in labels."""
        if model not in self._labels:
            if len(self._labels) >= MAX_MODELS:
                return OTHER
            self._labels.add(model)
        return model
