"""One open connection: bytes out, bytes in, closed at once."""

from __future__ import annotations

import errno
import socket
from collections.abc import Awaitable, Callable
from typing import Protocol

import trio

from appliance.errors import Busy, UpstreamFailed
from appliance.platform.poller import Poller
from appliance.upstream.address import Address

RECEIVE_SIZE = 1 << 14
NO_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL)


class ConnectFailed(UpstreamFailed):
    """No byte of the request has left, so that another server may be asked instead."""


class Wire(Protocol):
    """An open connection; everything raises OSError when it breaks."""

    async def send(self, data: bytes) -> None: ...

    async def receive(self) -> bytes:
        """Return the bytes that have come, b"" at the end."""
        ...

    def each(self, heard: Callable[[bytes], bool]) -> Awaitable[None]:
        """Call ``heard`` with all that comes, b"" at the end, until it returns False; raises what it raises."""
        ...

    def close(self) -> None:
        """At once, whatever is under way; whoever waits in `send` or `receive` learns of it as an OSError."""
        ...


async def each_received(wire: Wire, heard: Callable[[bytes], bool]) -> None:
    """`Wire.each` in the task that waits, for a wire that no poller knows."""
    while heard(data := await wire.receive()) and data:
        pass


class PlainWire:
    """A TCP socket of our own. With a poller, bytes are received there; see `Receiver`."""

    def __init__(self, sock: socket.socket, poller: Poller | None = None) -> None:
        self._sock = sock
        self._fd = sock.fileno()
        """Waiting on the number costs less than on the socket; -1 once that is closed."""
        self._receiver = poller.receiver(sock) if poller is not None else None

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
        try:
            if self._receiver is not None:
                return await self._receiver.receive(RECEIVE_SIZE)
            return await self._receive_in_this_task()
        except trio.ClosedResourceError:
            raise _closed() from None

    def each(self, heard: Callable[[bytes], bool]) -> Awaitable[None]:
        """See `Wire`; no coroutine of its own, since each streamed chunk would pass through it."""
        if self._fd < 0:
            raise _closed()
        return each_received(self, heard) if self._receiver is None else self._receiver.each(heard)

    def rest(self, lost: Callable[[], None]) -> None:
        """Nobody uses it now: ``lost`` is called when its other side closes it, now or while it is used again."""
        if self._receiver is not None:
            self._receiver.when_left(lost)

    def close(self) -> None:
        if self._fd >= 0:
            if self._receiver is not None:
                self._receiver.close()
            trio.lowlevel.notify_closing(self._fd)
            self._fd = -1
            self._sock.close()

    async def _receive_in_this_task(self) -> bytes:
        """Waits first: a server computes before it speaks, so looking first is in vain."""
        while self._fd >= 0:
            await trio.lowlevel.wait_readable(self._fd)
            try:
                return self._sock.recv(RECEIVE_SIZE)
            except BlockingIOError:
                continue
        raise _closed()


def failure(address: Address, why: str, cause: OSError) -> UpstreamFailed | Busy:
    """Return the error that a broken connection means: the other side's fault, or a lack of resources on this one."""
    if cause.errno in NO_RESOURCES:
        return Busy(f"the system is out of resources ({cause.strerror})")
    return UpstreamFailed(address.label, why)


def _closed() -> OSError:
    return OSError(errno.EBADF, "the connection was closed on this side")
