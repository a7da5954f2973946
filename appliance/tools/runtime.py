"""Tools in a tool runtime: a container or another machine, reached through its program; never on this machine."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence

from appliance.core.tools import scripts
from appliance.core.tools.patterns import BadPattern, posix_pattern
from appliance.core.tools.places import BadPath, Container, Ssh, check_path, quoted
from appliance.core.tools.search import BUDGET, GrepLines, Job, Kind, Search, Wanted
from appliance.core.tools.specs import MAX_CONTEXT, MAX_MATCHES, FileGlobSearch, GrepSearch
from appliance.core.tools.texts import CappedOutput
from appliance.core.tools.tool import ToolProblem
from appliance.platform.children import Children, inherited_env
from appliance.platform.process import KILL, Command, Ending, Sink, into
from appliance.tools.place import FileProblem, Listing, Matches, TooLarge
from appliance.tools.processes import WITH_INPUT, Ended, run
from appliance.tools.searching import Result, search

SSH_OPTIONS = (
    *("-T", "-o", "BatchMode=yes", "-o", "PasswordAuthentication=no", "-o", "KbdInteractiveAuthentication=no"),
    *("-o", "StrictHostKeyChecking=yes", "-o", "LogLevel=ERROR"),
)
"""Nobody is there to answer questions: keys alone, and only known machines."""
SCRIPT_TIME = 15.0
MAX_LISTING = 8 << 20
NOT_THERE = (126, 127, 255)
"""Exit statuses of ssh and the container programs when they did not come to run anything."""


class Runtime:
    """A `Place` in a container or on another machine. Raises ToolProblem when that cannot be reached."""

    def __init__(self, children: Children, target: Container | Ssh, cwd: str | None) -> None:
        self._children = children
        self._target = target
        self._cwd = cwd or ""

    async def read(self, path: str, take: Callable[[bytes], bool], *, limit: int | None = None) -> None:
        size = b""
        begun = False

        async def pass_on(data: bytes) -> bool:
            nonlocal size, begun
            if begun:
                return take(data)
            size, newline, data = (size + data).partition(b"\n")
            begun = bool(newline)
            return not data or take(data)

        words = (_checked(path), "" if limit is None else str(limit))
        ended = await self._script(scripts.READ, words, pass_on)
        if ended.status in (scripts.NO_INPUT, scripts.NO_FOLDER):
            raise FileProblem(f"cannot stat file: {path}")
        self._check(ended, path)
        if limit is not None and (found := _number(size)) is not None and found > limit:
            raise TooLarge(found)

    async def write(self, path: str, content: bytes) -> None:
        output = CappedOutput()
        ended = await self._script(scripts.WRITE, (_checked(path),), into(output, flood=False), stdin=content)
        self._check(ended, path)
        if ended.status or _number(output.kept) != len(content):
            raise FileProblem(f"failed to write file: {path} {ended.errors.strip()}".rstrip())

    async def find(self, asked: FileGlobSearch, kind: Wanted) -> Listing:
        base, entries, cut = await self._listed(asked, kind, max(asked.max_depth, 0), limit=MAX_MATCHES)
        return Listing(base=base, entries=entries.entries[: asked.limit], total=entries.end.total, cut=cut)

    async def grep(self, asked: GrepSearch) -> Matches:
        context = min(max(asked.context_lines, 0), MAX_CONTEXT)
        try:
            pattern = asked.pattern if asked.literal else posix_pattern(asked.pattern)
        except BadPattern as error:
            raise FileProblem(str(error)) from None
        options = ["-F" if asked.literal else "-E", *(["-i"] if asked.ignore_case else [])]
        options += [*([f"-C{context}"] if context else []), "-e", pattern]
        numbers = asked.return_line_numbers or context > 0
        listing = FileGlobSearch(path=asked.path, include=asked.include, exclude=asked.exclude)
        try:
            _, found, cut = await self._listed(listing, "file", 0, limit=0)
        except _IsFile:
            names: list[str] = []
            script, cut = scripts.GREP_FILE, False
        else:
            names = [entry.path for entry in found.entries]
            script = scripts.GREP
            if not names:
                return Matches(text="", count=0, full=False, cut=cut)
        lines = GrepLines(names, asked.path, numbers=numbers, limit=MAX_MATCHES)

        async def take(data: bytes) -> bool:
            return lines.feed(data)

        stdin = "\0".join((*names, "")).encode() if names else b""
        ended = await self._script(script, (asked.path, *options), take, stdin=stdin, seconds=BUDGET)
        if not lines.full:
            self._check(ended, asked.path)
        return Matches(text=lines.text, count=lines.matches, full=lines.full, cut=cut or ended.timed_out)

    def shell(self, command: str) -> Command:
        return self._command(scripts.RUN, (command,), stdin=None, own_errors=False, ending=WITH_INPUT)

    async def info(self) -> tuple[str, str]:
        output = CappedOutput()
        ended = await self._script("uname -a; pwd", (), into(output, flood=False))
        self._check(ended, self._cwd)
        system, _, folder = output.text().strip().rpartition("\n")
        return (system or "unknown", folder) if ended.status == 0 else ("unknown", self._cwd or "unknown")

    # ---- how ---------------------------------------------------------------------------------------------------------

    async def _listed(self, asked: FileGlobSearch, kind: Wanted, depth: int, *, limit: int) -> tuple[str, Result, bool]:
        """Return the folder, its entries, and whether there may be more."""
        output = CappedOutput(MAX_LISTING)
        words = (_checked(asked.path), kind, str(depth))
        ended = await self._script(scripts.LIST, words, into(output, flood=False))
        if ended.status == scripts.IS_FILE:
            raise _IsFile(f"path does not exist or is not a directory: {asked.path}")
        if ended.status in (scripts.NO_INPUT, scripts.NO_FOLDER):
            raise FileProblem(f"path does not exist or is not a directory: {asked.path}")
        self._check(ended, asked.path)
        base, found = scripts.listed_names(output.kept)
        known: list[tuple[str, Kind]] = [(name, what) for name, what in found if not depth or name.count("/") < depth]
        job = Search(base=base, include=asked.include, exclude=asked.exclude, listing=known, check=False, limit=limit)
        result = await search(self._children, Job(search=job))
        return base, result, result.end.cut or output.truncated or ended.timed_out

    async def _script(
        self, script: str, words: Sequence[str], take: Sink, *, stdin: bytes = b"", seconds: float = SCRIPT_TIME
    ) -> Ended:
        command = self._command(script, words, stdin=stdin)
        try:
            return await run(self._children, command, take, seconds=seconds)
        except (OSError, ValueError) as error:
            raise ToolProblem(self._name, f"it cannot be started: {error}") from None

    def _command(
        self,
        script: str,
        words: Sequence[str],
        *,
        stdin: bytes | None = b"",
        own_errors: bool = True,
        ending: Ending = KILL,
    ) -> Command:
        """Raises ToolProblem when the program that leads there is not on this machine."""
        inner = ["sh", "-c", scripts.CD + script, "sh", self._cwd, *words]
        argv = self._leading_to(inner)
        if shutil.which(argv[0]) is None:
            raise ToolProblem(self._name, f"there is no program '{argv[0]}' on this machine; install it")
        return Command(argv=argv, env=inherited_env(), stdin=stdin, own_errors=own_errors, ending=ending)

    def _leading_to(self, inner: list[str]) -> list[str]:
        match self._target:
            case Container(engine, id):
                return [engine, "exec", "-i", id, *inner]
            case Ssh(target):
                return ["ssh", *SSH_OPTIONS, target, quoted(inner)]

    @property
    def _name(self) -> str:
        match self._target:
            case Container(engine, id):
                return f"{engine}-container:{id}"
            case Ssh(target):
                return f"ssh:{target}"

    def _check(self, ended: Ended, path: str) -> None:
        """Raises the error for the exit status of a script that did not do its work."""
        match ended.status:
            case scripts.NOT_REGULAR:
                raise FileProblem(f"it is not a regular file: {path}")
            case scripts.NO_FOLDER:
                raise FileProblem(f"the working directory does not exist: {self._cwd}")
            case scripts.NO_INPUT:
                raise FileProblem(f"path does not exist: {path}")
            case status if ended.timed_out:
                raise FileProblem(f"it took longer than {SCRIPT_TIME:g} s: {path} (status {status})")
            case status if status in NOT_THERE or (status == 1 and ended.errors.startswith("Error")):
                raise ToolProblem(self._name, f"it cannot be used: {ended.errors.strip() or f'status {status}'}")
            case _:
                pass


class _IsFile(FileProblem):
    """A search below a folder was requested, and it is a file."""


def _checked(path: str) -> str:
    try:
        check_path(path)
    except BadPath as error:
        raise FileProblem(str(error)) from None
    return path


def _number(text: bytes) -> int | None:
    text = text.strip()
    return int(text) if text.isdigit() else None
