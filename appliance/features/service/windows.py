"""Windows services: the process that the service control manager (SCM) starts, and the verbs that install and steer it.

Numbers are those of winsvc.h. The decisions are in `core.windows`, the calls in `windows_calls`.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from functools import partial
from pathlib import Path
from tempfile import NamedTemporaryFile

import trio
from msgspec import structs

from appliance.core.installed import NAME
from appliance.errors import ApplianceError, UsageError
from appliance.features.service import windows_calls as win
from appliance.features.service.core import windows as scm
from appliance.features.service.core.status import ServiceStatus
from appliance.features.service.core.systemd import names_key_policy
from appliance.features.service.systemd import make_key
from appliance.parent import STARTED_BY
from appliance.platform.console import EXIT_BUG
from appliance.platform.stopping import STOP_SIGNALS
from appliance.platform.win32 import DWORD, POINTER, TEXT, Win32, WindowsRefused

OWN_PROCESS, AUTO_START, ERROR_NORMAL = 0x10, 2, 1
SCM_CONNECT, SCM_CREATE, SERVICE_ALL, SERVICE_LOOK = 0x0001, 0x0002, 0xF01FF, 0x0005
"""Access rights; `SERVICE_LOOK` is the right to query configuration and status, which everybody has."""
NO_CHANGE = 0xFFFFFFFF
ALREADY_RUNNING, EXISTS, NEVER_STARTED, NOT_ACTIVE, NOT_INSTALLED, UNKNOWN_LEVEL = 1056, 1073, 1077, 1062, 1060, 124
LOCAL_MACHINE = 0xFFFFFFFF80000002
EVENTS = rf"SYSTEM\CurrentControlSet\Services\EventLog\Application\{NAME}"
EVENT_TEXTS = r"%SystemRoot%\System32\EventCreate.exe"
"""A part of Windows. Its messages 1 to 1000 are whatever text the event has."""
EVENT_ERROR, EVENT_INFORMATION = 1, 4
NO_DIALOGS = 0x0001 | 0x0002 | 0x8000
"""SetErrorMode: no dialog for a missing disk, a crash, a file that cannot be opened. No user sees session 0."""
SYSTEM, ADMINISTRATORS = "S-1-5-18", "S-1-5-32-544"
LOG_SIZE = 8 << 20  # bytes of a log that a new start sets aside; it keeps one old log
TAIL = 40
LOOK_EVERY = 0.1
END_TIME = 20.0
COMMAND_TIME = 240.0  # seconds for which `start` and `stop` wait


class ServiceEnded(ApplianceError):
    """The service ended instead of starting. ``status``: its exit status."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(status, said)
        self.status, self.said = status, said

    def __str__(self) -> str:
        return f"the service ended with status {self.status} instead of starting: {self.said or 'it said nothing'}"


