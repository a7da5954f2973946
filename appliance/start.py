"""The first thing of every start: the program that the user installed leads to the version that is in use now.

    <data>/programs/<version>-<digest12>/   a version; a link for the folder that the user unpacked
    <data>/programs/.<version>-<digest12>.unpacked    that link, where an import has brought a copy of the version
    <data>/programs/state.json              what is in use, what was before it, the upgrade under way
    <data>/programs/.runs/<pid>             servers of a version on trial

A switch is one write of ``state.json``, so no start ever sees half of it. Commands, services and desktop entries keep
the path that they have always had. A folder that is not linked there is nobody's business here: an application that
carries its own copy of the program always runs that copy. This module is imported by every start, hence its function
level imports: where nothing was ever upgraded it looks for one file.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Never

from appliance.core.payload import LIST
from appliance.errors import UsageError
from appliance.platform.console import PROGRAM, is_frozen, outer_environment, say
from appliance.platform.home import expanded, users_data

if TYPE_CHECKING:
    from appliance.core.programs import TrialRun
    from appliance.core.versions import VersionState
    from appliance.store.version_file import VersionFile

VARIABLE = "LLAMA_APPLIANCE_PROGRAMS_DIR"
ONE_FILE = "LLAMA_APPLIANCE_FILE"
"""Set by the one-file program (installer/onefile.c): the file that the user started."""
LED, RUN = "LLAMA_APPLIANCE_LED_BY", "LLAMA_APPLIANCE_RUN"
"""Set for the version that a start led to, which leads nowhere else: the program that did, the file of its run."""
STATE = "state.json"
RUNS = ".runs"
PACKAGED = ("/usr/lib", "/usr/share", "/usr/bin", "/usr/libexec")
"""The folders in which only package managers put programs."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
run_file: Path | None = None
"""The note of this very run, while it is on trial."""
_leader = ""


def programs_folder() -> Path:
    """Return the folder of versions: `VARIABLE`, else in the user's data folder."""
    if named := os.environ.get(VARIABLE):
        return expanded(named).absolute()
    return users_data() / "programs"


def program_file(root: Path) -> VersionFile[VersionState, Never]:
    """Return the file in the folder of versions that remembers them."""
    from appliance.core.versions import VersionState, reduce
    from appliance.store.version_file import VersionFile

    return VersionFile(root, VersionState(), reduce, lost="every start uses the version that it was called for")


def own_folder() -> Path | None:
    """Return the payload that this program was started from; None: it runs from its sources."""
    folder = Path(sys.executable if is_frozen() else sys.argv[0]).resolve().parent
    return folder if (folder / LIST).is_file() else None


def is_packaged(folder: Path) -> bool:
    """True if a package manager has put it there."""
    return any(folder.is_relative_to(place) for place in PACKAGED)


def refuse_packaged(folder: Path | None) -> Path:
    """Return the running program's folder. Raises UsageError for one that another program upgrades."""
    if sys.platform == "win32":
        raise UsageError("'upgrade' does not work on Windows yet; install the newer version over this one")
    if one_file := os.environ.get(ONE_FILE):
        raise UsageError(f"{one_file} is one file: put the newer one in its place; the data stay")
    if folder is None:
        raise UsageError(
            "this program runs from its sources or from pip, which upgrade it; 'upgrade' is for the frozen program"
        )
    if is_packaged(folder):
        raise UsageError(
            f"{folder} belongs to the package manager, which upgrades it: 'apt install ./FILE.deb' or 'dnf install "
            "./FILE.rpm'"
        )
    return folder


def own_command() -> list[str]:
    """Return the command that starts this program, and that leads to the version in use also after a switch."""
    if one_file := os.environ.get(ONE_FILE):  # the folder that it unpacked itself into comes and goes
        return [one_file]
    if _leader:
        return [_leader]
    if not is_frozen() and own_folder() is not None:
        return [sys.argv[0]]
    executable = Path(sys.executable).resolve() if is_frozen() else Path(sys.executable)
    beside = executable.with_name(PROGRAM + (".exe" if sys.platform == "win32" else ""))  # not one of another name
    return [str(beside)] if beside.is_file() else [str(executable), *(() if is_frozen() else ("-m", "appliance"))]


def called() -> str:
    """Return how a shell of this machine starts this program: by its name if PATH leads to it, else by its path."""
    import shutil

    command, found = own_command(), shutil.which(PROGRAM)
    if found is not None and len(command) == 1 and Path(found).resolve() == Path(command[0]).resolve():
        return PROGRAM
    return in_shell(command)


def in_shell(words: Sequence[str]) -> str:
    """Return the words as one line for a shell."""
    if sys.platform == "win32":
        import subprocess

        return subprocess.list2cmdline(words)
    import shlex

    return shlex.join(words)


