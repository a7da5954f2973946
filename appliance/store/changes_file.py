"""The file that says which builds are in use, and which update is under way: written whole or not at all.

Everything here waits for the disk. Several processes may change it: each change is made to what is there then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import msgspec

from appliance.core.engines.changes import Changes
from appliance.store.model_files import write_whole

MAX_FILE = 1 << 20
WAIT = 10.0
"""Seconds that a change waits for another one, which takes milliseconds."""

log = logging.getLogger(__name__)
_CHANGES = msgspec.json.Decoder(Changes)


class ChangesFile:
    """``changes.json``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._told = False

    def read(self) -> Changes:
        """Return its content; an empty one if it is missing, or damaged and useless. Raises OSError."""
        try:
            with self.path.open("rb") as file:
                return _CHANGES.decode(file.read(MAX_FILE))
        except FileNotFoundError:
            return Changes()
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as cause:
            if not self._told:
                log.warning("%s is damaged (%s) and is ignored", self.path, cause)
            self._told = True
            return Changes()

    def change(self, edit: Callable[[Changes], Changes]) -> Changes:
        """Make a change and return the outcome, when the disk has it. Raises the errors of `read` and ``edit``."""
        from filelock import FileLock  # several milliseconds that a server does not need

        self.path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(self.path.with_name(f".{self.path.name}.lock"), timeout=WAIT):
            before = self.read()
            after = edit(before)
            if after != before:
                write_whole(self.path, msgspec.json.format(msgspec.json.encode(after), indent=1) + b"\n")
        return after
