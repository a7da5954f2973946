"""One client connection: the bytes between a socket and hypercorn's HTTP/1.1 protocol.

hypercorn 0.18 brings its own `TCPServer` for Trio, and this is used in its place because that one shields every write
(a client that stops reading then holds the connection, and shutdown, for as long as it likes), cannot be told to
refuse an upgrade to HTTP/2, waits for ever when an application answers without reading a large body, and looks for a
client that has left only while no second request is pipelined.
"""

from __future__ import annotations

import socket
import struct
import sys

import h11
import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState

from appliance.core.sse import ErrorInfo
from appliance.http.bytes.tasks import RequestTasks
from appliance.http.bytes.tls import TlsSocket
from appliance.http.bytes.websocket_stream import WebsocketProtocol
from appliance.http.way.errors import INVALID, JSON_TYPE, body

HEAD_TIMEOUT = 15.0
"""Seconds for a request head to arrive, from the connection's start or the head's first bytes."""
IDLE_TIMEOUT = 75.0
"""Seconds that a connection may wait for its next request; nginx's default."""
LINGER = 5.0
"""Seconds that a client is given to stop sending a body nobody wants; closing at once would destroy the answer."""
PEEK_EVERY = 0.5
"""Seconds between looks whether a client with a pipelined request is still there."""
RECEIVE_SIZE = 1 << 16
RESET = struct.pack("hh" if sys.platform == "win32" else "ii", 1, 0)
"""SO_LINGER with no time to linger: close sends RST and frees the socket at once."""

REFUSALS = {
    400: "the request is not valid HTTP/1.1, or has no Host header",
    408: "the request head did not arrive in time",
    431: "the request head is too large",
    501: "this transfer encoding is not supported",
}


class Connection:
    """Owns one accepted socket and the tasks of its requests; `run` ends when both are done.

    A `TlsSocket` makes its handshake within the time for the first request head.
    """

    def __init__(
        self,
        sock: socket.socket | TlsSocket,
        app: ASGIWrapper,
        config: Config,
        context: WorkerContext,
        write_stall: float,
    ) -> None:
        self._sock = sock
        self._write_stall = write_stall
        self._reading = trio.CancelScope(deadline=trio.current_time() + HEAD_TIMEOUT)
        self._lingering = trio.CancelScope()
        self._write_lock = trio.Lock()
        self._tasks = RequestTasks()
        self._idle = True
        self._in_head = True
        self._ending = False
        self._gone = False
        self._http = _Http1(
            app,
            config,
            context,
            self._tasks,
            ConnectionState({"abort": self.abort, "write": self.write}),
            isinstance(sock, TlsSocket),
            _address(sock.getpeername()),
            _address(sock.getsockname()),
            self._send,
        )
        self._http.can_read = _PipelineGate(self)

    async def run(self) -> None:
        """Serve requests until the client leaves, a deadline passes, or `hang_up` or `abort` is called."""
        try:
            async with self._tasks:
                with self._reading:
                    await self._read()
                if self._reading.cancelled_caught and self._in_head and not (self._ending or self._gone):
                    await self._http.refuse_slow_head()
                await self._http.handle(Closed())
            await self._linger()
            if isinstance(self._sock, TlsSocket) and not self._gone:
                self._sock.part()
        finally:
            self._close()

    def hang_up(self) -> None:
        """Close at once if no request is under way; else the end of the request closes (``context.terminated``)."""
        self._lingering.cancel()
        if self._idle:
            self._end()

    def abort(self) -> None:
        """Close with RST, whatever is under way: the client cannot take what it has for a complete answer."""
        if not self._gone:
            try:
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            except OSError:
                pass  # it is closed already
        self._close()

    def peer_has_left(self) -> bool:
        """Look at the socket without taking anything from it."""
        try:
            return self._sock.recv(1, socket.MSG_PEEK) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    # ---- receiving ---------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        while not self._ending:
            data = await self._receive()
            await self._http.handle(RawData(data))
            if not data:
                return
            if self._idle and not self._in_head:
                self._in_head = True
                self._reading.deadline = trio.current_time() + HEAD_TIMEOUT

    async def _receive(self) -> bytes:
        while True:
            try:
                await trio.lowlevel.wait_readable(self._sock)
                return self._sock.recv(RECEIVE_SIZE)
            except BlockingIOError:
                continue
            except (OSError, trio.ClosedResourceError):
                self._gone = True
                return b""

    # ---- sending ----------------------------------------------------------------------------------------------------

    async def _send(self, event: Event) -> None:
        if isinstance(event, RawData):
            await self.write(event.data)
        elif isinstance(event, Updated):
            self._idle, self._in_head = event.idle, False
            self._reading.deadline = trio.current_time() + IDLE_TIMEOUT if event.idle else float("inf")
        else:
            self._end()

    async def write(self, data: bytes) -> None:
        """Returns when the system has taken all of it; no checkpoint where it takes it at once, which is the rule."""
        if not data:
            return  # the end of a body whose length was told has no bytes
        rest = memoryview(data)
        if self._write_lock.locked():
            await self._write_lock.acquire()
            rest = rest[:0] if self._gone else rest
        elif self._gone or not (rest := self._send_now(rest)):
            return
        else:
            self._write_lock.acquire_nowait()
        try:
            while rest:
                with trio.move_on_after(self._write_stall) as stall:
                    await trio.lowlevel.wait_writable(self._sock)
                if stall.cancelled_caught:
                    break
                rest = self._send_now(rest)
        except trio.ClosedResourceError:
            rest = rest[:0]
        finally:
            if rest:  # stalled, or cancelled in the middle of a frame: nothing sensible can follow
                self.abort()
            self._write_lock.release()

    def _send_now(self, data: memoryview) -> memoryview:
        """What the system did not take; nothing when the client has left, since nobody wants it."""
        try:
            return data[self._sock.send(data) :]
        except BlockingIOError:
            return data
        except OSError:
            self._gone = True
            self._end()
            return data[:0]

    # ---- ending ------------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        self._ending = True
        self._reading.cancel()

    async def _linger(self) -> None:
        """After an answer to a body that was not read: let the client finish sending, so that it sees the answer."""
        if self._gone or not self._http.owes_body():
            return
        self._lingering.deadline = trio.current_time() + LINGER
        with self._lingering:
            try:
                self._sock.shutdown(socket.SHUT_WR)
            except OSError:
                return
            while await self._receive():
                pass

    def _close(self) -> None:
        self._gone = True
        if self._sock.fileno() >= 0:
            trio.lowlevel.notify_closing(self._sock)
            self._sock.close()
        self._end()


