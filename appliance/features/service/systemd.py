"""Installs and steers the program's systemd service, of the system or of the user."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import structs

from appliance.core.installed import KEY_FILE, MODELS, NAME, STATE, UNIT, UNITS
from appliance.core.settings import KEY_VARIABLE
from appliance.errors import ApplianceError, UsageError
from appliance.features.service.core.status import ServiceStatus
from appliance.features.service.core.systemd import (
    CACHE,
    HIDDEN,
    SHOWN,
    SYSUSERS,
    names_key_policy,
    status_of,
    system_unit,
    user_unit,
)
from appliance.platform.children import inherited_env, open_children
from appliance.platform.home import users_home
from appliance.platform.process import Ran, run_to_end
from appliance.store.model_files import open_private

PACKAGED = Path(UNITS[0])  # the unit of a package, which installs and removes it
RUNNING = Path("/run/systemd/system")  # exists where systemd runs (sd_booted(3))
COMMAND_TIME = 240.0  # seconds for one systemctl: starting waits until the program serves, stopping until it has ended


class ServiceFailed(ApplianceError):
    """The service manager refused. ``status`` of its command; None when the command did not end in time.

    ``log``: where more may be read.
    """

    def __init__(self, command: str, status: int | None, said: str, *, log: str) -> None:
        super().__init__(command, status, said)
        self.command, self.status, self.said, self.log = command, status, said, log

    def __str__(self) -> str:
        how = f"ended with {self.status}" if self.status is not None else f"took longer than {COMMAND_TIME:.0f} s"
        return f"'{self.command}' {how}: {self.said or 'it said nothing'}; {self.log} may say more"


def make_key(file: Path, form: str = "{}", account: str = "") -> Path:
    """Have a file with a key for a new service, which only its owner can read; one that is there stays as it is.

    ``account`` gets a new one. In a folder of that user the name may be a link, which is not followed.
    """
    file.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    with suppress(FileExistsError), open_private(file, "xb") as opened:
        opened.write(form.format(secrets.token_urlsafe(24)).encode() + b"\n")
        if account and sys.platform != "win32":
            give(opened.fileno(), account)
    return file


def give(descriptor: int, account: str, mode: int = 0o600) -> None:
    """Give what is open, and never what its name leads to by now, to a user and the group of the same name."""
    assert sys.platform != "win32"
    import grp
    import pwd

    os.fchown(descriptor, pwd.getpwnam(account).pw_uid, grp.getgrnam(account).gr_gid)
    os.fchmod(descriptor, mode)


class PosixService:
    """A service of the system, or of the user, that a file describes. Methods raise ServiceFailed and UsageError."""

    key: Path | None = None  # the file with the key of the service, if `install` has given it one
    log = f"'journalctl -u {NAME}'"  # the place that says more of a failure
    session: Mapping[str, str] = {}  # variables by which commands find the service manager

    def __init__(self, unit: Path, *, user: bool) -> None:
        self.unit = unit
        self._user = user

    def write(self, text: str) -> None:
        """Write the file as a whole. Raises OSError."""
        self.unit.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.unit.with_suffix(".new")
        temporary.write_text(text, "utf-8")
        temporary.chmod(0o644)  # launchd refuses what others than the owner may write
        temporary.replace(self.unit)

    def need_root(self) -> None:
        if not self._user and os.geteuid() != 0:
            raise UsageError("a service of the system needs root: use sudo, or --user for a service of your own")

    def need_installed(self) -> None:
        if not self.unit.exists():
            raise UsageError(
                f"there is no {self.unit}, so the service is not installed; '{self.own('install')}' installs it"
            )

    def own(self, verb: str) -> str:
        """Return the command for this service."""
        return f"{NAME} service {verb}{' --user' if self._user else ''}"

    def failed(self, command: str, status: int | None, said: str) -> ServiceFailed:
        return ServiceFailed(command, status, said, log=self.log)

    async def run(self, *command: str, stdin: bytes = b"", may_fail: bool = False) -> Ran:
        """Run a command of the service manager to its end."""
        env = {**inherited_env(), **self.session}
        async with open_children() as children:
            ran = await run_to_end(children, command, env, seconds=COMMAND_TIME, stdin=stdin)
        if ran.status != 0 and not may_fail:
            raise self.failed(" ".join(command), ran.status, said_by(ran))
        return ran


def said_by(ran: Ran) -> str:
    """Return what the command printed, on one line."""
    return " ".join((ran.errors or ran.output).decode(errors="replace").split())


class Systemd(PosixService):
    """One service manager: the system's, or the user's. Every method raises ServiceFailed when systemd refuses."""

    def __init__(self, *, user: bool, environ: Mapping[str, str] = os.environ) -> None:
        config = Path(environ.get("XDG_CONFIG_HOME") or users_home() / ".config")
        super().__init__(config / "systemd" / "user" / UNIT if user else Path(UNITS[1]), user=user)
        if user:
            self.log = f"'journalctl --user -u {NAME}'"
            self.session = {"XDG_RUNTIME_DIR": str(_runtime())}  # `su` and `sudo -u` name another user's, or none

    def text(self, command: Sequence[str]) -> str:
        """Return the unit that `install` writes. Raises UsageError."""
        program = Path(command[0])
        if not self._user and (hidden := next((each for each in HIDDEN if program.is_relative_to(each)), None)):
            raise UsageError(
                f"a service of the system does not see {hidden}, and {program} is there; copy the program's folder to "
                f"/opt/{NAME} and install it from there, or use --user"
            )
        try:
            return user_unit(command) if self._user else system_unit(command)
        except ValueError as cause:
            raise UsageError(str(cause)) from None

    async def install(self, command: Sequence[str], *, start: bool) -> None:
        """Write the unit, let it start with the machine (or the session), and start it now if asked. Raises OSError."""
        text = self.text(command)
        self._refuse_packaged()
        self._need_systemd()
        self.need_root()
        if not self._user:
            await self.run("systemd-sysusers", "-", stdin=SYSUSERS.encode())
            owner = (f"--owner={NAME}", f"--group={NAME}")
            await self.run("install", "--directory", "--mode=750", *owner, STATE)
            await self.run("install", "--directory", "--mode=2770", *owner, MODELS)
            if not self.unit.exists() and not names_key_policy(command):
                self.key = make_key(Path(KEY_FILE), f"{KEY_VARIABLE}={{}}")
        self.write(text)
        await self._systemctl("daemon-reload")
        await self._systemctl("enable", UNIT)
        if start:
            await self._begin("restart")

    async def uninstall(self, *, purge: bool) -> list[str]:
        """Stop the service and remove the unit; with ``purge`` also its data and its user. Returns what stays."""
        self._refuse_packaged()
        self._need_systemd()
        self.need_root()
        self.need_installed()
        await self._systemctl("disable", "--now", UNIT)
        self.unit.unlink()
        await self._systemctl("daemon-reload")
        await self._systemctl("reset-failed", UNIT, may_fail=True)
        if self._user:
            return []
        if not purge:
            return [STATE, CACHE]
        await self.run("rm", "-rf", "--one-file-system", STATE, CACHE, KEY_FILE)
        await self.run("userdel", NAME)
        return []

    async def steer(self, verb: str) -> None:
        """Carry out ``start``, ``stop`` or ``restart`` and wait until it is done."""
        self._need_systemd()
        self.need_root()
        if not self._is_packaged():
            self.need_installed()
        if verb == "stop":
            await self._systemctl(verb, UNIT)
        else:
            await self._begin(verb)

    async def _begin(self, verb: str) -> None:
        """Start or restart the service, and wait until it serves. A failure says why the program ended."""
        try:
            await self._systemctl(verb, UNIT)
        except ServiceFailed as failure:
            raise self.failed(failure.command, failure.status, await self._why() or failure.said) from None

    async def status(self) -> ServiceStatus:
        """Ask systemd. Needs no privilege."""
        self._need_systemd()
        ran = await self._systemctl("show", UNIT, f"--property={','.join(SHOWN)}")
        status = status_of(ran.output.decode(errors="replace"), str(self.unit))
        return status if status.state == "active" else structs.replace(status, said=await self._why())

    async def _why(self) -> str:
        """Return the last error in the journal; empty without one, and for users who may not read it."""
        mine = ("--user",) if self._user else ()
        command = ("journalctl", *mine, f"--unit={UNIT}", "--lines=50", "--output=cat", "--quiet", "--no-pager")
        ran = await self.run(*command, may_fail=True)
        lines = ran.output.decode(errors="replace").splitlines()
        return next((line for line in reversed(lines) if line.startswith(f"{NAME}: error: ")), "")

    def _is_packaged(self) -> bool:
        return not self._user and PACKAGED.exists()

    def _refuse_packaged(self) -> None:
        if self._is_packaged():
            raise UsageError(
                f"{PACKAGED} belongs to a package, which installs and removes the service; "
                f"'{self.own('start')}' and '{self.own('stop')}' work, and '--user' makes a service of your own"
            )

    def _need_systemd(self) -> None:
        if not RUNNING.is_dir():
            raise UsageError(
                f"systemd does not run here, so it has no services; start '{NAME} serve' from the init system that does"
            )
        if self._user and not (_runtime() / "systemd").is_dir():
            raise UsageError(
                "no systemd of yours runs, so you have no services; log in as yourself, or let it run without that by "
                f"'sudo loginctl enable-linger {os.getuid()}'"
            )

    async def _systemctl(self, *words: str, may_fail: bool = False) -> Ran:
        return await self.run("systemctl", *(("--user",) if self._user else ()), *words, may_fail=may_fail)


def _runtime() -> Path:
    """Return the folder of this user's sessions, in which the user's own systemd listens (pam_systemd(8))."""
    return Path(f"/run/user/{os.getuid()}")
