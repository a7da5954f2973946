"""Tells systemd that the program serves, that it lives, and that it ends (sd_notify(3))."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

import trio

from appliance.core.systemd import Watch, message, watch_of

ASKED = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


class ServiceManager:
    """The socket of the service manager. Without one, every word is lost, and nothing fails."""

    def __init__(self, watch: Watch) -> None:
        self.every = watch.every
        self._address = "\0" + watch.address[1:] if watch.address.startswith("@") else watch.address
        self._socket: socket.socket | None = None
        if watch.address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)

    def say(self, **words: str | int) -> None:
        """Send one message, without waiting. A manager that has gone, or does not read, misses it."""
        if self._socket is not None:
            with suppress(OSError):
                self._socket.sendto(message(**words), self._address)

    def close(self) -> None:
        """Close the socket; twice is once."""
        if self._socket is not None:
            self._socket.close()


@asynccontextmanager
async def open_service_manager(stopping: trio.Event) -> AsyncGenerator[ServiceManager]:
    """Speak to the service manager that started this process; there may be none.

    Signs of life come from a task of the event loop, so that they end when the loop hangs. The variables that name the
    socket are taken out of the environment: no child may speak for this program.
    """
    watch = watch_of(os.environ, os.getpid()) if hasattr(socket, "AF_UNIX") else Watch()
    for name in ASKED:
        os.environ.pop(name, None)
    manager = ServiceManager(watch)
    try:
        async with trio.open_nursery() as nursery:
            if manager.every is not None:
                nursery.start_soon(_show_life, manager, manager.every)
            if watch.address:
                # A reload by systemd must not end a program that has nothing to read again.
                signal.signal(signal.SIGHUP, signal.SIG_IGN)
                nursery.start_soon(_tell_stopping, manager, stopping)
            yield manager
            nursery.cancel_scope.cancel()
    finally:
        manager.close()


async def _show_life(manager: ServiceManager, every: float) -> None:
    while True:
        manager.say(WATCHDOG=1)
        await trio.sleep(every)


async def _tell_stopping(manager: ServiceManager, stopping: trio.Event) -> None:
    await stopping.wait()
    manager.say(STOPPING=1, STATUS="requests under way may finish")
