"""The plists of the program's launchd jobs, and what launchctl prints of them (launchd.plist(5), launchctl(1))."""

from __future__ import annotations

import plistlib
import re
from collections.abc import Sequence

from msgspec import Struct

from appliance.core.installed import MAC_ACCOUNT, NAME
from appliance.core.whole_numbers import whole_number
from appliance.features.service.core.systemd import STOP

LABEL = "io.llama-appliance"
HOME = f"/Library/Application Support/{NAME}"  # everything that the machine's service keeps
KEY = f"{HOME}/key"  # the file with its key, made at its installation
HIDDEN = ("/Users", "/Volumes", "/private/tmp")
"""Folders that only one user reads, that may not be there when the machine starts, or that are emptied then."""
OPEN_FILES = 65536
FREE_IDS = range(400, 500)  # numbers below 500 are those of services; Apple's own stay below 400
ABSENT = 113  # exit status of ``launchctl print`` for a job that is not loaded


class JobPlace(Struct, frozen=True):
    """The place of a job. ``domain`` as launchctl names it."""

    domain: str
    plist: str
    log: str  # its standard output and standard error
    ready: str  # the ready file, by which start waits until the program serves


DAEMON = JobPlace(
    "system", f"/Library/LaunchDaemons/{LABEL}.plist", f"/Library/Logs/{NAME}/service.log", f"{HOME}/service.json"
)
"""The machine's service."""


def agent(home: str, uid: int) -> JobPlace:
    """Return the place of a user's own service, which starts when the user logs in. ``home``: the user's folder."""
    library = f"{home}/Library"
    return JobPlace(
        f"gui/{uid}",
        f"{library}/LaunchAgents/{LABEL}.plist",
        f"{library}/Logs/{NAME}/service.log",
        f"{library}/Caches/{NAME}/service.json",
    )


def plist(place: JobPlace, command: Sequence[str]) -> bytes:
    """Return the job's plist. ``command``: the program with ``serve`` and its options.

    Raises ValueError for words that no plist can hold, and for a ready file of the user's own.
    """
    if any(word.partition("=")[0] == "--ready-file" for word in command):
        raise ValueError("--ready-file is the service's own; leave it out")
    if bad := next((word for word in command if any(ord(char) < 32 or ord(char) == 127 for char in word)), None):
        raise ValueError(f"{bad!r} cannot stand in a plist; leave out what cannot be printed")
    verb = command.index("serve") + 1
    system = place.domain == "system"
    own = ["--home", HOME] if system else []
    job: dict[str, object] = {
        "Label": LABEL,
        "ProgramArguments": [*command[:verb], *own, "--ready-file", place.ready, *command[verb:]],
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},  # a crash starts it again, a stop does not
        "ExitTimeOut": STOP,
        "ProcessType": "Interactive",  # else launchd slows down processor and disk for it
        "SoftResourceLimits": {"NumberOfFiles": OPEN_FILES},
        "HardResourceLimits": {"NumberOfFiles": OPEN_FILES},
        "Umask": 0o077,
        "StandardOutPath": place.log,
        "StandardErrorPath": place.log,
    }
    if system:
        job |= {
            "UserName": MAC_ACCOUNT,
            "GroupName": MAC_ACCOUNT,
            "WorkingDirectory": HOME,
            "EnvironmentVariables": {"HOME": HOME},
        }
    return plistlib.dumps(job, sort_keys=False)


class LaunchdJob(Struct, frozen=True):
    """A loaded job. ``runs``: how often it was started. ``ended``: how it ended last; empty: in order, or never."""

    pid: int | None = None
    runs: int = 0
    ended: str = ""


def read_job(printed: str) -> LaunchdJob:
    """Read ``launchctl print``. Only its outermost level counts: the blocks inside also have states and numbers."""
    pairs = [line.strip().partition(" = ") for line in printed.splitlines() if re.match(r"\t[^\t]", line)]
    words = {name: value for name, _, value in pairs}
    status = words.get("last exit code", "0")
    ended = words.get("last terminating signal", "") or ("" if status in ("0", "(never exited)") else f"exit {status}")
    pid, runs = words.get("pid", ""), words.get("runs", "")
    return LaunchdJob(whole_number(pid), whole_number(runs) or 0, ended)


def is_disabled(printed: str) -> bool:
    """Read ``launchctl print-disabled``: whether the job stays off when the machine starts, or the user logs in."""
    return re.search(rf'"{re.escape(LABEL)}" => (true|disabled)', printed) is not None


def free_id(listed: str) -> int:
    """Return a number for a service's account that ``dscl . -list /Users UniqueID`` and that of groups do not name.

    Raises ValueError when all are taken.
    """
    taken = {int(number) for number in re.findall(r"(-?\d+)\s*$", listed, re.MULTILINE)}
    found = next((number for number in FREE_IDS if number not in taken), None)
    if found is None:
        raise ValueError(f"all account numbers from {FREE_IDS.start} to {FREE_IDS.stop - 1} are taken; free one")
    return found
