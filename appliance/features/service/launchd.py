"""Installs and steers the program's launchd job, of the machine or of the user.

Not exercised on a Mac yet: the release workflow does it. The tests run it against a launchctl of their own.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec
import trio

from appliance.core.installed import MAC_ACCOUNT
from appliance.errors import UsageError
from appliance.features.service.core import launchd as jobs
from appliance.features.service.core.status import ServiceStatus
from appliance.features.service.core.systemd import names_key_policy
from appliance.features.service.systemd import COMMAND_TIME, PosixService, give, make_key, said_by
from appliance.parent import Ready
from appliance.platform.home import users_home
from appliance.platform.process import Ran

LOOK_EVERY = 0.2  # seconds between two looks at a job that starts or ends: launchctl does not wait for either


class Launchd(PosixService):
    """One launchd domain: the machine's, or the user's. Every method raises ServiceFailed when launchctl refuses."""

    def __init__(self, *, user: bool, home: Path | None = None) -> None:
        self._place = jobs.agent(str(home or users_home()), os.getuid()) if user else jobs.DAEMON
        self._job = f"{self._place.domain}/{jobs.LABEL}"
        self.log = self._place.log
        super().__init__(Path(self._place.plist), user=user)

    def text(self, command: Sequence[str]) -> str:
        """Return the plist that `install` writes. Raises UsageError."""
        hidden = next((each for each in jobs.HIDDEN if Path(command[0]).is_relative_to(each)), None)
        if not self._user and hidden is not None:
            raise UsageError(
                f"a service of the machine cannot rely on {hidden}, and {command[0]} is there; copy the program to "
                f"/Applications or /usr/local and install it from there, or use --user"
            )
        if "/AppTranslocation/" in command[0]:
            raise UsageError("macOS runs this app from a place of its own; move it to Applications, and open it there")
        # The machine's service gets the option for its key, and one that is there without keeps to be without.
        without = self.unit.exists() and not os.access(jobs.KEY, os.F_OK)  # others may not look into its folder
        if not (self._user or without or names_key_policy(command)):
            verb = list(command).index("serve") + 1
            command = [*command[:verb], "--api-key-file", jobs.KEY, *command[verb:]]
        try:
            return jobs.plist(self._place, command).decode()
        except ValueError as cause:
            raise UsageError(str(cause)) from None

    async def install(self, command: Sequence[str], *, start: bool) -> None:
        """Write the plist, let it start with the machine (or the login), and start it now if asked. Raises OSError."""
        text = self.text(command)
        self.need_root()
        if not self._user:
            await self._make_account()
        for file in (self._place.log, self._place.ready):
            Path(file).parent.mkdir(parents=True, exist_ok=True)
        if not self._user:
            for folder in (Path(jobs.HOME), Path(jobs.DAEMON.log).parent):
                descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
                give(descriptor, MAC_ACCOUNT, 0o750)
                os.close(descriptor)
        if jobs.KEY in text:
            self.key = make_key(Path(jobs.KEY), account="" if self._user else MAC_ACCOUNT)
        await self._end()
        self.write(text)
        await self._launchctl("enable", self._job)
        if start:
            await self._begin()

    async def uninstall(self, *, purge: bool) -> list[str]:
        """End the service and remove the plist; with ``purge`` also its data and account. Returns what stays."""
        self.need_root()
        self.need_installed()
        await self._end()
        self.unit.unlink()
        kept = [] if self._user else [jobs.HOME, str(Path(jobs.DAEMON.log).parent)]
        if not purge:
            return kept
        await self.run("rm", "-rf", *kept)
        await self.run("dscl", ".", "-delete", f"/Users/{MAC_ACCOUNT}")
        await self.run("dscl", ".", "-delete", f"/Groups/{MAC_ACCOUNT}")
        return []

    async def steer(self, verb: str) -> None:
        """Carry out ``start``, ``stop`` or ``restart`` and wait until it is done."""
        self.need_root()
        self.need_installed()
        if verb != "start":
            await self._end()
        if verb != "stop":
            await self._begin()

    async def status(self) -> ServiceStatus:
        """Ask launchd. Needs no privilege."""
        job = await self._look()
        ready = self._ready(job)
        off = await self._launchctl("print-disabled", self._place.domain, may_fail=True)
        state = "inactive" if job is None or not job.ended else "failed"
        if job is not None and job.pid is not None:
            state = "activating" if ready is None else "active"
        return ServiceStatus(
            installed=self.unit.exists(),
            enabled=self.unit.exists() and not jobs.is_disabled(off.output.decode(errors="replace")),
            state=state,
            detail="not loaded" if job is None else job.ended or "loaded",
            pid=job.pid if job is not None else None,
            restarts=max(0, job.runs - 1) if job is not None else 0,
            said=f"listening on {ready}" if ready else "",
            unit=str(self.unit),
        )

    def _ready(self, job: jobs.LaunchdJob | None) -> str | None:
        """Return where the job's process serves; None: not yet. Empty for somebody who may not read that file."""
        try:
            said = msgspec.json.decode(Path(self._place.ready).read_bytes(), type=Ready)
        except PermissionError:
            return ""
        except (OSError, msgspec.DecodeError):
            return None
        return said.url if job is not None and said.pid == job.pid else None

    async def _begin(self) -> None:
        """Load the job, or start it where it is loaded, and wait until it serves."""
        before = await self._look()
        if before is None:
            await self._launchctl("bootstrap", self._place.domain, str(self.unit))
        elif before.pid is None:
            await self._launchctl("kickstart", self._job)
        failed_before = before.ended if before is not None else ""
        with trio.move_on_after(COMMAND_TIME):
            while True:
                job = await self._look()
                if self._ready(job) is not None:
                    return
                if job is None or (job.pid is None and job.ended and job.ended != failed_before):
                    raise self.failed("start", 1, f"it ended at once ({job.ended if job is not None else 'unloaded'})")
                await trio.sleep(LOOK_EVERY)
        raise self.failed("start", None, "")

    async def _end(self) -> None:
        """Unload the job, which ends its process: as a stop it may take its time, and then launchd kills it."""
        if await self._look() is None:
            return
        await self._launchctl("bootout", self._job, may_fail=True)  # 36: it takes its time
        with trio.move_on_after(COMMAND_TIME):
            while await self._look() is not None:  # noqa: ASYNC110  launchd has no event for it
                await trio.sleep(LOOK_EVERY)
            return
        raise self.failed("stop", None, "")

    async def _look(self) -> jobs.LaunchdJob | None:
        """Return the job; None if it is not loaded."""
        ran = await self._launchctl("print", self._job, may_fail=True)
        if ran.status == 0:
            return jobs.read_job(ran.output.decode(errors="replace"))
        if ran.status == jobs.ABSENT:
            return None
        raise self.failed(f"launchctl print {self._job}", ran.status, said_by(ran))

    async def _make_account(self) -> None:
        """Make the service's user and group, if they are not there. They cannot log in."""
        user, group = f"/Users/{MAC_ACCOUNT}", f"/Groups/{MAC_ACCOUNT}"
        if (await self.run("dscl", ".", "-read", user, may_fail=True)).status == 0:
            return
        users = await self.run("dscl", ".", "-list", "/Users", "UniqueID")
        groups = await self.run("dscl", ".", "-list", "/Groups", "PrimaryGroupID")
        try:
            number = str(jobs.free_id(b"\n".join((users.output, groups.output)).decode(errors="replace")))
        except ValueError as cause:
            raise UsageError(str(cause)) from None
        for record, values in {
            group: {"PrimaryGroupID": number, "RealName": "Llama Appliance"},
            user: {"UniqueID": number, "PrimaryGroupID": number, "RealName": "Llama Appliance", "IsHidden": "1",
                   "UserShell": "/usr/bin/false", "NFSHomeDirectory": jobs.HOME},
        }.items():  # fmt: skip
            await self.run("dscl", ".", "-create", record)
            for key, value in values.items():
                await self.run("dscl", ".", "-create", record, key, value)

    async def _launchctl(self, *words: str, may_fail: bool = False) -> Ran:
        return await self.run("launchctl", *words, may_fail=may_fail)
