"""The scripts for ``sh`` in a tool runtime: only POSIX, because that may be busybox in a container.

Each script gets its words as ``$1`` and so on, never as text of its own. `CD` goes before all of them and takes ``$1``,
the working directory, away. Exit statuses above 60 are the scripts' own words, as in sysexits.h.
"""

from __future__ import annotations

from appliance.core.tools.search import JUNK, Kind

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


def listed_names(output: bytes) -> tuple[str, list[tuple[str, Kind]]]:
    """Parse the output of `LIST`: the folder, and entries with their kinds. A part that is cut at the end is
    dropped.
    """
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