def linked(root: Path) -> Iterator[tuple[str, Path]]:
    """Return the name and the folder of each version that the user installed elsewhere."""
    for entry in os.scandir(root):
        if entry.is_symlink() and (folder := Path(entry.path).resolve()).is_dir():
            yield entry.name, folder


def lead() -> None:
    """Become the version in use if this is not it; note the run of one on trial. Returns where this one is to go on."""
    global run_file, _leader
    _leader, run = os.environ.pop(LED, ""), os.environ.pop(RUN, "")
    if _leader:
        run_file = Path(run) if run else None
        return
    own = own_folder()
    if own is None or sys.platform == "win32":
        return
    try:
        root = programs_folder()
    except UsageError:  # without a home there are no versions of this user
        return
    try:
        if (root / STATE).is_file():
            _lead(own, root)
    except (OSError, TimeoutError) as cause:
        say(f"{PROGRAM}: which version is in use cannot be found out in {root} ({cause}); this one is used")


def _lead(own: Path, root: Path) -> None:
    """Raises OSError and TimeoutError, also for a folder that another user could have filled."""
    global run_file
    from appliance.core import programs

    _refuse_strangers(root)
    is_linked = any(folder == own for _, folder in linked(root))
    if not is_linked and own.parent != root.resolve():
        return
    file = program_file(root)
    state = file.read()
    now, boot = time.time(), _boot()
    for run in _ended_runs(root):
        if (event := programs.failure_of(run, boot)) is not None:
            before = programs.chosen(state, _here(root))
            state = file.apply([event])
            after = programs.chosen(state, _here(root))
            if before != after and before is not None and after is not None:
                say(
                    f"{PROGRAM}: version {programs.name_of(before)} failed within its first hour: {event.why}; "
                    f"{programs.name_of(after)} is used again"
                )
    program = programs.chosen(state, _here(root))
    if program is None:
        return
    folder = (root / programs.name_of(program)).resolve()
    if folder != own and not is_linked:
        return  # somebody asked for this very version
    if folder != own:
        _refuse_strangers(folder / PROGRAM)
    until = state.trial_end(program, now)
    if until is not None and sys.argv[1:2] and sys.argv[1] in programs.SERVES:
        run_file = _noted(root, programs.TrialRun(program=program, pid=os.getpid(), boot=boot, at=now, until=until))
    if folder == own:
        return
    command = str(folder / PROGRAM)
    environment = outer_environment() | {LED: str(own / PROGRAM), RUN: str(run_file or "")}
    try:
        os.execve(command, [command, *sys.argv[1:]], environment)
    except OSError as cause:
        ended()
        say(f"{PROGRAM}: {command} cannot be started ({cause.strerror}); this version is used")


def _refuse_strangers(path: Path) -> None:
    """Raises PermissionError. Root may have been given a user's HOME, as by a `sudo` that keeps it."""
    from appliance.platform.strangers import stranger_at

    if why := stranger_at(path):
        raise PermissionError(why)


def _here(root: Path) -> list[str]:
    from appliance.core.programs import LINE

    return [f"{LINE}/{path.parent.name}" for path in root.glob(f"*/{LIST}") if not path.parent.name.startswith(".")]


def _boot() -> str:
    try:
        return BOOT_ID.read_text("utf-8").strip()
    except OSError:
        import psutil

        return str(round(psutil.boot_time()))


# ---- runs ------------------------------------------------------------------------------------------------------------


def _noted(root: Path, run: TrialRun) -> Path:
    import msgspec

    from appliance.store.model_files import write_whole

    file = root / RUNS / str(run.pid)
    write_whole(file, msgspec.json.encode(run))
    return file


def _ended_runs(root: Path) -> Iterator[TrialRun]:
    """Return the runs that nobody has forgotten and whose process is gone, each once."""
    from appliance.core.lenient_json import decoded
    from appliance.core.programs import TrialRun

    for file in list((root / RUNS).glob("[0-9]*")):
        run = decoded(TrialRun, file.read_bytes())
        if run is None or not _lives(run.pid):
            file.unlink(missing_ok=True)
            if run is not None:
                yield run


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return pid != os.getpid()  # this process has only begun: the note is of another one that had its number


def ended() -> None:
    """This run ended in good order, or is on trial no more: forget it."""
    global run_file
    if run_file is not None:
        run_file.unlink(missing_ok=True)
        run_file = None


async def forget_after_trial() -> None:
    """Forget this run when its version's hour is over: a later failure does not lead back to the version before."""
    if run_file is not None:
        import trio

        from appliance.core.lenient_json import decoded
        from appliance.core.programs import TrialRun

        run = decoded(TrialRun, await trio.to_thread.run_sync(run_file.read_bytes))
        await trio.sleep(max(0.0, run.until - time.time()) if run is not None else 0)
        ended()
