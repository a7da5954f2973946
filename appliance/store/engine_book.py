"""The book of engines on disk. Synchronous and quick; within one program, one caller at a time."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

from appliance.core.engines.book import Book
from appliance.store.file_lock import file_lock
from appliance.store.partial_file import sync_folder

BOOK = "book.json"
"""Its usual name, in the folder of installed builds."""
VERSION = 1
"""Version of the file. A newer program may add keys without a new version; a new one locks out older programs."""
MAX_SIZE = 16 << 20
LOCK_TIME = 2.0
"""Seconds that another program may take for its change. If it is stuck, a change of one of the two may be lost."""
REPLACE_ATTEMPTS = 20 if sys.platform == "win32" else 1
"""Windows cannot replace a file that somebody reads at this moment."""
REPLACE_AGAIN = 0.01

log = logging.getLogger(__name__)


class _Head(Struct, frozen=True):
    version: int = 0


class _Contents(Struct, frozen=True, kw_only=True):
    version: int
    book: Book


class BookFile:
    """One book, which other programs may change as well.

    Nothing here raises for what is on the disk: a book that cannot be read is moved aside and an empty one begun; one
    that cannot be written is kept in memory until it can be, which is said once.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._unsaved: Book | None = None
        self._told = False

    @property
    def is_saved(self) -> bool:
        """True if the disk has all changes."""
        return self._unsaved is None

    def read(self) -> Book:
        """The current book."""
        if self._unsaved is not None:
            return self._unsaved
        book = self._load()
        if book is not None:
            return book
        try:
            with self._alone():
                return self._load() or self._begin_anew()
        except OSError as cause:
            self._tell(cause)
            return Book()

    def change(self, change: Callable[[Book], Book]) -> Book:
        """Replace the book by the result of ``change``, and return it. No other program's change is lost."""
        try:
            with self._alone():
                before = self._unsaved or self._load() or self._begin_anew()
                after = change(before)
                if after != before or self._unsaved is not None:
                    self._write(after)
                self._unsaved = None
                self._told = False
        except OSError as cause:
            self._tell(cause)
            after = self._unsaved = change(self._unsaved or self._load() or Book())
        return after

    @contextmanager
    def _alone(self) -> Generator[None]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with file_lock(self.path.with_name(f"{self.path.name}.lock"), LOCK_TIME):
            yield

    def _load(self) -> Book | None:
        """Read the file; None if it is not a book of ours. Without a file, an empty one."""
        try:
            with self.path.open("rb") as file:
                data = file.read(MAX_SIZE + 1)
            return msgspec.json.decode(data, type=_Contents).book if _version(data) == VERSION else None
        except FileNotFoundError:
            return Book()
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None

    def _begin_anew(self) -> Book:
        """Move an unreadable file out of the way. Raises OSError."""
        aside = self.path.with_name(f"{self.path.name}.unreadable")
        self._replace(self.path, aside)
        log.warning(
            "%s could not be read: it is damaged, or from a newer version; it is now %s, and engines are proven again",
            self.path,
            aside.name,
        )
        return Book()

    def _write(self, book: Book) -> None:
        """Write the file. Raises OSError, and then the old one still exists."""
        data = msgspec.json.format(msgspec.json.encode(_Contents(version=VERSION, book=book)), indent=1)
        new = self.path.with_name(f"{self.path.name}.new")
        try:
            with new.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            self._replace(new, self.path)
        except OSError:
            with contextlib.suppress(OSError):
                new.unlink(missing_ok=True)
            raise
        with contextlib.suppress(OSError):  # some file systems cannot be asked to
            sync_folder(self.path.parent)

    def _replace(self, source: Path, target: Path) -> None:
        for attempt in range(1, REPLACE_ATTEMPTS + 1):
            try:
                source.replace(target)
                return
            except PermissionError:
                if attempt == REPLACE_ATTEMPTS:
                    raise
                time.sleep(REPLACE_AGAIN)

    def _tell(self, cause: OSError) -> None:
        if not self._told:
            self._told = True
            log.warning(
                "%s cannot be written (%s): results about engines are forgotten when the program ends",
                self.path,
                cause.strerror or cause,
            )


def _version(data: bytes) -> int:
    return msgspec.json.decode(data, type=_Head).version