def _address(name: tuple[str, int] | str | bytes) -> tuple[str, int]:
    """Of one end of the connection; those of a socket in the file system are called what nginx calls them."""
    return (name[0], name[1]) if isinstance(name, tuple) else ("unix:", 0)


class _Http1(WebsocketProtocol):
    """hypercorn's HTTP/1.1, without the ways out to HTTP/2 and with words in its refusals."""

    async def refuse_slow_head(self) -> None:
        if self.connection.our_state is h11.IDLE:
            await self._send_error_response(408)

    def owes_body(self) -> bool:
        """The client may still be sending what was not read."""
        return self.connection.their_state in (h11.SEND_BODY, h11.ERROR)

    async def _check_protocol(self, event: h11.Request) -> None:
        """An offer to upgrade is ignored; a request that claims HTTP/2 is answered by the application."""

    async def _send_error_response(self, status_code: int) -> None:
        words = REFUSALS.get(status_code, REFUSALS[400])
        content = body(ErrorInfo(message=words, type=INVALID, code=status_code, reason="invalid_http"))
        headers = [JSON_TYPE, (b"Content-Length", str(len(content)).encode()), (b"Connection", b"close")]
        headers += self.config.response_headers("h11")
        await self._send_h11_event(h11.Response(status_code=status_code, headers=headers))
        await self._send_h11_event(h11.Data(data=content))
        await self._send_h11_event(h11.EndOfMessage())


class _PipelineGate:
    """Where the reader waits while an earlier request of the same connection is answered; watches the client leave."""

    def __init__(self, connection: Connection | None = None) -> None:
        self._connection = connection
        self._open = trio.Event()

    async def clear(self) -> None:
        self._open = trio.Event()

    async def set(self) -> None:
        self._open.set()

    def is_set(self) -> bool:
        return self._open.is_set()

    async def wait(self) -> None:
        while not self._open.is_set():
            with trio.move_on_after(PEEK_EVERY):
                await self._open.wait()
            if self._connection is not None and self._connection.peer_has_left():
                self._connection.abort()
