"""The file that remembers the sha256 of models' files, by path, size, time of change and inode.

The hub's cache names its files by their hash. Other files are read once. Everything here waits for the disk.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct

from appliance.core.lenient_json import UNREADABLE
from appliance.core.models.identity import FileIdentity
from appliance.store.model_files import open_regular, read_start, write_whole

SHA256 = re.compile(r"[0-9a-f]{64}")
VERSION = 1
MAX_SIZE = 16 << 20
PIECE = 4 << 20
"""Bytes that are read between two calls of ``check``."""

log = logging.getLogger(__name__)


class _Known(Struct, frozen=True):
    file: FileIdentity
    sha256: str


class _HashesFile(Struct, frozen=True, kw_only=True):
    version: int
    hashes: list[_Known]


class FileHashes:
    """One such file, which need not be there yet. One call at a time, but for `known`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._hashes: dict[str, _Known] | None = None

    def known(self, path: Path) -> str | None:
        """Return the file's hash if it is known without reading it. Raises OSError."""
        if path.is_symlink() and SHA256.fullmatch(name := path.resolve().name):
            return name
        if self._hashes is None:
            self._hashes = self._read()
        known = self._hashes.get(str(path))
        return known.sha256 if known is not None and known.file == identity_of(path) else None

    def compute(self, path: Path, check: Callable[[int], object]) -> str:
        """Read the file, and remember its hash. ``check`` gets the bytes so far, and may wait or raise.

        Raises OSError, also for a file that changes meanwhile.
        """
        before, found, read = identity_of(path), hashlib.sha256(), 0
        with open_regular(str(path)) as file:
            while piece := file.read(PIECE):
                found.update(piece)
                read += len(piece)
                check(read)
        if identity_of(path) != before:
            raise OSError(None, "it changed while it was read", str(path))
        known = {name: one for name, one in (self._hashes or self._read()).items() if os.path.lexists(name)}
        self._hashes = {**known, str(path): _Known(before, found.hexdigest())}
        kept = _HashesFile(version=VERSION, hashes=list(self._hashes.values()))
        try:
            write_whole(self._path, msgspec.json.encode(kept), private=True)
        except OSError as error:
            log.warning("the hash of %s is not kept: %s cannot be written: %s", path, self._path, error.strerror)
        return found.hexdigest()

    def _read(self) -> dict[str, _Known]:
        """A file that cannot be understood counts as empty: its hashes are computed again."""
        try:
            kept = msgspec.json.decode(read_start(self._path, MAX_SIZE), type=_HashesFile)
        except FileNotFoundError:
            return {}
        except (OSError, *UNREADABLE) as error:
            log.warning("%s cannot be used, so hashes of models are computed again: %s", self._path, error)
            return {}
        return {one.file.path: one for one in kept.hashes} if kept.version == VERSION else {}


def identity_of(path: Path) -> FileIdentity:
    """Raises OSError."""
    found = path.stat()
    return FileIdentity(str(path), found.st_size, found.st_mtime_ns, found.st_ino)


def sha256_of(path: Path, check: Callable[[], None]) -> str:
    """Read a file whose hash is not remembered. ``check`` is called often, and may raise. Raises OSError."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            check()
            found.update(piece)
    return found.hexdigest()
