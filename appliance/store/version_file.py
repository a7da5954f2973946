"""The file that remembers versions, in their folder: what is in use, what was before it, the update under way.

Several programs may change it. Each change is made, under a lock, to what the disk has at that moment, and the file is
replaced as a whole. Everything here waits for the disk.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
from msgspec import Struct

from appliance.core.versions import VersionEvent, VersionState
from appliance.store.model_files import read_start, replace, write_whole

FILE = "state.json"
VERSION = 1  # of the file: a newer program may add keys without a new one; a new one locks out older programs
MAX_SIZE = 16 << 20
WAIT = 10.0  # seconds that a change waits for another one, which takes milliseconds

S = TypeVar("S", bound=VersionState)
E = TypeVar("E")

log = logging.getLogger(__name__)


class _Contents(Struct, frozen=True, kw_only=True):
    version: int = 0
    state: msgspec.Raw = msgspec.Raw()


class VersionFile(Generic[S, E]):
    """One such file, which need not be there yet. ``E`` are the events of ``reduce`` beside those of every version.

    ``empty`` is the state without a file. ``lost`` says what follows if the file cannot be read, for the log.
    """

    def __init__(
        self,
        folder: Path,
        empty: S,
        reduce: Callable[[S, E | VersionEvent], S],
        *,
        lost: str,
    ) -> None:
        self.path = folder / FILE
        self._empty = empty
        self._reduce = reduce
        self._lost = lost

    def read(self) -> S:
        """Return what is remembered. A file that is damaged, or from a newer program, is moved aside.

        Raises OSError if the disk does not let it be read, or be moved.
        """
        try:
            return self._load()
        except FileNotFoundError:
            return self._empty
        except ValueError:
            return self.apply(())

    def apply(self, events: Sequence[E | VersionEvent]) -> S:
        """Apply the events, in their order. Return the state, which is then on the disk.

        Raises OSError, and then nothing has changed, and what ``reduce`` raises.
        """
        from filelock import FileLock  # several milliseconds that an idle server does not need

        self.path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(self.path.with_name(f".{FILE}.lock"), timeout=WAIT):
            state = before = self._load_or_begin()
            for event in events:
                state = self._reduce(state, event)
            if state != before:
                contents = msgspec.json.encode(
                    _Contents(version=VERSION, state=msgspec.Raw(msgspec.json.encode(state)))
                )
                write_whole(self.path, msgspec.json.format(contents, indent=1) + b"\n")
        return state

    def _load(self) -> S:
        """Raises ValueError for something else than a state, and OSError."""
        data = read_start(self.path, MAX_SIZE + 1)
        try:
            contents = msgspec.json.decode(data, type=_Contents)
            if contents.version != VERSION:
                raise ValueError(f"it has the version {contents.version}")
            return msgspec.json.decode(contents.state, type=type(self._empty))
        except RecursionError:
            raise ValueError("it is nested too deeply") from None

    def _load_or_begin(self) -> S:
        """The caller holds the lock."""
        try:
            return self._load()
        except FileNotFoundError:
            return self._empty
        except ValueError as cause:
            aside = self.path.with_name(f"{FILE}.unreadable")
            replace(self.path, aside)
            log.warning(
                "%s could not be read: it is damaged, or from a newer version (%s); it is now %s, and %s",
                self.path,
                cause,
                aside.name,
                self._lost,
            )
            return self._empty
