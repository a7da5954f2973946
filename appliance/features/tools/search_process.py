"""A process that searches and can be killed: the other side of `features.tools.place`.

It is separate because a regular expression may take for ever, and Python's `re` holds the whole interpreter meanwhile;
a walk over many files would also slow down everybody's answers. It reads one `SearchJob` from standard input, writes
its results as it finds them, and ends. It has no event loop, and imports little so that it starts at once.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Iterator
from typing import BinaryIO

import msgspec

from appliance.core.rooted_paths import BadPath
from appliance.features.tools.core.patterns import Glob, python_pattern
from appliance.features.tools.core.search import (
    JUNK,
    Found,
    FoundEntry,
    FoundText,
    Grep,
    GrepText,
    Kind,
    Search,
    SearchEnd,
    SearchJob,
)
from appliance.platform.rooted_files import listed, open_folder, open_regular

MAX_SCANNED = 1 << 20  # bytes of one line that are searched
BINARY_LOOK = 8192

_JOB = msgspec.json.Decoder(SearchJob)


def main() -> None:
    job = _JOB.decode(sys.stdin.buffer.read())
    try:
        searcher = _Searcher(job.search)
        if job.grep is None:
            searcher.find()
        else:
            searcher.grep(job.grep)
    except ValueError as error:  # BadPath, BadPattern and what `Glob` refuses
        _print_found(SearchEnd(0, error=str(error)))
    except FileNotFoundError:
        _print_found(SearchEnd(0, error=f"path does not exist: {job.search.base}"))
    except OSError as error:
        _print_found(SearchEnd(0, error=f"{error.strerror or error}: {job.search.base}"))


class _Searcher:
    def __init__(self, search: Search) -> None:
        self._search = search
        self._until = time.monotonic() + search.seconds
        self._include = Glob(search.include)
        self._exclude = Glob(search.exclude) if search.exclude else None
        self._cut = False

    def find(self) -> None:
        total = 0
        for path, kind in self._entries():
            total += 1
            if total <= self._search.limit or not self._search.limit:
                _print_found(FoundEntry(path, kind), flush=False)
        _print_found(SearchEnd(total, cut=self._cut))

    def _entries(self) -> Iterator[tuple[str, Kind]]:
        known = self._search.listing
        check = known is not None and self._search.check
        for path, kind in self._walk() if known is None else known:
            is_meant = self._include.matches(path) and not (self._exclude and self._exclude.matches(path))
            if is_meant and (not check or os.path.isfile(_path(self._search.base, path))):  # noqa: PTH113
                yield path, kind
            if self._late():
                return

    def _walk(self) -> Iterator[tuple[str, Kind]]:
        """Walk below the base, folders before their content; junk folders are listed and not entered."""
        search = self._search
        todo = deque([("", 1)])
        while todo:
            folder, depth = todo.popleft()
            try:
                with open_folder(_path(search.base, folder), search.root) as opened:
                    names = listed(opened, links=search.root is None)
            except (OSError, BadPath):
                if not folder:
                    raise
                self._cut = True  # it vanished, or is closed to us
                continue
            for name, is_folder, is_link in names:
                path = f"{folder}/{name}" if folder else name
                if search.kind in ("all", "dir" if is_folder else "file"):
                    # A name that is not UTF-8 cannot be reported as it is.
                    shown = path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
                    yield shown, "dir" if is_folder else "file"
                deeper = not search.max_depth or depth < search.max_depth
                is_junk = (name.lower() if sys.platform == "win32" else name) in JUNK
                if is_folder and not is_link and deeper and not is_junk:
                    todo.append((path, depth + 1))
            if self._late():
                return

    def _late(self) -> bool:
        if time.monotonic() > self._until:
            self._cut = True
            return True
        return False

    def grep(self, grep: Grep) -> None:
        search = self._search
        teller = _GrepTeller(grep)
        if _is_regular(search.base, search.root):
            self._grep_file(teller, search.base, grep.shown, named=True)
        else:
            with open_folder(search.base, search.root):
                pass  # a fault of the folder itself is an error
            for path, _ in self._entries():
                if teller.full or self._late():
                    break
                self._grep_file(teller, _path(search.base, path), path, named=False)
        _print_found(SearchEnd(teller.matches, cut=self._cut, full=teller.full))

    def _grep_file(self, teller: _GrepTeller, path: str, shown: str, *, named: bool) -> None:
        """Skip unreadable files, and binary ones, unless the file itself was named."""
        try:
            with open_regular(path, self._search.root) as fd, os.fdopen(fd, "rb", closefd=False) as file:
                if not named and b"\0" in file.peek(BINARY_LOOK)[:BINARY_LOOK]:
                    return
                teller.begin(shown)
                for line in _lines(file):
                    teller.take(line)
                    if teller.full or self._late():
                        return
        except (OSError, BadPath):
            if named:
                raise


class _GrepTeller(GrepText):
    """Reports the lines that match, with the lines around them."""

    def __init__(self, grep: Grep) -> None:
        super().__init__(numbers=grep.numbers or grep.context > 0, limit=grep.limit)
        self._grep = grep
        self._pattern = python_pattern(grep.pattern, literal=grep.literal, ignore_case=grep.ignore_case)
        self._shown = ""
        self._number = 0
        self._after = 0
        self._gap = False
        self._before: deque[str] = deque(maxlen=grep.context)

    def begin(self, shown: str) -> None:
        self._shown, self._number, self._after = shown, 0, 0
        self._before.clear()
        self._gap = self.matches > 0

    def take(self, text: str) -> None:
        self._number += 1
        if self._pattern.search(text):
            self._match(text)
        elif self._after:
            self._after -= 1
            self._beside(self._number, text)
        else:
            self._gap = self._gap or (self.matches > 0 and len(self._before) == self._grep.context)
            self._before.append(text)

    def _match(self, text: str) -> None:
        found = self.line(self._shown, ":", self._number, text)
        if self.full:
            return
        if self._gap and self._grep.context:
            _print_found(FoundText("--\n", 0))
        self._gap = False
        for back, before in zip(range(len(self._before), 0, -1), self._before, strict=True):
            self._beside(self._number - back, before)
        self._before.clear()
        _print_found(FoundText(found, 1))
        self._after = self._grep.context

    def _beside(self, number: int, text: str) -> None:
        _print_found(FoundText(self.line(self._shown, "-", number, text), 0))


def _lines(file: BinaryIO) -> Iterator[str]:
    """Yield each line without its end, and cut at `MAX_SCANNED`."""
    while line := file.readline(MAX_SCANNED):
        whole = line.endswith(b"\n")
        yield line.rstrip(b"\r\n").decode("utf-8", "replace")
        while not whole and (rest := file.readline(MAX_SCANNED)):
            whole = rest.endswith(b"\n")


def _is_regular(path: str, root: str | None) -> bool:
    try:
        with open_regular(path, root):
            return True
    except (BadPath, IsADirectoryError):
        return False


def _path(base: str, path: str) -> str:
    return f"{base.rstrip('/')}/{path}" if path else base


def _print_found(found: Found, *, flush: bool = True) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(found) + b"\n")
    if flush:
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
