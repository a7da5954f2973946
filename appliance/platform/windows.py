"""Child processes on Windows: one Job Object that the kernel closes, and kills, with this program.

Not exercised on a Windows machine yet; the calls and structures are those of the Win32 documentation for job objects.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager

import trio
from trio.abc import ReceiveStream, SendStream

assert sys.platform == "win32"

from ctypes import wintypes  # noqa: E402

REAP_TIME = 5.0

SHELL = ("cmd", "/d", "/s", "/c")
"""The start of an argv whose last word is a command for cmd."""
CREATE_SUSPENDED = 0x4
KILL_ON_JOB_CLOSE = 0x2000
EXTENDED_LIMIT_INFORMATION = 9
SEM_FAILCRITICALERRORS = 0x0001
SEM_NOGPFAULTERRORBOX = 0x0002

_kernel32 = ctypes.WinDLL("kernel32", use_last_error=True)
_ntdll = ctypes.WinDLL("ntdll")


class _BasicLimits(ctypes.Structure):
    _fields_ = (
        ("PerProcessUserTimeLimit", ctypes.c_int64),
        ("PerJobUserTimeLimit", ctypes.c_int64),
        ("LimitFlags", wintypes.DWORD),
        ("MinimumWorkingSetSize", ctypes.c_size_t),
        ("MaximumWorkingSetSize", ctypes.c_size_t),
        ("ActiveProcessLimit", wintypes.DWORD),
        ("Affinity", ctypes.c_size_t),
        ("PriorityClass", wintypes.DWORD),
        ("SchedulingClass", wintypes.DWORD),
    )


class _ExtendedLimits(ctypes.Structure):
    _fields_ = (
        ("BasicLimitInformation", _BasicLimits),
        ("IoInfo", ctypes.c_uint64 * 6),
        ("ProcessMemoryLimit", ctypes.c_size_t),
        ("JobMemoryLimit", ctypes.c_size_t),
        ("PeakProcessMemoryUsed", ctypes.c_size_t),
        ("PeakJobMemoryUsed", ctypes.c_size_t),
    )


class _Job:
    """One kill-on-close job; nests in whatever job this program runs in (Windows 8 and later)."""

    def __init__(self) -> None:
        _kernel32.CreateJobObjectW.restype = wintypes.HANDLE
        self.handle = wintypes.HANDLE(_kernel32.CreateJobObjectW(None, None))
        limits = _ExtendedLimits()
        limits.BasicLimitInformation.LimitFlags = KILL_ON_JOB_CLOSE
        done = _kernel32.SetInformationJobObject(
            self.handle, EXTENDED_LIMIT_INFORMATION, ctypes.byref(limits), ctypes.sizeof(limits)
        )
        if not self.handle or not done:
            raise ctypes.WinError(ctypes.get_last_error())

    def add(self, process_handle: int) -> None:
        if not _kernel32.AssignProcessToJobObject(self.handle, wintypes.HANDLE(process_handle)):
            raise ctypes.WinError(ctypes.get_last_error())

    def end(self) -> None:
        _kernel32.TerminateJobObject(self.handle, 1)
        _kernel32.CloseHandle(self.handle)


class Child:
    """A running child, with its descendants, in a job. ``output``: both outputs, but for ``errors`` if it has one."""

    def __init__(self, process: trio.Process, stdin: SendStream, output: ReceiveStream, job: _Job) -> None:
        self._process = process
        self._job = job
        self._down = False
        self.pid: int = process.pid
        self.stdin = stdin
        self.output = output
        self.errors: ReceiveStream | None = None

    @property
    def status(self) -> int | None:
        """The exit status, as `wait` returns it; None while the child runs."""
        return self._process.returncode

    def printed(self, most: int) -> bytes:
        """Windows does not tell what is in a pipe that somebody waits for."""
        return b""

    async def wait(self) -> int:
        """Wait for the child's end, take its descendants down, and return the exit status (an NTSTATUS on a crash)."""
        status = await self.wait_exit()
        self.take_down()
        return status

    async def wait_exit(self) -> int:
        """As `wait`, but its descendants live on until `take_down`."""
        return await self._process.wait()

    async def wait_group(self) -> None:
        """Return at once: a descendant could not be asked to end, so there is no reason to wait for it."""

    def take_down(self) -> None:
        """End the descendants. To be called once the child has ended; again does nothing."""
        if not self._down:
            self._down = True
            self._job.end()

    def terminate(self) -> None:
        """End the child and its descendants now, as `kill`: no signal asks a program without a console to end.

        The polite ways are the exit line on ``stdin`` and its end.
        """
        self.kill()

    def kill(self) -> None:
        """End the child and its descendants now."""
        _kernel32.TerminateJobObject(self._job.handle, 1)


def command_line(argv: Sequence[str]) -> str:
    """Return the words as a process is given them.

    Every program but cmd undoes the quoting of `list2cmdline`. After `SHELL`, cmd takes what is between the first quote
    and the last one as it is.
    """
    if tuple(argv[:-1]) == SHELL:
        return f'{subprocess.list2cmdline(SHELL)} "{argv[-1]}"'
    return subprocess.list2cmdline(argv)


class Children:
    """Starts children. Owned by `open_children`; the caller that spawned a child must wait for it."""

    async def spawn(
        self, argv: Sequence[str], env: Mapping[str, str], *, cwd: str | None = None, own_errors: bool = False
    ) -> Child:
        """Start ``argv`` without a window, in ``cwd`` or else in this program's working directory.

        ``own_errors``: its standard error comes on a pipe of its own, `Child.errors`. Raises OSError when it cannot be
        executed.
        """
        process = await trio.lowlevel.open_process(
            command_line(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if own_errors else subprocess.STDOUT,
            env=dict(env),
            cwd=cwd,
            creationflags=subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW | CREATE_SUSPENDED,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        handle = int(process._proc._handle)  # pyright: ignore  # the one place where Trio hides the handle we need
        # The process is suspended until it is in its job. If it ran before, it could start a child outside of the job,
        # which nothing would end with the program.
        job = _own(handle)
        child = Child(process, process.stdin, process.stdout, job)
        child.errors = process.stderr
        return child


def _own(process_handle: int) -> _Job:
    """Put a process that has not run yet into a job of its own, and let it run: no descendant can be outside.

    Raises OSError, and ends the process, when that cannot be done.
    """
    try:
        job = _Job()
        job.add(process_handle)
        # Python closes the handle of the first thread, which ResumeThread would need.
        if status := _ntdll.NtResumeProcess(wintypes.HANDLE(process_handle)):
            raise OSError(f"the new process does not begin to run (NTSTATUS {status & 0xFFFFFFFF:#x})")
    except OSError:
        _kernel32.TerminateProcess(wintypes.HANDLE(process_handle), 1)
        raise
    return job


@asynccontextmanager
async def open_children() -> AsyncGenerator[Children]:
    """Own children for as long as the block lasts. Undoes what PyInstaller did to the DLL search path."""
    _kernel32.SetDllDirectoryW(None)
    _kernel32.SetErrorMode(SEM_FAILCRITICALERRORS | SEM_NOGPFAULTERRORBOX)  # no dialog box may block a service
    yield Children()