def home_of(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of the service's models, data and log."""
    return Path(environ.get("ProgramData") or r"C:\ProgramData") / scm.HOME


def serve_words(home: Path, words: Sequence[str]) -> list[str]:
    """Return the words with which the service serves: its folder, its key if it has one, and the administrator's."""
    has_key = (home / scm.KEY).exists() and not names_key_policy(words)
    return ["serve", "--home", str(home), *(("--api-key-file", str(home / scm.KEY)) if has_key else ()), *words]


class ServiceSession:
    """This process, as the SCM started it. The program runs in the main thread, because signals arrive there.

    A thread of its own waits in the SCM's dispatcher, which calls `_main` in a third one and `_control` in its own.
    `Life` belongs to the main thread. `_control` only raises the signal that stops the program, or wakes the loop.
    """

    every: float | None = scm.CHECKPOINT

    def __init__(self, api: Win32) -> None:
        self._api = api
        self._life = scm.Life()
        self._handle = 0
        self._asked = self._hears = False
        self._woke: Callable[[], object] | None = None
        self._connected, self._ended = threading.Event(), threading.Event()
        self._callbacks = win.SERVICE_MAIN(self._main), win.CONTROL_HANDLER(self._control)  # Windows calls them later

    def run(self, work: Callable[[], int]) -> int:
        """Connect to the SCM, do the work, and report its end, also of an exception. Returns the exit status.

        Raises WindowsRefused if the SCM has not started this process.
        """
        entry = win.ServiceTableEntry(NAME, ctypes.cast(self._callbacks[0], POINTER))
        with ThreadPoolExecutor(1) as threads:
            table = (win.ServiceTableEntry * 2)(entry, win.ServiceTableEntry())
            dispatcher = threads.submit(self._api, "StartServiceCtrlDispatcherW", table)
            dispatcher.add_done_callback(lambda _: self._connected.set())
            self._connected.wait()
            if dispatcher.done():
                dispatcher.result()
            self._report(self._life.begun())
            token = STARTED_BY.set(self)
            status = EXIT_BUG
            try:
                status = work()
            finally:
                STARTED_BY.reset(token)
                self._report(self._life.ended(status, asked=self._asked))
                self._ended.set()
        return status

    def _main(self, _count: int, _words: int) -> None:
        self._handle = self._api.calls["RegisterServiceCtrlHandlerExW"](NAME, self._callbacks[1], None) or 0
        self._connected.set()
        self._ended.wait()

    def _control(self, control: int, event: int, _data: int, _context: int) -> int:
        """Answer the SCM at once. An exception here would leave it without an answer."""
        code, act = scm.answer(control, event, asked=self._asked)
        if act == "stop":
            if not self._hears:
                return scm.NOT_IMPLEMENTED
            self._asked = True
            signal.raise_signal(STOP_SIGNALS[-1])  # as from outside, with the watchdog that this arms
        elif act == "wake" and self._woke is not None:
            self._woke()
        return code

    def _report(self, report: scm.ServiceReport | None) -> None:
        if report is not None:
            status = win.ScmStatus(OWN_PROCESS, *structs.astuple(report))
            self._api.calls["SetServiceStatus"](self._handle, ctypes.byref(status))

    # The rest is `parent.Manager`.

    def open(self, woke: Callable[[], None]) -> None:
        """The event loop runs; ``woke`` is called at the end of sleep."""
        token = trio.lowlevel.current_trio_token()

        def wake() -> None:
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(woke)

        self._woke, self._hears = wake, True

    def ready(self, where: str) -> None:
        """The program listens."""
        self._report(self._life.listening())
        self.log(EVENT_INFORMATION, f"listening on {where}")

    def alive(self) -> None:
        """The event loop turns."""
        self._report(self._life.alive())

    def stopping(self) -> None:
        """The program is to end."""
        self._report(self._life.stopping())

    def close(self) -> None:
        """Ignore stops from now on: the program ends already."""
        self._hears, self._woke = False, None

    def log(self, kind: int, text: str) -> None:
        """Write an event into the log of Windows. One that is lost is lost."""
        if source := self._api.calls["RegisterEventSourceW"](None, NAME):
            texts = (TEXT * 1)(text)
            self._api.calls["ReportEventW"](source, kind, 0, kind, None, 1, 0, texts, None)
            self._api.calls["DeregisterEventSource"](source)


def run_service(api: Win32, work: Callable[[], int], home: Path) -> int:
    """Be the service for the length of ``work``: no dialogs, messages in its log file, errors in the log of Windows."""
    api.calls["SetErrorMode"](NO_DIALOGS)
    session, path = ServiceSession(api), home / scm.LOG

    def logged() -> int:
        home.mkdir(parents=True, exist_ok=True)
        with suppress(OSError):
            if path.stat().st_size > LOG_SIZE:
                path.replace(path.with_suffix(".old.log"))
        log = path.open("a", encoding="utf-8", errors="replace", buffering=1)
        with log, redirect_stdout(log), redirect_stderr(log):  # a service has neither
            status = work()
        if status != 0:
            session.log(EVENT_ERROR, f"ended with status {status}: {_last_error(home)}")
        return status

    return session.run(logged)


def _last_error(home: Path) -> str:
    try:
        return scm.last_error((home / scm.LOG).read_text("utf-8", "replace").splitlines()[-TAIL:])
    except OSError:
        return ""


def end_programs(folder: Path) -> int:
    """End every program that runs from a folder, but this one and those that started it. Returns how many there were.

    Each is known by its process, not by its name. Waits for them. Raises UsageError for one that does not end.
    """
    import psutil

    spared = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.pid not in spared and Path(process.exe()).is_relative_to(folder):
                process.terminate()
                found.append(process)
    _, alive = psutil.wait_procs(found, timeout=END_TIME)
    if alive:
        told = ", ".join(str(process.pid) for process in alive)
        raise UsageError(f"these processes of {folder} do not end: {told}; end them in the Task Manager and try again")
    return len(found)


class WindowsService:
    """The service's entry at the SCM. Every method raises WindowsRefused when Windows refuses."""

    key: Path | None = None  # the file with the key of the service, if `install` has given it one

    def __init__(self, api: Win32, environ: Mapping[str, str] = os.environ) -> None:
        self._api = api
        self._home = home_of(environ)
        self._profile = environ.get("USERPROFILE", "")
        self.unit = f"the service {NAME}"

    def text(self, command: Sequence[str]) -> str:
        """Return the command line that `install` registers. Raises UsageError."""
        if (users := scm.hidden_from_service(command[0], self._profile)) is not None:
            raise UsageError(
                f"the service runs as {scm.ACCOUNT}, which cannot read {users}, and {command[0]} is there; install the "
                "program for all users and install the service from there"
            )
        return subprocess.list2cmdline(command)

    async def install(self, command: Sequence[str], *, start: bool) -> None:
        """Make the entry, or change the one that is there, make the folder of its data, and start it now if asked."""
        line = self.text(command)
        is_new = not (await self.status()).installed
        with self._closing(self._api("OpenSCManagerW", None, None, SCM_CONNECT | SCM_CREATE)) as manager:
            self._refuse_strange_home()
            with self._closing(self._create(manager, line)) as service:
                self._configure(service)
        self._make_home()
        if is_new and not names_key_policy(command):
            self.key = make_key(self._home / scm.KEY)
        self._register_events()
        if start:
            await self.steer("restart")

    async def uninstall(self, *, purge: bool) -> list[str]:
        """Stop the service and remove its entry; with ``purge`` also its data. Returns what stays."""
        with self._service(SERVICE_ALL) as service:
            await self._stop(service)
            self._api("DeleteService", service)
        self._api.calls["RegDeleteTreeW"](LOCAL_MACHINE, EVENTS)
        if not purge:
            return [str(self._home)]
        await trio.to_thread.run_sync(partial(shutil.rmtree, self._home, ignore_errors=True))
        return [str(self._home)] if self._home.exists() else []

    async def steer(self, verb: str) -> None:
        """Carry out ``start``, ``stop`` or ``restart`` and wait until it is done. Raises ServiceEnded."""
        with self._service(SERVICE_ALL) as service:
            if verb != "start":
                await self._stop(service)
            if verb != "stop":
                await self._start(service)

    async def status(self) -> ServiceStatus:
        """Ask Windows. Needs no privilege."""
        try:
            with self._service(SERVICE_LOOK) as service:
                now, buffer, needed = self._status(service), ctypes.create_string_buffer(8192), DWORD()
                self._api("QueryServiceConfigW", service, buffer, len(buffer), ctypes.byref(needed))
                entry = win.ServiceConfig.from_buffer(buffer)  # its texts lie behind it, in the buffer
                command, start = str(entry.command), int(entry.start)
        except WindowsRefused as refused:
            if refused.code != NOT_INSTALLED:
                raise
            return ServiceStatus(state="inactive", unit=self.unit)
        failed = now.state == scm.STOPPED and now.error not in (0, NEVER_STARTED)
        return ServiceStatus(
            installed=True,
            enabled=start == AUTO_START,
            state="active" if now.state == scm.RUNNING else "failed" if failed else "inactive",
            detail=scm.STATES.get(now.state, str(now.state)) + (f", status {now.own or now.error}" if failed else ""),
            pid=now.pid or None,
            said=_last_error(self._home) if failed else "",
            unit=command,
        )

    def _create(self, manager: int, line: str) -> int:
        """Return the handle of the entry, which has this command line then."""
        common = (OWN_PROCESS, AUTO_START, ERROR_NORMAL, line, None, None, None, scm.ACCOUNT, None)
        try:
            return self._api("CreateServiceW", manager, NAME, scm.DISPLAY, SERVICE_ALL, *common)
        except WindowsRefused as refused:
            if refused.code != EXISTS:
                raise
        service = self._api("OpenServiceW", manager, NAME, SERVICE_ALL)
        self._api("ChangeServiceConfigW", service, *common, scm.DISPLAY)
        return service

    def _configure(self, service: int) -> None:
        actions = (win.Action * len(scm.RESTARTS))(*(win.Action(1, delay) for delay in scm.RESTARTS))
        for level, content in (
            (1, win.ServiceText(scm.DESCRIPTION)),
            (2, win.ServiceFailureActions(scm.FORGIVEN, None, None, len(actions), actions)),
            (4, win.ServiceNumber(1)),  # the actions are also for a service that reports an error, not only for a crash
            (7, win.ServiceNumber(scm.PRESHUTDOWN_TIME)),
        ):
            try:
                self._api("ChangeServiceConfig2W", service, level, ctypes.byref(content))
            except WindowsRefused as refused:
                if refused.code != UNKNOWN_LEVEL:  # wine does not know the third; every Windows does
                    raise

    def _refuse_strange_home(self) -> None:
        """Raises UsageError for a folder of another user: everybody may make folders in ProgramData."""
        if not self._home.exists():
            return
        with NamedTemporaryFile() as made:  # has the owner of all that this administrator makes
            believed = (SYSTEM, ADMINISTRATORS, win.owner_of(self._api, made.name))
        owner, leads_to = win.owner_of(self._api, str(self._home)), self._home.resolve()
        if leads_to != self._home.parent.resolve() / self._home.name:
            why = f"is a link to {leads_to}"
        elif owner not in believed:
            why = f"belongs to {owner}"
        else:
            return
        raise UsageError(
            f"{self._home} {why}, so somebody else than an administrator could have put programs there, which the "
            "service would start; remove it, or if you know what is in it, give it to the administrators: "
            f'takeown /F "{self._home}" /A /R'
        )

    def _make_home(self) -> None:
        """Make the folder of the service's data, which nobody but the service and administrators may read."""
        if self._home.exists():
            return  # the account of the same name has the same identifier, so the rights hold
        descriptor = ctypes.c_void_p()
        rights = scm.home_rights(NAME)
        self._api("ConvertStringSecurityDescriptorToSecurityDescriptorW", rights, 1, ctypes.byref(descriptor), None)
        try:
            attributes = win.Security(ctypes.sizeof(win.Security), descriptor, 0)
            self._api("CreateDirectoryW", str(self._home), ctypes.byref(attributes))
        finally:
            self._api.calls["LocalFree"](descriptor)

    def _register_events(self) -> None:
        path, kinds = ctypes.create_unicode_buffer(EVENT_TEXTS), DWORD(7)
        for name, kind, content in (("EventMessageFile", 2, path), ("TypesSupported", 4, kinds)):
            size = ctypes.sizeof(content)
            value = (name, kind, ctypes.byref(content), size)
            if code := self._api.calls["RegSetKeyValueW"](LOCAL_MACHINE, EVENTS, *value):
                raise self._api.refused("RegSetKeyValueW", code)

    async def _start(self, service: int) -> None:
        try:
            self._api("StartServiceW", service, 0, None)
        except WindowsRefused as refused:
            if refused.code != ALREADY_RUNNING:
                raise
        now = await self._wait(service, (scm.RUNNING, scm.STOPPED), "start")
        if now.state == scm.STOPPED:
            raise ServiceEnded(now.own or now.error, _last_error(self._home))

    async def _stop(self, service: int) -> None:
        status = win.ScmStatus()
        try:
            self._api("ControlService", service, scm.STOP, ctypes.byref(status))
        except WindowsRefused as refused:
            if refused.code != NOT_ACTIVE:
                raise
        await self._wait(service, (scm.STOPPED,), "stop")

    async def _wait(self, service: int, states: tuple[int, ...], verb: str) -> win.ProcessStatus:
        """Wait for one of the states, which Windows has no event for."""
        with trio.move_on_after(COMMAND_TIME):
            while (now := self._status(service)).state not in states:  # noqa: ASYNC110  there is no event
                await trio.sleep(LOOK_EVERY)
            return now
        raise UsageError(f"the service did not {verb} within {COMMAND_TIME:.0f} s; see {self._home / scm.LOG}")

    def _status(self, service: int) -> win.ProcessStatus:
        found, needed = win.ProcessStatus(), DWORD()
        size = ctypes.sizeof(found)
        self._api("QueryServiceStatusEx", service, 0, ctypes.byref(found), size, ctypes.byref(needed))
        return found

    @contextmanager
    def _closing(self, handle: int) -> Generator[int]:
        try:
            yield handle
        finally:
            self._api.calls["CloseServiceHandle"](handle)

    @contextmanager
    def _service(self, access: int) -> Generator[int]:
        manager = self._api("OpenSCManagerW", None, None, SCM_CONNECT)
        with self._closing(manager), self._closing(self._api("OpenServiceW", manager, NAME, access)) as service:
            yield service
