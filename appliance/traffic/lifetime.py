"""The work under way when the server ends, so that it can be ended in order."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

import trio

from appliance.errors import Busy, ShuttingDown

MAX_FEEDS = 64
"""Endless answers with news (events, logs) at once. Each costs every request about a millisecond of the processor."""
Cancel = Callable[[Exception], None]
"""Ends something under way, and says why. It does not raise."""


class _UnderWay:
    """One kind of work; all of it ends together."""

    def __init__(self) -> None:
        self._cancels: set[Cancel] = set()
        self._ended = False

    def begin(self, cancel: Cancel) -> None:
        """Call ``cancel`` with ShuttingDown when the time comes; now, if it is over."""
        self._cancels.add(cancel)
        if self._ended:
            cancel(ShuttingDown())

    def end(self, cancel: Cancel) -> None:
        """It has ended by itself."""
        self._cancels.discard(cancel)

    @contextmanager
    def block(self) -> Generator[trio.CancelScope]:
        """The block is cancelled when the time comes."""
        with trio.CancelScope() as scope:

            def cancel(_: Exception) -> None:
                scope.cancel()

            self.begin(cancel)
            try:
                yield scope
            finally:
                self.end(cancel)

    def cancel(self) -> None:
        self._ended = True
        for cancel in tuple(self._cancels):
            cancel(ShuttingDown())


class Feeds:
    """The endless answers with news that are being read, up to `MAX_FEEDS`."""

    def __init__(self) -> None:
        self.open = 0

    def check(self) -> None:
        """Raises Busy if there are as many as there may be."""
        if self.open >= MAX_FEEDS:
            raise Busy(f"{MAX_FEEDS} clients read events and logs already; close one of them", retry_after=10.0)

    @contextmanager
    def reading(self) -> Generator[None]:
        """Count one more in the block."""
        self.open += 1
        try:
            yield
        finally:
            self.open -= 1


class Lifetime:
    """Followers (endless log streams) end as soon as the server begins to end, requests after the grace."""

    def __init__(self) -> None:
        self.requests = _UnderWay()
        self.feeds = Feeds()
        self._followers = _UnderWay()
        self.follower = self._followers.block
        self.end_followers = self._followers.cancel
        self.end_requests = self.requests.cancel
