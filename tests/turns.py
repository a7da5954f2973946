"""Tests of several processes take turns with those that are marked ``alone``, beside which nothing may run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__)

if sys.platform == "win32":

    class Turns:
        """Windows runs the tests in one process (tests/conftest.py), so nothing is beside any of them."""

        @contextmanager
        def taken(self, alone: bool, next_alone: bool) -> Iterator[None]:
            yield

else:
    import fcntl

    class Turns:
        """This process's part in a lock that many tests share, or that one holds alone.

        The locks lie on two files of this folder, so there is nothing to make and nothing to clean up. Every test
        passes the gate before it enters the room. One that waits to be alone keeps the gate shut, so that no other
        enters, and the room becomes empty.
        """

        def __init__(self) -> None:
            self._room = HERE.open("rb")
            self._gate = HERE.with_name("conftest.py").open("rb")
            self._alone = False

        @contextmanager
        def taken(self, alone: bool, next_alone: bool) -> Iterator[None]:
            """Hold the room for one test. It stays closed behind a test that is alone if the next one is that too."""
            if not self._alone:
                fcntl.flock(self._gate, fcntl.LOCK_EX)
                fcntl.flock(self._room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
                fcntl.flock(self._gate, fcntl.LOCK_UN)
            try:
                yield
            finally:
                self._alone = alone and next_alone
                if not self._alone:
                    fcntl.flock(self._room, fcntl.LOCK_UN)
