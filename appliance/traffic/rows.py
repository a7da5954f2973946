"""Who hears that the activity log has a new row."""

from __future__ import annotations

from collections.abc import Callable


class ActivityRows:
    """Fan-out of the ids of new rows to the event feeds. Tells synchronously; nobody who listens may block."""

    def __init__(self) -> None:
        self._listeners: set[Callable[[int], None]] = set()

    def added(self, row_id: int) -> None:
        """A row has been stored."""
        for heard in list(self._listeners):
            heard(row_id)

    def follow(self, heard: Callable[[int], None]) -> Callable[[], None]:
        """Call ``heard`` for every new row until the result is called."""
        self._listeners.add(heard)
        return lambda: self._listeners.discard(heard)
