"""The facts in the headers of model files, remembered in memory and on the disk.

Most of a header is a vocabulary. To step over its 300,000 strings takes 20 ms, and a folder may hold hundreds of files,
so a header is read once for each change of its file. The file of facts is a cache: one that is damaged, or that another
version has written, counts as empty.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shlex
import time
from collections.abc import Collection, Iterator, Mapping
from io import FileIO
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Struct

from appliance import __version__
from appliance.catalog.found import why
from appliance.core.lenient_json import UNREADABLE
from appliance.core.models.gguf import GgufInfo, read_gguf
from appliance.core.models.gguf_bytes import GgufError, Strings
from appliance.platform.home import users_cache
from appliance.store.model_files import NotRegular, open_regular, read_start, stat_regular, write_whole

MAGIC = f"llama-appliance headers 1 {__version__}\n".encode()
"""The number changes when the reading of headers does."""
MAX_SIZE = 64 << 20
"""Largest file of facts. A model takes 5 to 30 KB of it, most of it a chat template."""
SETTLED = 100_000_000
"""Nanoseconds. File systems count time in steps, so a file may change again within one and keep its time."""

log = logging.getLogger(__name__)


class Header(Struct, frozen=True, kw_only=True):
    """The facts about one file. One of ``info``, ``error``, ``unread`` is set."""

    size: int = 0
    modified_ns: int = 0
    info: GgufInfo | None = None
    error: str | None = None
    missing: bool = False
    unread: bool = False


class _Stamp(NamedTuple):
    """While these stay equal, the contents do. ``changed_ns`` differs even if somebody sets the time back."""

    size: int
    modified_ns: int
    changed_ns: int
    inode: int


class _Entry(Struct, frozen=True, array_like=True):
    path: bytes
    stamp: _Stamp
    info: GgufInfo | None
    error: str | None
    settled: bool = True
    """False if the file may have changed since without a change of its stamp."""


class Headers:
    """Remembers headers, in the file ``place`` too if there is one. `read` and `known` may be called by any thread."""

    def __init__(self, place: Path | None = None) -> None:
        self._place = place
        self._entries: dict[str, _Entry] = {}
        self._loaded = place is None
        self._changed = False
        self._strings: Strings = {}  # until `keep`

    def known(self, path: str) -> Header:
        """Return what is known of a file without reading it; it may be ``unread``. Raises nothing."""
        return self._header(path, may_read=False)

    def read(self, path: str) -> Header:
        """Never raises for the content of the disk: see ``error``. File-system errors are not remembered."""
        return self._header(path, may_read=True)

    def _header(self, path: str, *, may_read: bool) -> Header:
        try:
            stamp = _stamp(stat_regular(path))
            entry = self._entries.get(path)
            if entry is None or entry.stamp != stamp or not (entry.settled or _is_fresh(stamp)):
                if not may_read:
                    return Header(size=stamp.size, modified_ns=stamp.modified_ns, unread=True)
                with open_regular(path) as file:
                    self._entries[path] = entry = _read(file, path, self._strings)
                self._changed = self._changed or entry.settled  # one that is being written is not kept
        except NotRegular as error:
            return Header(error=why(error))
        except PermissionError as error:
            return Header(error=f"it cannot be read: {why(error)}; 'sudo chmod a+r {shlex.quote(path)}' changes that")
        except OSError as error:
            return Header(error=f"it cannot be read: {why(error)}", missing=isinstance(error, FileNotFoundError))
        stamp = entry.stamp
        return Header(size=stamp.size, modified_ns=stamp.modified_ns, info=entry.info, error=entry.error)

    def load(self) -> None:
        """Take what is on the disk, the first time."""
        if not self._loaded:
            self._loaded = True
            self._entries = {**self._on_disk(), **self._entries}

    def forget_but(self, used: Collection[str | None]) -> None:
        """Forget all other files, so that deleted ones do not pile up."""
        unused = [path for path in dict(self._entries) if path not in used]
        for path in unused:
            self._entries.pop(path, None)
        self._changed = self._changed or any(not os.path.lexists(path) for path in unused)

    def keep(self) -> None:
        """Write the facts to the disk if some are new, or of files that are gone. Another program's facts stay."""
        self._strings = {}
        if self._place is None or not self._changed:
            return
        self._changed = False
        entries = {**self._on_disk(), **self._entries}
        packed, size = list[bytes](), 0
        for entry in _current(entries):
            try:
                packed.append(msgspec.msgpack.encode(entry))
            except (OverflowError, ValueError):  # a number of more than 64 bits: this file is read at every start
                continue
            size += len(packed[-1])
            if size > MAX_SIZE:
                packed.pop()
                break
        body = msgspec.msgpack.encode([msgspec.Raw(each) for each in packed])
        try:
            write_whole(self._place, MAGIC + hashlib.sha256(body).digest() + body, private=True)
        except OSError as error:
            log.info("the headers of models are read again at the next start: %s: %s", self._place, why(error))

    def _on_disk(self) -> Mapping[str, _Entry]:
        """A digest tells a damaged file, because damage may look like other facts."""
        try:
            data = read_start(self._place, MAX_SIZE + (1 << 20)) if self._place is not None else b""
            digest, body = data[len(MAGIC) :][:32], data[len(MAGIC) + 32 :]
            if not data.startswith(MAGIC) or hashlib.sha256(body).digest() != digest:
                return {}
            return {os.fsdecode(entry.path): entry for entry in msgspec.msgpack.decode(body, type=list[_Entry])}
        except (OSError, *UNREADABLE):
            return {}


def headers_file() -> Path:
    """Return the usual place of the facts. Raises UsageError."""
    return users_cache() / "headers"


def _stamp(found: os.stat_result) -> _Stamp:
    return _Stamp(found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)


def _is_fresh(stamp: _Stamp) -> bool:
    return abs(time.time_ns() - stamp.changed_ns) < SETTLED


def _current(entries: Mapping[str, _Entry]) -> Iterator[_Entry]:
    """Yield the entries of files that are still what they were."""
    for path, entry in sorted(entries.items()):
        try:
            if entry.settled and _stamp(os.stat(path)) == entry.stamp:  # noqa: PTH116  -- there may be thousands
                yield entry
        except (OSError, ValueError):
            continue


def _read(file: FileIO, path: str, strings: Strings) -> _Entry:
    def read_at(offset: int, count: int) -> bytes:
        file.seek(offset)
        return file.read(count)

    stamp = _stamp(os.fstat(file.fileno()))
    settled = not _is_fresh(stamp)
    info, error = None, None
    try:
        info = read_gguf(read_at, stamp.size, strings=strings)
    except GgufError as wrong:
        error = str(wrong)
    return _Entry(os.fsencode(path), stamp, info, error, settled)
