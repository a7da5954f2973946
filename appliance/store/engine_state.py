"""The file that remembers everything about engines, in the folder of installed builds.

Several programs may change it. Each change is made, under a lock, to what the disk has at that moment, and the file is
replaced as a whole. Everything here waits for the disk.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from appliance.core.engines.events import Event, reduce
from appliance.core.engines.state import EngineState
from appliance.store.model_files import read_start, replace, write_whole

FILE = "state.json"
VERSION = 1
"""Version of the file. A newer program may add keys without a new version; a new one locks out older programs."""
MAX_SIZE = 16 << 20
WAIT = 10.0
"""Seconds that a change waits for another one, which takes milliseconds."""

log = logging.getLogger(__name__)


class _StateHead(Struct, frozen=True):
    version: int = 0


class _StateContents(Struct, frozen=True, kw_only=True):
    version: int
    state: EngineState


class StateFile:
    """One such file, which need not be there yet."""

    def __init__(self, folder: Path, *, wait: float = WAIT) -> None:
        self.path = folder / FILE
        self._wait = wait

    def read(self) -> EngineState:
        """Return what is remembered. A file that is damaged, or from a newer program, is moved aside.

        Raises OSError if the disk does not let it be read, or be moved.
        """
        try:
            return self._load()
        except FileNotFoundError:
            return EngineState()
        except ValueError:
            return self.apply(())

    def apply(self, events: Sequence[Event]) -> EngineState:
        """Apply the events, in their order. Return the state, which is then on the disk.

        Raises OSError, and then nothing has changed, and what `reduce` raises.
        """
        from filelock import FileLock  # several milliseconds that an idle server does not need

        self.path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(self.path.with_name(f".{FILE}.lock"), timeout=self._wait):
            state = before = self._load_or_begin()
            for event in events:
                state = reduce(state, event)
            if state != before:
                self._write(state)
        return state

    def _load(self) -> EngineState:
        """Raises ValueError for something else than a state, and OSError."""
        data = read_start(self.path, MAX_SIZE + 1)
        try:
            version = msgspec.json.decode(data, type=_StateHead).version
            if version != VERSION:
                raise ValueError(f"it has the version {version}")
            return msgspec.json.decode(data, type=_StateContents).state
        except RecursionError:
            raise ValueError("it is nested too deeply") from None

    def _load_or_begin(self) -> EngineState:
        """The caller holds the lock."""
        try:
            return self._load()
        except FileNotFoundError:
            return EngineState()
        except ValueError as cause:
            aside = self.path.with_name(f"{FILE}.unreadable")
            replace(self.path, aside)
            log.warning(
                "%s could not be read: it is damaged, or from a newer version (%s); it is now %s, and engines are "
                "proven again",
                self.path,
                cause,
                aside.name,
            )
            return EngineState()

    def _write(self, state: EngineState) -> None:
        contents = msgspec.json.encode(_StateContents(version=VERSION, state=state))
        write_whole(self.path, msgspec.json.format(contents, indent=1) + b"\n")
