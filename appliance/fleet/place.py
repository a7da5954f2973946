"""Where one request stands on its way to its model, for those who tell its client."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Raw


class Place:
    """Handed to `Fleet.lease`, which fills it in; safe to ask at any time."""

    def __init__(self) -> None:
        self._position: Callable[[], int | None] | None = None
        self._progress: Callable[[], Raw | None] | None = None

    def take(self, position: Callable[[], int | None], progress: Callable[[], Raw | None]) -> None:
        self._position, self._progress = position, progress

    def leave(self) -> None:
        self._position = self._progress = None

    def position(self) -> int | None:
        """The place in the queue, counted from 1; None when it waits for a load, or for nothing."""
        return self._position() if self._position else None

    def progress(self) -> Raw | None:
        """What the engine says of its loading, JSON; None where it says nothing."""
        return self._progress() if self._progress else None
