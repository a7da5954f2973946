"""The life of a Windows service as the service control manager (SCM) sees it, and what its entry says.

Numbers and rules are those of the Win32 documentation (winsvc.h: SERVICE_STATUS, HandlerEx, SERVICE_FAILURE_ACTIONS).
The SCM starts a process and then gets reports from it. A pending state must come with a wait hint, and before that time
is over with another report whose checkpoint is higher. Else the SCM takes the service for hung.
"""

from __future__ import annotations

import hashlib
import ntpath
import struct
from collections.abc import Mapping, Sequence
from pathlib import PureWindowsPath
from typing import Literal

from msgspec import Struct

from appliance.core.installed import NAME

DISPLAY = "Llama Appliance"
DESCRIPTION = "A private AI server: runs the language models of this machine with llama.cpp."
ACCOUNT = rf"NT SERVICE\{NAME}"
"""A virtual account: Windows makes it with the service. It has no password, and is in no group but Users."""
HOME = NAME  # the folder of models, data and log, in ``%ProgramData%``
LOG = "service.log"
KEY = "key"  # the file with the service's key in that folder, made at its installation

STOPPED, START_PENDING, STOP_PENDING, RUNNING = 1, 2, 3, 4
STATES = {1: "stopped", 2: "starting", 3: "stopping", 4: "running", 5: "continuing", 6: "pausing", 7: "paused"}
STOP, INTERROGATE, POWER, PRESHUTDOWN = 1, 4, 13, 15  # controls that the SCM sends
ACCEPTS = 0x001 | 0x040 | 0x100
"""The controls that a running service wants: stop, power events, and the time before the machine shuts down."""
WOKE = (7, 18)  # power events after sleep: the user woke the machine, or something else did
NO_ERROR, NOT_IMPLEMENTED, SERVICE_SPECIFIC = 0, 120, 1066

CHECKPOINT = 5.0  # seconds between two reports while the service stops
START_HINT, STOP_HINT = 120_000, 30_000  # milliseconds until the next report at the latest
PRESHUTDOWN_TIME = 60_000
"""Milliseconds for which Windows waits before it shuts down; requests get their grace, models their time to stop."""
RESTARTS = (2_000, 10_000, 60_000)
"""Milliseconds until Windows starts a service that failed again: the first, the second, and every later time."""
FORGIVEN = 86_400  # seconds without a failure after which the next one is the first again
ADVICE = {
    2: "the program's file is not there; install the service again",
    5: "needs an administrator: start the console with 'Run as administrator'",
    1053: "the program did not connect to the service manager in time",
    1060: f"the service is not installed; '{NAME} service install' installs it",
    1063: f"only the service manager starts this; use '{NAME} service start'",
    1069: "its account may not log on as a service",
    1072: "it is marked for deletion: close the Services window and try again",
}
"""Errors of the SCM that the user can do something about."""


class ServiceReport(Struct, frozen=True, kw_only=True):
    """One SERVICE_STATUS, in its order. ``hint`` in milliseconds; ``own`` is the program's exit status."""

    state: int
    accepts: int = 0
    error: int = NO_ERROR
    own: int = 0
    checkpoint: int = 0
    hint: int = 0


class Life:
    """The reports of one service process, in their order. None: there is nothing to report."""

    def __init__(self) -> None:
        self._state = START_PENDING
        self._checkpoint = 0

    def begun(self) -> ServiceReport:
        """The process has connected. It accepts no control until it listens."""
        self._checkpoint += 1
        return ServiceReport(state=START_PENDING, checkpoint=self._checkpoint, hint=START_HINT)

    def listening(self) -> ServiceReport | None:
        """The program listens. One that has to stop meanwhile stays in that state."""
        if self._state != START_PENDING:
            return None
        self._state = RUNNING
        return ServiceReport(state=RUNNING, accepts=ACCEPTS)

    def stopping(self) -> ServiceReport | None:
        """The program is to end, or ends of itself."""
        if self._state in (STOP_PENDING, STOPPED):
            return None
        self._state, self._checkpoint = STOP_PENDING, 0
        return self.alive()

    def alive(self) -> ServiceReport | None:
        """The event loop still turns. This matters while the service stops: requests under way may take a while."""
        if self._state != STOP_PENDING:
            return None
        self._checkpoint += 1
        return ServiceReport(state=STOP_PENDING, checkpoint=self._checkpoint, hint=STOP_HINT)

    def ended(self, status: int, *, asked: bool) -> ServiceReport | None:
        """The program has ended with an exit status. ``asked``: somebody stopped the service.

        A service that was stopped on purpose reports no error, because Windows would start it again.
        """
        if self._state == STOPPED:
            return None
        self._state = STOPPED
        if status == 0 or asked:
            return ServiceReport(state=STOPPED)
        return ServiceReport(state=STOPPED, error=SERVICE_SPECIFIC, own=status)


def answer(control: int, event: int, *, asked: bool) -> tuple[int, Literal["", "stop", "wake"]]:
    """Return the answer to a control, and what the program does about it.

    ``event``: its kind, of a power event. ``asked``: a stop was requested before.
    """
    match control:
        case 1 | 15:  # STOP, PRESHUTDOWN
            return NO_ERROR, "" if asked else "stop"
        case 13:  # POWER
            return NO_ERROR, "wake" if event in WOKE else ""
        case 4:  # INTERROGATE
            return NO_ERROR, ""
        case _:
            return NOT_IMPLEMENTED, ""


def service_sid(name: str) -> str:
    """Return the security identifier of a service's virtual account: the SHA-1 of its name in capitals, UTF-16."""
    parts = struct.unpack("<5I", hashlib.sha1(name.upper().encode("utf-16-le"), usedforsecurity=False).digest())
    return "S-1-5-80-" + "-".join(map(str, parts))


def home_rights(name: str) -> str:
    """Return the rights of the service's folder, as SDDL: it is the administrators', and the service may change it."""
    return f"O:BAD:P(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)(A;OICI;0x1301bf;;;{service_sid(name)})"


def hidden_from_service(program: str, profile: str) -> str | None:
    """Return the folder of users' profiles if the program lies in it: another account cannot read it there."""
    users = PureWindowsPath(profile).parent
    inside = profile and users != PureWindowsPath(users.anchor) and PureWindowsPath(program).is_relative_to(users)
    return str(users) if inside else None


def last_error(lines: Sequence[str]) -> str:
    """Return the last error of a log, in one line; empty if there is none."""
    return next((line.strip() for line in reversed(lines) if "error:" in line), "")


def with_folder(path: str, folder: str) -> str:
    """Return the text of PATH with a folder at its end, if it is not in it yet."""
    return path if _has(path, folder) else f"{path};{folder}" if path else folder


def is_for_everybody(folder: str, environ: Mapping[str, str]) -> bool:
    """True below Program Files, where only administrators write. Folders elsewhere inherit that users may."""
    kept = (environ.get(name) for name in ("ProgramFiles", "ProgramW6432", "ProgramFiles(x86)"))
    return any(PureWindowsPath(ntpath.normpath(folder)).is_relative_to(each) for each in kept if each)


def without_folder(path: str, folder: str) -> str:
    """Return the text of PATH without a folder. It undoes `with_folder` to the letter."""
    return ";".join(each for each in path.split(";") if not _has(each, folder)) if _has(path, folder) else path


def _has(path: str, folder: str) -> bool:
    return any(each and PureWindowsPath(each) == PureWindowsPath(folder) for each in path.split(";"))
