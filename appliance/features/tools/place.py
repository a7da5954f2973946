"""The place where tools work: its files, its commands, and the process that searches there (`search_process`).

A command runs for a bounded time, its output is taken as it comes, and nothing is left of it afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec
from msgspec import Struct

from appliance.core.capped_output import CappedOutput
from appliance.core.tools.box import ToolProblem
from appliance.features.tools import search_process
from appliance.features.tools.core.search import Found, FoundEntry, FoundText, SearchEnd, SearchJob, Wanted
from appliance.features.tools.core.specs import FileGlobSearch, GrepSearch
from appliance.platform import process
from appliance.platform.children import Children, inherited_env, own_process
from appliance.platform.process import Command, Sink, StopSteps, into

PIPE_GRACE = 2.0
"""Seconds to read the rest from the pipes, once the command has ended with everything that it has started."""
WITH_INPUT = StopSteps(closed=2.0)  # a command that may run on another machine: closing its input is what ends it there
MAX_ERRORS = 4096
KILLED = -9  # the status of a command that hangs in the kernel, which will kill it
KILL_AFTER = 1.0  # seconds beyond its budget that the process gets to report its end
MAX_MESSAGES = 64 << 20
_FOUND: msgspec.json.Decoder[Found] = msgspec.json.Decoder(Found)


class FileProblem(Exception):
    """A file or folder cannot be used as requested; the message is for the model."""


class FileTooLarge(Exception):
    """A file with more bytes than the limit; ``size`` of them."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size


class SearchResult(Struct):
    """Files, the first ones of them, or lines of text. ``end`` of a search that was killed says that it is cut."""

    base: str = ""  # the folder in full, for files
    entries: list[FoundEntry] = []
    text: str = ""
    end: SearchEnd = SearchEnd(0)


class ToolPlace(Protocol):
    """Relative paths begin at its working directory; ``~`` is the home folder there."""

    async def read(self, path: str, take: Callable[[bytes], bool], *, limit: int | None = None) -> None:
        """Pass a regular file's bytes to ``take`` until it has enough (False). Raises FileProblem, FileTooLarge."""

    async def write(self, path: str, content: bytes) -> None:
        """Write this to the file; create missing folders. Raises FileProblem."""

    async def find(self, asked: FileGlobSearch, kind: Wanted) -> SearchResult:
        """Raises FileProblem, also for a pattern that cannot be used."""
        ...

    async def grep(self, asked: GrepSearch) -> SearchResult:
        """Raises FileProblem, also for a pattern that cannot be used."""
        ...

    def shell(self, command: str) -> Command:
        """Return the command in its shell's form."""
        ...

    async def info(self) -> tuple[str, str]:
        """Return the system in its own words, and the working directory."""
        ...


class CommandEnded(Struct, frozen=True, kw_only=True):
    """The end of a command. ``status`` is in the shell's way: 128 plus the signal's number for a killed one."""

    status: int
    timed_out: bool = False
    errors: str = ""  # the beginning of its standard error, if that was separate


async def run(children: Children, command: Command, take: Sink, *, seconds: float) -> CommandEnded:
    """Run it, for at most this long. Cancelling kills it, with everything that it has started.

    Raises OSError, or ValueError, when it cannot be started. A missing program shows as status 126 or 127.
    """
    errors = CappedOutput(MAX_ERRORS)
    ended = await process.run(children, command, take, errors=into(errors), seconds=seconds, rest=PIPE_GRACE)
    status = KILLED if ended.status is None else ended.status
    return CommandEnded(status=status if status >= 0 else 128 - status, timed_out=ended.timed_out, errors=errors.text())


async def search(children: Children, job: SearchJob) -> SearchResult:
    """Raises FileProblem with the process's reason, ToolProblem when there is none."""
    entries, texts, end = list[FoundEntry](), list[FoundText](), None
    rest = b""
    size = 0

    async def take(data: bytes) -> bool:
        nonlocal end, rest, size
        size += len(data)
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            match _FOUND.decode(line):
                case FoundEntry() as entry:
                    entries.append(entry)
                case FoundText() as text:
                    texts.append(text)
                case SearchEnd() as end:
                    pass
        return size < MAX_MESSAGES

    argv, stdin = own_process(search_process.__name__), msgspec.json.encode(job)
    command = Command(argv=argv, env=inherited_env(), stdin=stdin, own_errors=True)
    try:
        ended = await run(children, command, take, seconds=job.search.seconds + KILL_AFTER)
    except OSError as error:
        raise ToolProblem("search", f"the process that searches cannot be started: {error}") from None
    if end is None:
        if not ended.timed_out and size < MAX_MESSAGES:
            raise ToolProblem("search", f"the process that searches failed: {ended.errors.strip()[-500:]}")
        end = SearchEnd(sum(text.matches for text in texts) or len(entries), cut=True)
    if end.error:
        raise FileProblem(end.error)
    return SearchResult(job.search.base, entries, "".join(text.text for text in texts), end)
