"""Reports the program's state to its parent: an application that it is a part of, or a service manager.

The application learns the address, and the program ends with it. Service managers are systemd (sd_notify(3)), and that
of Windows, which starts `service run`.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec
import trio
from msgspec import Struct

from appliance.core.sd_notify import SystemdWatch, message, watch_of
from appliance.core.settings import Embedding
from appliance.errors import UsageError
from appliance.platform.stopping import STOP_SIGNALS
from appliance.store.model_files import open_private
from appliance.trio_parts import beside, every, persist

LOOK_EVERY = 0.5
"""Seconds between two looks for the parent, where the system does not tell of its end."""
ASKED = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
STARTED_BY: ContextVar[Manager | None] = ContextVar("STARTED_BY", default=None)
"""The manager of a process that became a service by a call, and not by its environment."""


class Ready(Struct, frozen=True, kw_only=True):
    """The content of the ready file."""

    url: str
    """The first address that the program listens on."""
    urls: Sequence[str]
    pid: int
    version: str


TellReady = Callable[[Sequence[str], str], Awaitable[UsageError | None]]
"""Tells the application the addresses and the version; the error if that cannot be written."""


@asynccontextmanager
async def open_parent(settings: Embedding) -> AsyncGenerator[TellReady]:
    """For the length of the block: the program gets the order to stop when the parent ends. The end removes the ready
    file. The block gets what writes it, whole or not at all.

    A ready file that an earlier run left is removed first, so that the application never reads an old address.
    """
    file = Path(settings.ready_file) if settings.ready_file is not None else None

    async def report_ready(urls: Sequence[str], version: str) -> UsageError | None:
        if file is not None:
            content = msgspec.json.encode(Ready(url=urls[0], urls=urls, pid=os.getpid(), version=version)) + b"\n"
            try:
                await trio.to_thread.run_sync(_write, file, content)
            except OSError as cause:
                return UsageError(f"--ready-file {file} cannot be written: {cause.strerror or cause}")
        return None

    _remove(file)
    try:
        async with beside() as nursery:
            if settings.parent_pid is not None:
                nursery.start_soon(persist, "watching the parent", partial(_follow, settings.parent_pid))
            yield report_ready
    finally:
        _remove(file)


def _remove(file: Path | None) -> None:
    if file is not None:
        with suppress(OSError):
            file.unlink()


async def _follow(pid: int) -> None:
    """Wait for the process's end. Linux reports it at once and of this very process, even if another gets its number
    next.
    """
    if sys.platform == "linux":
        with suppress(ProcessLookupError):  # it has ended already
            descriptor = os.pidfd_open(pid)
            try:
                await trio.lowlevel.wait_readable(descriptor)
            finally:
                os.close(descriptor)
    else:
        import psutil  # see `check_parent`

        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:  # noqa: ASYNC110  there is no event
                await trio.sleep(LOOK_EVERY)
    signal.raise_signal(STOP_SIGNALS[-1])  # as from outside, with the watchdog that this arms


def check_parent(settings: Embedding) -> None:
    """Raises UsageError for a parent that does not exist."""
    if settings.parent_pid is None:
        return
    import psutil  # of no use to a server that has no parent

    if not psutil.pid_exists(settings.parent_pid):
        raise UsageError(
            f"--parent-pid {settings.parent_pid}: there is no such process; give the application's own process id"
        )


def _write(file: Path, content: bytes) -> None:
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with open_private(temporary) as opened:
            opened.write(content)
        temporary.replace(file)
    finally:
        with suppress(OSError):
            temporary.unlink()


class Manager(Protocol):
    """A service manager, as the program speaks to it."""

    every: float | None
    """Seconds between two signs of life; None: it wants none."""

    def open(self, woke: Callable[[], None]) -> None:
        """The event loop runs. ``woke`` is called in it when the machine has slept, if the manager tells that."""
        ...

    def ready(self, where: str) -> None:
        """The program listens at these addresses."""
        ...

    def alive(self) -> None:
        """The event loop turns."""
        ...

    def stopping(self) -> None:
        """The program is to end."""
        ...

    def close(self) -> None:
        """The event loop ends. Idempotent."""
        ...


class NotifySocket:
    """The socket of systemd. Without one, every word is lost, and nothing fails."""

    def __init__(self, watch: SystemdWatch) -> None:
        self.every = watch.every
        self._address = "\0" + watch.address[1:] if watch.address.startswith("@") else watch.address
        self._socket: socket.socket | None = None
        if watch.address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)

    def open(self, woke: Callable[[], None]) -> None:
        """systemd reads a SIGHUP of its own as a reload, which must not end a program that has nothing to read again.

        It says nothing of sleep.
        """
        if self._socket is not None:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def ready(self, where: str) -> None:
        self._send(READY=1, STATUS=f"listening on {where}")

    def alive(self) -> None:
        self._send(WATCHDOG=1)

    def stopping(self) -> None:
        self._send(STOPPING=1, STATUS="requests under way may finish")

    def _send(self, **words: str | int) -> None:
        """Send one message, without waiting. A manager that has gone, or does not read, misses it."""
        if self._socket is not None:
            with suppress(OSError):
                self._socket.sendto(message(**words), self._address)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()


@asynccontextmanager
async def open_service_manager(stopping: trio.Event, woke: Callable[[], None]) -> AsyncGenerator[Manager]:
    """Speak to the service manager that started this process; there may be none.

    Signs of life come from a task of the event loop, so that they end when the loop hangs. The variables that name the
    socket are taken out of the environment: no child may speak for this program. ``woke``: see `Manager.open`.
    """
    watch = watch_of(os.environ, os.getpid()) if hasattr(socket, "AF_UNIX") else SystemdWatch()
    for name in ASKED:
        os.environ.pop(name, None)
    manager = STARTED_BY.get() or NotifySocket(watch)
    manager.open(woke)
    try:
        async with beside() as nursery:
            if manager.every is not None:
                manager.alive()
                nursery.start_soon(every, manager.every, manager.alive)
            nursery.start_soon(_report_stopping, manager, stopping)
            yield manager
    finally:
        manager.close()


async def _report_stopping(manager: Manager, stopping: trio.Event) -> None:
    await stopping.wait()
    manager.stopping()
