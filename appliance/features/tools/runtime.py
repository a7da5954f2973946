"""Tools in a tool runtime: a container or another machine, reached through its program; never on this machine.

The scripts are for ``sh`` and only POSIX, because that may be busybox in a container. Each gets its words as ``$1`` and
so on, never as text of its own. `CD` goes before all of them and takes ``$1``, the working directory, away. Exit
statuses above 60 are the scripts' own words, as in sysexits.h.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence

from msgspec import structs

from appliance.core.capped_output import CappedOutput
from appliance.core.rooted_paths import BadPath, check_path
from appliance.core.tools.box import ToolProblem
from appliance.core.tools.targets import RunningContainer, Ssh, quoted
from appliance.core.whole_numbers import whole_number
from appliance.features.tools.core.patterns import BadToolPattern, posix_pattern
from appliance.features.tools.core.search import BUDGET, JUNK, GrepLines, Kind, Search, SearchEnd, SearchJob, Wanted
from appliance.features.tools.core.specs import MAX_CONTEXT, MAX_MATCHES, FileGlobSearch, GrepSearch
from appliance.features.tools.place import (
    WITH_INPUT,
    CommandEnded,
    FileProblem,
    FileTooLarge,
    SearchResult,
    run,
    search,
)
from appliance.platform.children import Children, inherited_env
from appliance.platform.process import KILL, Command, Sink, StopSteps, into

NO_FOLDER = 70
NOT_REGULAR = 65
NO_INPUT = 66
IS_FILE = 64

CD = f"""
find_it() {{ case $1 in "~"|"~/"*) f=$HOME${{1#"~"}};; /*) f=$1;; *) f=./$1;; esac; }}
if [ -n "$1" ]; then find_it "$1"; cd -- "$f" 2>/dev/null || exit {NO_FOLDER}; fi
shift
"""
"""``find_it`` leaves a path in ``f``, with every byte of it, also line feeds at its end. The path begins with a dot or
a slash, so that nothing takes it for an option, or for a special word of ``cd -`` and CDPATH.
"""

RUN = """
exec 3<&0 </dev/null
if command -v setsid >/dev/null 2>&1; then setsid sh -c "$1" 3<&- & else sh -c "$1" 3<&- & fi
job=$!
{ cat <&3; kill -s KILL -- "-$job" || kill -s KILL "$job"; } >/dev/null 2>&1 &
watch=$!
exec 3<&-
wait "$job" 2>/dev/null
status=$?
kill -s KILL "$watch" 2>/dev/null
kill -s KILL -- "-$job" 2>/dev/null
exit "$status"
"""
"""Runs ``$1``. When the input ends, because the caller has closed it or is gone, the command is killed with everything
that it has started (without setsid, only the shell).
"""

READ = f"""
find_it "$1"
[ -e "$f" ] || exit {NO_INPUT}
[ -f "$f" ] || exit {NOT_REGULAR}
size=$(wc -c < "$f") || exit {NO_INPUT}
echo "$size"
if [ -n "$2" ] && [ "$size" -gt "$2" ]; then exit 0; fi
exec cat < "$f"
"""
"""Prints the size of ``$1`` in bytes on a line, then its content, unless that is more than ``$2``."""

WRITE = f"""
find_it "$1"
if [ -e "$f" ] && [ ! -f "$f" ]; then exit {NOT_REGULAR}; fi
mkdir -p -- "${{f%/*}}/" && cat > "$f" && wc -c < "$f"
"""
"""Writes the input to ``$1``, and prints its new size."""

_JUNK = " -o ".join(f"-name {name}" for name in sorted(JUNK))
LIST = f"""
find_it "$1"
if [ -f "$f" ]; then exit {IS_FILE}; fi
cd -- "$f" 2>/dev/null || exit {NO_INPUT}
printf '%s\\0' "$PWD"
depth=
if [ "$3" -gt 0 ]; then depth="-maxdepth $3"; fi
if [ "$2" = file ]; then
  GIT_ALLOW_PROTOCOL= GIT_NO_LAZY_FETCH=1 GIT_OPTIONAL_LOCKS=0 \\
  git -c core.fsmonitor=false ls-files -z --cached --others --exclude-standard 2>/dev/null && exit 0
fi
if [ "$2" != file ]; then
  printf '/dir\\0'
  find . -mindepth 1 $depth \\( -type d \\( {_JUNK} \\) -prune -print0 \\) -o -type d -print0 2>/dev/null
fi
if [ "$2" != dir ]; then
  printf '/file\\0'
  find . -mindepth 1 $depth \\( -type d \\( {_JUNK} \\) -prune \\) -o -type f -print0 2>/dev/null
fi
exit 0
"""
"""Prints the folder ``$1`` in full; then names, each with a zero byte: files (``$2`` is ``file``), folders or all, at
most ``$3`` levels deep; ``/dir`` and ``/file`` announce their kind.
"""

GREP = f"""
find_it "$1"
cd -- "$f" 2>/dev/null || exit {NO_INPUT}
shift
xargs -0 grep -s -H -n "$@" -- /dev/null
exit 0
"""
"""Searches the files that the input names, each with a zero byte, below ``$1``; the other words are grep's."""

GREP_FILE = f"""
find_it "$1"
[ -f "$f" ] || exit {NOT_REGULAR}
shift
exec grep -s -n "$@" < "$f"
"""
SSH_OPTIONS = (
    *("-T", "-o", "BatchMode=yes", "-o", "PasswordAuthentication=no", "-o", "KbdInteractiveAuthentication=no"),
    *("-o", "StrictHostKeyChecking=yes", "-o", "LogLevel=ERROR"),
)
"""No user is there to answer questions: keys alone, and only known machines."""
SCRIPT_TIME = 15.0
MAX_LISTING = 8 << 20
NOT_THERE = (126, 127, 255)  # exit statuses of ssh and the container programs when they did not come to run anything


def listed_names(output: bytes) -> tuple[str, list[tuple[str, Kind]]]:
    """Parse the output of `LIST`: the folder, and entries with their kinds. A part that is cut off is dropped."""
    base, _, rest = output.partition(b"\0")
    kind: Kind = "file"
    found: list[tuple[str, Kind]] = []
    for record in rest.split(b"\0")[:-1]:
        name = record.decode("utf-8", "replace")
        if name in ("/dir", "/file"):
            kind = "dir" if name == "/dir" else "file"
        else:
            found.append((name.removeprefix("./"), kind))
    return base.decode("utf-8", "replace"), found


class Runtime:
    """A `Place` in a container or on another machine. Raises ToolProblem when that cannot be reached."""

    def __init__(self, children: Children, target: RunningContainer | Ssh, cwd: str | None) -> None:
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
        ended = await self._script(READ, words, pass_on)
        if ended.status in (NO_INPUT, NO_FOLDER):
            raise FileProblem(f"cannot stat file: {path}")
        self._check(ended, path)
        if limit is not None and (found := _number(size)) is not None and found > limit:
            raise FileTooLarge(found)

    async def write(self, path: str, content: bytes) -> None:
        output = CappedOutput()
        ended = await self._script(WRITE, (_checked(path),), into(output, flood=False), stdin=content)
        self._check(ended, path)
        if ended.status or _number(output.kept) != len(content):
            raise FileProblem(f"failed to write file: {path} {ended.errors.strip()}".rstrip())

    async def find(self, asked: FileGlobSearch, kind: Wanted) -> SearchResult:
        found = await self._listed(asked, kind, max(asked.max_depth, 0), limit=MAX_MATCHES)
        del found.entries[asked.limit :]
        return found

    async def grep(self, asked: GrepSearch) -> SearchResult:
        context = min(max(asked.context_lines, 0), MAX_CONTEXT)
        try:
            pattern = asked.pattern if asked.literal else posix_pattern(asked.pattern)
        except BadToolPattern as error:
            raise FileProblem(str(error)) from None
        options = ["-F" if asked.literal else "-E", *(["-i"] if asked.ignore_case else [])]
        options += [*([f"-C{context}"] if context else []), "-e", pattern]
        numbers = asked.return_line_numbers or context > 0
        listing = FileGlobSearch(path=asked.path, include=asked.include, exclude=asked.exclude)
        try:
            found = await self._listed(listing, "file", 0, limit=0)
            if not found.entries:
                return found
        except _IsFile:
            found = SearchResult()
        names = [entry.path for entry in found.entries]
        script = GREP if names else GREP_FILE
        lines = GrepLines(names, asked.path, numbers=numbers, limit=MAX_MATCHES)

        async def take(data: bytes) -> bool:
            return lines.feed(data)

        stdin = "\0".join((*names, "")).encode() if names else b""
        ended = await self._script(script, (asked.path, *options), take, stdin=stdin, seconds=BUDGET)
        if not lines.full:
            self._check(ended, asked.path)
        end = SearchEnd(lines.matches, cut=found.end.cut or ended.timed_out, full=lines.full)
        return SearchResult(text=lines.text, end=end)

    def shell(self, command: str) -> Command:
        return self._command(RUN, (command,), stdin=None, own_errors=False, ending=WITH_INPUT)

    async def info(self) -> tuple[str, str]:
        output = CappedOutput()
        ended = await self._script("uname -a; pwd", (), into(output, flood=False))
        self._check(ended, self._cwd)
        system, _, folder = output.text().strip().rpartition("\n")
        return (system or "unknown", folder) if ended.status == 0 else ("unknown", self._cwd or "unknown")

    async def _listed(self, asked: FileGlobSearch, kind: Wanted, depth: int, *, limit: int) -> SearchResult:
        output = CappedOutput(MAX_LISTING)
        words = (_checked(asked.path), kind, str(depth))
        ended = await self._script(LIST, words, into(output, flood=False))
        if ended.status == IS_FILE:
            raise _IsFile(f"path does not exist or is not a directory: {asked.path}")
        if ended.status in (NO_INPUT, NO_FOLDER):
            raise FileProblem(f"path does not exist or is not a directory: {asked.path}")
        self._check(ended, asked.path)
        base, found = listed_names(output.kept)
        known: list[tuple[str, Kind]] = [(name, what) for name, what in found if not depth or name.count("/") < depth]
        job = Search(base=base, include=asked.include, exclude=asked.exclude, listing=known, check=False, limit=limit)
        result = await search(self._children, SearchJob(search=job))
        result.end = structs.replace(result.end, cut=result.end.cut or output.truncated or ended.timed_out)
        return result

    async def _script(
        self, script: str, words: Sequence[str], take: Sink, *, stdin: bytes = b"", seconds: float = SCRIPT_TIME
    ) -> CommandEnded:
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
        ending: StopSteps = KILL,
    ) -> Command:
        """Raises ToolProblem when the program that leads there is not on this machine."""
        inner = ["sh", "-c", CD + script, "sh", self._cwd, *words]
        match self._target:
            case RunningContainer(engine, id):
                argv = [engine, "exec", "-i", id, *inner]
            case Ssh(target):
                argv = ["ssh", *SSH_OPTIONS, target, quoted(inner)]
        if shutil.which(argv[0]) is None:
            raise ToolProblem(self._name, f"there is no program '{argv[0]}' on this machine; install it")
        return Command(argv=argv, env=inherited_env(), stdin=stdin, own_errors=own_errors, ending=ending)

    @property
    def _name(self) -> str:
        match self._target:
            case RunningContainer(engine, id):
                return f"{engine}-container:{id}"
            case Ssh(target):
                return f"ssh:{target}"

    def _check(self, ended: CommandEnded, path: str) -> None:
        """Raises the error for the exit status of a script that did not do its work."""
        status = ended.status
        if status == NOT_REGULAR:
            raise FileProblem(f"it is not a regular file: {path}")
        if status == NO_FOLDER:
            raise FileProblem(f"the working directory does not exist: {self._cwd}")
        if status == NO_INPUT:
            raise FileProblem(f"path does not exist: {path}")
        if ended.timed_out:
            raise FileProblem(f"it took longer than {SCRIPT_TIME:g} s: {path} (status {status})")
        if status in NOT_THERE or (status == 1 and ended.errors.startswith("Error")):
            raise ToolProblem(self._name, f"it cannot be used: {ended.errors.strip() or f'status {status}'}")


class _IsFile(FileProblem):
    """A search below a folder was requested, and it is a file."""


def _checked(path: str) -> str:
    try:
        check_path(path)
    except BadPath as error:
        raise FileProblem(str(error)) from None
    return path


def _number(text: bytes) -> int | None:
    return whole_number(text.strip())
