"""What is under way when the server ends, so that it can be ended in order."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import trio


class Lifetime:
    """Cancel scopes of the requests under way. Followers (endless log streams) end first, requests after the grace."""

    def __init__(self) -> None:
        self._requests: set[trio.CancelScope] = set()
        self._followers: set[trio.CancelScope] = set()
        self._followers_ended = False
        self._requests_ended = False

    @contextmanager
    def request(self) -> Generator[trio.CancelScope]:
        """The block is cancelled at the end of the grace."""
        with trio.CancelScope() as scope:
            self._requests.add(scope)
            try:
                if self._requests_ended:
                    scope.cancel()
                yield scope
            finally:
                self._requests.discard(scope)

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
        for scope in self._requests:
            scope.cancel()
