"""The place where the built-in tools work: this machine, or a tool runtime. Every tool is written once, for both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct

from appliance.core.tools.search import Entry, Wanted
from appliance.core.tools.specs import FileGlobSearch, GrepSearch
from appliance.platform.process import Command


class FileProblem(Exception):
    """A file or folder cannot be used as requested; the message is for the model."""


class TooLarge(Exception):
    """A file with more bytes than the limit; ``size`` of them."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size


class Listing(Struct, frozen=True, kw_only=True):
    """The result of a search for files: ``total`` entries, the first ones of them listed. ``base`` is absolute."""

    base: str
    entries: Sequence[Entry]
    total: int
    cut: bool


class Matches(Struct, frozen=True, kw_only=True):
    """The result of a search for text. ``full``: there may be more. ``cut``: not every file was searched."""

    text: str
    count: int
    full: bool
    cut: bool


class Place(Protocol):
    """Relative paths begin at its working directory; ``~`` is the home folder there."""

    async def read(self, path: str, take: Callable[[bytes], bool], *, limit: int | None = None) -> None:
        """Pass a regular file's bytes to ``take`` until it has enough (False). Raises FileProblem, TooLarge."""
        ...

    async def write(self, path: str, content: bytes) -> None:
        """Write this to the file; create missing folders. Raises FileProblem."""
        ...

    async def find(self, asked: FileGlobSearch, kind: Wanted) -> Listing:
        """Raises FileProblem, also for a pattern that cannot be used."""
        ...

    async def grep(self, asked: GrepSearch) -> Matches:
        """Raises FileProblem, also for a pattern that cannot be used."""
        ...

    def shell(self, command: str) -> Command:
        """Return the command in its shell's form."""
        ...

    async def info(self) -> tuple[str, str]:
        """Return the system in its own words, and the working directory."""
        ...
