"""Tools on this machine, with or without a root that they cannot leave."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import trio
from msgspec import structs

from appliance.core.capped_output import CappedOutput, readable
from appliance.core.rooted_paths import BadPath, check_path, expanded
from appliance.features.tools.core.search import BUDGET, Grep, Kind, Search, SearchJob, Wanted
from appliance.features.tools.core.specs import MAX_CONTEXT, MAX_MATCHES, FileGlobSearch, GrepSearch
from appliance.features.tools.place import FileProblem, FileTooLarge, SearchResult, run, search
from appliance.platform.children import SHELL, Children, inherited_env
from appliance.platform.process import Command, into
from appliance.platform.rooted_files import home_folder, open_folder, open_regular, resolved

PIECE = 1 << 18
MAX_LISTING = 8 << 20  # bytes of git's list of files; llama-server's (b11434)
INFO_TIME = 5.0
GIT = ("git", "-c", "core.fsmonitor=false", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
"""Switches off the program that a repository's own configuration may name: writing files would otherwise run
commands.
"""
NO_FETCHING = {"GIT_ALLOW_PROTOCOL": "", "GIT_NO_LAZY_FETCH": "1", "GIT_OPTIONAL_LOCKS": "0"}
"""Otherwise git would fetch the objects that a repository lacks on purpose, by a command of the same configuration."""

_THREADS = trio.CapacityLimiter(8)  # files on a network that is gone must not use up the threads of everybody else


class HostPlace:
    """A `Place`. ``root`` is as `platform.rooted_files.real_root` returns it."""

    def __init__(self, children: Children, cwd: str | None, root: str | None) -> None:
        self._children = children
        self._root = root
        self._cwd: str | None = None  # from which the next line has its own paths begin
        self._cwd = self._path(cwd) if cwd else None

    async def read(self, path: str, take: Callable[[bytes], bool], *, limit: int | None = None) -> None:
        with trio.move_on_after(BUDGET) as reading:
            await self._file(path, partial(_read, take, limit), "cannot stat file")
        if reading.cancelled_caught:
            seconds = f"reading took more than {BUDGET:g} s and was given up"
            raise FileProblem(f"{seconds}: {path}; search it with grep_search, or read less")

    async def write(self, path: str, content: bytes) -> None:
        await self._file(path, partial(_write, content), "failed to write file")

    async def find(self, asked: FileGlobSearch, kind: Wanted) -> SearchResult:
        base, began = self._path(asked.path), trio.current_time()
        await self._in_thread(partial(_look, base, self._root), asked.path)
        depth = max(asked.max_depth, 0)
        listing = await self._tracked(base, depth) if kind == "file" else None
        where = self._search(base, asked, listing, began)
        wanted = structs.replace(where, kind=kind, max_depth=depth, limit=min(asked.limit, MAX_MATCHES))
        return await search(self._children, SearchJob(search=wanted))

    async def grep(self, asked: GrepSearch) -> SearchResult:
        base, began = self._path(asked.path), trio.current_time()
        listing = await self._tracked(base, 0)
        grep = Grep(
            pattern=asked.pattern,
            literal=asked.literal,
            ignore_case=asked.ignore_case,
            numbers=asked.return_line_numbers,
            context=min(max(asked.context_lines, 0), MAX_CONTEXT),
            shown=asked.path,
            limit=MAX_MATCHES,
        )
        return await search(self._children, SearchJob(search=self._search(base, asked, listing, began), grep=grep))

    def shell(self, command: str) -> Command:
        return Command(argv=(*SHELL, command), env=inherited_env(), cwd=self._cwd)

    async def info(self) -> tuple[str, str]:
        argv = ("cmd", "/c", "ver") if sys.platform == "win32" else ("uname", "-a")
        if self._cwd is not None:
            await self._in_thread(partial(_look, self._cwd, self._root), self._cwd)
        output, system = CappedOutput(), ""
        with suppress(OSError):
            command = Command(argv=argv, env=inherited_env())
            ended = await run(self._children, command, into(output), seconds=INFO_TIME)
            system = output.text().strip() if ended.status == 0 else ""
        return system or "unknown", self._cwd or self._root or os.getcwd()  # noqa: PTH109

    def _search(
        self, base: str, asked: FileGlobSearch | GrepSearch, listing: list[tuple[str, Kind]] | None, began: float
    ) -> Search:
        seconds = BUDGET - (trio.current_time() - began)
        root, include, exclude = self._root, asked.include, asked.exclude
        return Search(base=base, root=root, include=include, exclude=exclude, listing=listing, seconds=seconds)

    def _path(self, path: str) -> str:
        """Return an absolute path. Raises FileProblem."""
        try:
            check_path(path)
        except BadPath as error:
            raise FileProblem(str(error)) from None
        return resolved(self._cwd, expanded(path, home_folder()), self._root)

    async def _file(self, path: str, work: Callable[[str, str | None], None], failed: str) -> None:
        try:
            await self._in_thread(partial(work, self._path(path), self._root), path)
        except OSError as error:
            missing = error.errno in (errno.ENOENT, errno.ENOTDIR)
            why = "" if missing else f" ({error.strerror or error})"
            raise FileProblem(f"{failed}: {path}{why}") from None

    async def _in_thread(self, work: Callable[[], None], path: str) -> None:
        """Raises OSError, FileProblem and the exceptions of ``work``."""
        try:
            await trio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=_THREADS)
        except BadPath as error:
            raise FileProblem(str(error)) from None
        except UnicodeEncodeError:
            raise FileProblem(f"the path cannot be a path here: {path!r}") from None

    async def _tracked(self, base: str, max_depth: int) -> list[tuple[str, Kind]] | None:
        """Return the files of a git repository but for ignored ones, or None. Below a root git is never asked."""
        if self._root is not None or shutil.which(GIT[0]) is None:
            return None
        output = CappedOutput(MAX_LISTING)
        env = inherited_env() | NO_FETCHING
        command = Command(argv=(GIT[0], "-C", base, *GIT[1:]), env=env, own_errors=True)
        ended = await run(self._children, command, into(output, flood=False), seconds=BUDGET)
        if ended.timed_out or (ended.status and not output.truncated):
            return None
        names = [readable(name) for name in output.kept.split(b"\0") if name]
        if output.truncated:
            names.pop()
        return [(name, "file") for name in names if not max_depth or name.count("/") < max_depth]


def _look(base: str, root: str | None) -> None:
    try:
        with open_folder(base, root):
            pass
    except OSError as error:
        raise FileProblem(f"path does not exist or is not a directory: {base} ({error.strerror})") from None


def _read(take: Callable[[bytes], bool], limit: int | None, path: str, root: str | None) -> None:
    with open_regular(path, root) as fd:
        size = os.fstat(fd).st_size
        if limit is not None and size > limit:
            raise FileTooLarge(size)
        while data := os.read(fd, PIECE):
            trio.from_thread.check_cancelled()
            if not take(data):
                return


def _write(content: bytes, path: str, root: str | None) -> None:
    with open_regular(path, root, write=True) as fd:
        os.ftruncate(fd, 0)
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(fd, rest) :]
