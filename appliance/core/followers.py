"""Functions that follow what happens somewhere: decisions, rows, requests that have ended, waits."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Generic, TypeVar

_Call = TypeVar("_Call", bound=Callable[..., None])


class Followers(Generic[_Call]):
    """Owned by what they follow, which calls them in the order in which they came. They neither block nor raise."""

    def __init__(self) -> None:
        self.calls: tuple[_Call, ...] = ()

    @contextmanager
    def follow(self, call: _Call) -> Generator[None]:
        """Have it called with all that happens in the block."""
        self.calls += (call,)
        try:
            yield
        finally:
            self.calls = tuple(each for each in self.calls if each != call)
