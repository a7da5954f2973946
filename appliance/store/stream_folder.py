"""The folder that `stream_files` writes into. Synchronous: everything here is called in a worker thread."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec
from msgspec import Struct

PART = ".part"
WHOLE = ".sse"
RECORD_END = b"\n\n"
MAX_ABOUT = 1 << 20


class About(Struct, frozen=True, kw_only=True):
    """The first line of a file. ``interrupted`` is the record that ends the stream if nothing else ends it."""

    conversation: str
    started_at: float
    interrupted: bytes = b""
    dropped: int = 0
    interrupted_at: int | None = None


class Stored(Struct, frozen=True, kw_only=True):
    """A stream of an earlier run; ``dropped`` bytes came before ``data``."""

    key: int
    about: About
    completed_at: float
    dropped: int
    data: bytes
    interrupted_at: int | None


class _File(Struct):
    about: About
    path: Path
    size: int = 0
    """Size of the file's part of the stream in bytes, including the bytes that wait."""
    waiting: list[bytes] = []


class Folder:
    """Knows its files by number; newer streams have higher ones."""

    def __init__(self, path: Path, max_bytes: int, max_total: int) -> None:
        self.path = path
        self.next_key = 1
        self._max_bytes = max_bytes
        self._max_total = max_total
        self._files: dict[int, _File] = {}
        self._total = 0

    def load(self, keep: float) -> list[Stored]:
        """Read the folder, by age; an interrupted stream gets its last record. Raises OSError for a useless folder."""
        check_folder(self.path)
        stored: list[Stored] = []
        for path in sorted(self.path.iterdir()):
            key = _key(path)
            if key is None:
                continue
            self.next_key = max(self.next_key, key + 1)
            found = self._load_one(path, key, keep)
            if found is None:
                path.unlink(missing_ok=True)
            else:
                stored.append(found)
        self._make_room()
        return [found for found in stored if found.key in self._files]

    def begin(self, key: int, about: About) -> None:
        self._files[key] = _File(about, self._path(key, PART))
        self._write(self._files[key].path, _line(about), new=True)

    def append(self, key: int, data: bytes) -> None:
        """Written by `flush`."""
        file = self._files.get(key)
        if file is not None:
            file.waiting.append(data)
            file.size += len(data)
            self._total += len(data)

    def finish(self, key: int, completed_at: float) -> None:
        file = self._files.get(key)
        if file is not None:
            self._flush_one(file)
            os.utime(file.path, (completed_at, completed_at))
            file.path = file.path.replace(self._path(key, WHOLE))

    def discard(self, key: int) -> None:
        file = self._files.pop(key, None)
        if file is not None:
            self._total -= file.size
            file.path.unlink(missing_ok=True)

    def flush(self) -> None:
        """Write the appended bytes, and enforce the limits."""
        for file in self._files.values():
            self._flush_one(file)
        self._make_room()

    def abandon(self) -> None:
        """Delete incomplete files: the next start would take them for interrupted ones."""
        for file in self._files.values():
            if file.path.suffix == PART:
                try:
                    file.path.unlink(missing_ok=True)
                except OSError:
                    return

    def _flush_one(self, file: _File) -> None:
        if not file.waiting:
            return
        data, file.waiting = b"".join(file.waiting), []
        self._write(file.path, data)
        if file.size > 2 * self._max_bytes:
            self._shorten(file)

    def _shorten(self, file: _File) -> None:
        """Begin the file anew with the part of its end that the limit allows."""
        excess = file.size - self._max_bytes
        about = msgspec.structs.replace(file.about, dropped=file.about.dropped + excess)
        with file.path.open("rb") as old:
            old.seek(-self._max_bytes, os.SEEK_END)
            rest = old.read()
        new = file.path.with_suffix(".new")
        self._write(new, _line(about) + rest, new=True)
        new.replace(file.path)
        file.about = about
        file.size -= excess
        self._total -= excess

    def _make_room(self) -> None:
        for key in sorted(self._files):
            if self._total <= self._max_total:
                return
            self.discard(key)

    def _write(self, path: Path, data: bytes, *, new: bool = False) -> None:
        flags = os.O_WRONLY | os.O_APPEND | getattr(os, "O_BINARY", 0) | (os.O_CREAT | os.O_TRUNC if new else 0)
        descriptor = os.open(path, flags, 0o600)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        finally:
            os.close(descriptor)

    def _load_one(self, path: Path, key: int, keep: float) -> Stored | None:
        """Return None for a file that is too old, or not a stream of ours."""
        completed_at = path.stat().st_mtime
        now = time.time()
        if completed_at + keep < now:
            return None
        with path.open("rb") as file:
            try:
                about = msgspec.json.decode(file.readline(MAX_ABOUT), type=About)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                return None
            data = file.read()
        if path.suffix == PART:
            data = data[: data.rfind(RECORD_END) + len(RECORD_END)] if RECORD_END in data else b""
            about = msgspec.structs.replace(about, interrupted_at=about.dropped + len(data))
            data += about.interrupted
            completed_at = now
            new = path.with_suffix(".new")
            self._write(new, _line(about) + data, new=True)
            path.unlink()
            path = new.replace(self._path(key, WHOLE))
        self._files[key] = _File(about, path, len(data))
        self._total += len(data)
        return Stored(
            key=key,
            about=about,
            completed_at=completed_at,
            dropped=about.dropped,
            data=data,
            interrupted_at=about.interrupted_at,
        )

    def _path(self, key: int, suffix: str) -> Path:
        return self.path / f"stream-{key:010d}{suffix}"


def check_folder(path: Path) -> None:
    """Create it, and check that files can be created there. Raises OSError."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    probe = path / f"probe-{os.getpid()}"
    probe.write_bytes(b"")
    probe.unlink()


def _line(about: About) -> bytes:
    return msgspec.json.encode(about) + b"\n"


def _key(path: Path) -> int | None:
    """Return the number of one of our files; other files are left alone."""
    number = path.stem.removeprefix("stream-")
    ours = path.stem.startswith("stream-") and path.suffix in (PART, WHOLE) and number.isdecimal()
    return int(number) if ours else None
