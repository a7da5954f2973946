"""One open connection: bytes out, bytes in, closed at once."""

from __future__ import annotations

import errno
import socket
from typing import Protocol

import trio

from appliance.errors import Busy, UpstreamFailed
from appliance.upstream.address import Address

RECEIVE_SIZE = 1 << 14
NO_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL)


class ConnectFailed(UpstreamFailed):
    """No byte of the request has left, so that another server may be asked instead."""


class Wire(Protocol):
    """An open connection; everything raises OSError when it breaks."""

    async def send(self, data: bytes) -> None: ...

    async def receive(self) -> bytes:
        """What has come, b"" at the end."""
        ...

    def close(self) -> None:
        """At once, whatever is under way; whoever waits in `send` or `receive` learns of it as an OSError."""
        ...


class PlainWire:
    """A TCP socket of our own."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._fd = sock.fileno()
        """Waiting on the number costs less than on the socket; -1 once that is closed."""

    async def send(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[self._sock.send(rest) :]
            except BlockingIOError:
                try:
                    await trio.lowlevel.wait_writable(self._fd)
                except trio.ClosedResourceError:
                    raise _closed() from None

    async def receive(self) -> bytes:
        """Waits first: an engine computes before it speaks, so looking first is in vain."""
        while True:
            if self._fd < 0:
                raise _closed()
            try:
                await trio.lowlevel.wait_readable(self._fd)
                return self._sock.recv(RECEIVE_SIZE)
            except BlockingIOError:
                continue
            except trio.ClosedResourceError:
                raise _closed() from None

    def close(self) -> None:
        if self._fd >= 0:
            trio.lowlevel.notify_closing(self._fd)
            self._fd = -1
            self._sock.close()


def failure(address: Address, why: str, cause: OSError) -> UpstreamFailed | Busy:
    """What a broken connection means: the other side's fault, or a lack of resources on this one."""
    if cause.errno in NO_RESOURCES:
        return Busy(f"the system is out of resources ({cause.strerror})")
    return UpstreamFailed(address.label, why)


def _closed() -> OSError:
    return OSError(errno.EBADF, "the connection was closed on this side")
