"""What updates decided about builds, as the owner of engines follows it: which goes first, and when one comes back."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from appliance.core.engines.changes import Changes, arrange, on_failure
from appliance.core.engines.choice import Ranked
from appliance.store.changes_file import ChangesFile

log = logging.getLogger(__name__)


class Succession:
    """What it is asked it answers at once; `refresh` and `write` wait for the disk, and are called in a thread."""

    def __init__(self, file: ChangesFile) -> None:
        self._file = file
        self._failures: list[tuple[str, str, float]] = []  # not in the file yet
        self.changes = Changes()

    def refresh(self) -> None:
        """Another program may have changed the file. One that cannot be read changes nothing."""
        try:
            found = self._file.read()
        except OSError as cause:
            log.warning("%s cannot be read: %s", self._file.path, cause.strerror or cause)
            return
        self.changes = _after(self._failures, found)

    def arrange(self, ranked: Sequence[Ranked]) -> list[Ranked]:
        """The order of `core.engines.choice.rank`, with what was decided."""
        return arrange(ranked, self.changes)

    def failed(self, build: str, why: str, now: float) -> bool:
        """A build failed at work; whether the one before it is in use again. Then `write` has something to do."""
        back = on_failure(self.changes, build, why, now)
        if back is None:
            return False
        self.changes = back
        self._failures.append((build, why, now))
        log.warning("engine %s came with an update and failed: the one before it is used again", build)
        return True

    def write(self) -> None:
        """Put into the file what it does not have yet; where the disk does not take it, another time."""
        failures = self._failures[:]
        if not failures:
            return
        try:
            self._file.change(partial(_after, failures))
        except OSError as cause:
            log.warning("%s cannot be written: %s", self._file.path, cause.strerror or cause)
            return
        del self._failures[: len(failures)]


def _after(failures: Sequence[tuple[str, str, float]], changes: Changes) -> Changes:
    for build, why, now in failures:
        changes = on_failure(changes, build, why, now) or changes
    return changes
