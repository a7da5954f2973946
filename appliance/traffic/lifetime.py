"""What is under way when the server ends, so that it can be ended in order."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Protocol

import trio

from appliance.errors import ShuttingDown


class Cancellable(Protocol):
    """A request under way."""

    def cancel(self, why: Exception) -> None: ...


class Lifetime:
    """The requests under way. Followers (endless log streams) end first, requests after the grace."""

    def __init__(self) -> None:
        self._requests: set[Cancellable] = set()
        self._followers: set[trio.CancelScope] = set()
        self._followers_ended = False
        self._requests_ended = False

    def begin(self, request: Cancellable) -> None:
        """It is cancelled with ShuttingDown at the end of the grace, which may be now."""
        self._requests.add(request)
        if self._requests_ended:
            request.cancel(ShuttingDown())

    def end(self, request: Cancellable) -> None:
        """It is over."""
        self._requests.discard(request)

    @contextmanager
    def follower(self) -> Generator[trio.CancelScope]:
        """The block is cancelled as soon as the server begins to end."""
        with trio.CancelScope() as scope:
            self._followers.add(scope)
            try:
                if self._followers_ended:
                    scope.cancel()
                yield scope
            finally:
                self._followers.discard(scope)

    def end_followers(self) -> None:
        self._followers_ended = True
        for scope in self._followers:
            scope.cancel()

    def end_requests(self) -> None:
        self._requests_ended = True
        for request in list(self._requests):
            request.cancel(ShuttingDown())
