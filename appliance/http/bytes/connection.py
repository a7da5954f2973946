"""One client connection: requests read one after the other, answers written, and an end in bounded time.

HTTP/1.1 is strict here (`core.bodies.http_request`): a head that a proxy in front could read in another way is refused,
and the connection closed. One task serves a connection and waits for one thing at a time: the next head, the rest of a
body, room in the client's socket, or whatever its answer needs. That the client leaves meanwhile is heard of by the
poller. Most requests do not wake the task at all: they are `Carried` while it waits for the next one. No time limit is
a timer of its own: ``due`` says when what is waited for is overdue, and the server looks at all connections twice a
second.
"""

from __future__ import annotations

import math
import socket
import struct
import sys
from collections.abc import Awaitable, Callable
from io import BytesIO
from typing import Protocol

import trio

from appliance.core.bodies.http_message import BodyError, Chunked
from appliance.core.bodies.http_request import Head, RequestError, read_request
from appliance.core.bodies.pace import Pace
from appliance.core.settings import HttpSettings
from appliance.errors import BadRequest, BodyTooSlow, Busy
from appliance.http.bytes.answer import refusal
from appliance.http.bytes.body import Body, ClientLeft
from appliance.http.bytes.tls import TlsSocket
from appliance.platform.poller import Poller

HEAD_TIMEOUT = 15.0
"""Seconds for a request head to arrive, from the connection's start or the head's first bytes."""
LAST_HEAD = 1.0
"""The same when the server has begun to end, or has no place for the client; and then the time to see the answer."""
IDLE_TIMEOUT = 75.0
"""Seconds that a connection may wait for its next request; nginx's default."""
LINGER = 5.0
"""Seconds that a client is given to stop sending a body nobody wants; closing at once would destroy the answer."""
MAX_HEAD = 64 << 10
"""Bytes of a request head; llama-server allows a URI of 32 KiB."""
RECEIVE_SIZE = 1 << 16
BODY_PIECE = 1 << 18
EMPTY_LINES = 2
"""Before a request line, which some clients send behind the body of the request before (RFC 9112 section 2.2)."""
RESET = struct.pack("hh" if sys.platform == "win32" else "ii", 1, 0)
"""SO_LINGER with no time to linger: close sends RST and frees the socket at once."""
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
TOO_SLOW = RequestError(408, "the request head did not arrive in time")
TOO_LONG = RequestError(431, "the request head is too large")
FULL = Busy("the server has as many connections as it takes; ask again in a moment, or raise its limit of open files")


class Overdue(Exception):
    """The awaited bytes have not come in time."""


class Carried(Protocol):
    """A request that is answered while the connection's task is parked; see `http.way.carried`."""

    halted: bool
    """The task has to take over."""

    def halt(self) -> None:
        """Do nothing more by yourself. Twice is once."""
        ...

    def go_on(self) -> Awaitable[bool]:
        """Take over where it stands. As `Answers.answer`."""
        ...


class Answers(Protocol):
    """Has every request of a connection answered; the gateway."""

    def begin(self, connection: Connection, data: bytes) -> Carried | None:
        """Carry the request that ``data`` is, until `Connection.answered` or `Connection.wake`. None: `answer` it."""
        ...

    async def answer(self, connection: Connection, head: Head) -> bool:
        """True: the answer is whole, and the connection good for another request."""
        ...


class Connection:
    """Owns one accepted socket; `run` ends when it is closed.

    A `TlsSocket` makes its handshake within the time for the first request head.
    """

    def __init__(
        self, sock: socket.socket | TlsSocket, answers: Answers, poller: Poller, settings: HttpSettings
    ) -> None:
        """Raises OSError when the client has left already."""
        name = sock.getpeername()
        self.peer: str = name[0] if isinstance(name, tuple) else "unix:"
        """The address of the other end; what nginx calls a socket in the file system."""
        self.socket = sock
        self.secure = isinstance(sock, TlsSocket)
        self.due = math.inf
        """When what is waited for is overdue, in Trio's time."""
        self.ending = False
        """No other request is taken."""
        self.gone = False
        """The client is not there any more, or was cut off."""
        self.left = False
        """The client has closed its end."""
        self.leaving: Callable[[], None] | None = None
        """Called when the client leaves, or is cut off."""
        self.stranger = True
        """The newest request needed no key, or had none that is good."""
        self.queued = False
        """Its request waits for the turn of strangers, and nothing was done for it."""
        self.turned_away = False
        """There is no place for it: its request is answered 503."""
        self._answers = answers
        self._receiver = poller.receiver(sock, eager=True)
        self._settings = settings
        self._buffer: bytes = b""
        self._unsent = b""
        self._pace = Pace()  # of a stranger who reads
        self._born = trio.current_time()
        self._carried: Carried | None = None
        self._first = True  # nothing has come yet
        self._idle = True
        self._overdue = False
        self._last = False  # one request is taken although it is ending
        self._owed = False  # the client may still be sending what was not read
        self._expects = False  # it waits to be told that it may send the body

    async def run(self) -> None:
        """Serve requests until the client leaves, something is overdue, or `hang_up` or `abort` is called."""
        self._receiver.when_left(self._client_left)
        try:
            await self._serve()
            if self._owed and not self.gone:
                await self._linger()
            if isinstance(self.socket, TlsSocket) and not self.gone:
                self.socket.part()
        finally:
            self.close()

    def is_spare(self, now: float, keeps: float) -> bool:
        """Whether somebody else may have the place: its client is waited for, and has been for ``keeps`` seconds.

        A stranger's place is spare also while it does not read its answer, sends a body that nobody wants, or waits for
        its turn. Its time counts from the beginning of the connection: a small request now and then, or a sip of a long
        answer, would keep the place for ever. A client whose bytes were not looked at yet is not waited for.
        """
        if self.ending:
            return False
        since = self._born if self.stranger else self.due - (HEAD_TIMEOUT if self._buffer else IDLE_TIMEOUT)
        if now - since < keeps:
            return False
        if self._idle:
            return self._receiver.waits and not self._has_news()
        return self.stranger and bool(self._unsent or self._owed or self.queued)

    async def _serve(self) -> None:
        self.due = trio.current_time() + (LAST_HEAD if self._last else HEAD_TIMEOUT)
        try:
            while True:
                raw = await self._next_head()
                if (carried := self._carried) is not None:
                    self._carried = None
                    stays = await carried.go_on()
                elif raw:
                    if self.turned_away:
                        raise FULL
                    head = read_request(raw)
                    self._expects = head.expects
                    stays = await self._answers.answer(self, head)
                else:
                    return
                if not stays or self.gone:
                    return
                await self.flush()  # of an answer that was cancelled behind its last byte
                if self._buffer:
                    await trio.lowlevel.checkpoint()  # others have their turn between pipelined requests
                self._wait_for_next()
        except (RequestError, Busy) as error:
            await self._refuse(error)
        except Overdue:
            if self._buffer or self._first:
                await self._refuse(FULL if self.turned_away else TOO_SLOW)
        finally:
            if (carried := self._carried) is not None:  # this task was cancelled
                self._carried = None
                await carried.go_on()  # ends it at once

    def _wait_for_next(self) -> None:
        self.due = trio.current_time() + (HEAD_TIMEOUT if self._buffer else IDLE_TIMEOUT)
        self._idle = True

    async def _next_head(self) -> bytes:
        """Up to and with the empty line; b"" when no request comes any more, or one was carried and needs this task.

        Raises RequestError and Overdue.
        """
        searched = 0
        while not self.ending or self._last:
            buffer = self._buffer
            if buffer[:1] in b"\r\n":
                buffer = _without_empty_lines(buffer)
                self._buffer = buffer
            end = buffer.find(b"\r\n\r\n", max(searched - 3, 0)) + 4
            if end > 3:
                if end > MAX_HEAD:
                    raise TOO_LONG
                self._buffer, self._idle, self._last, self.due = buffer[end:], False, False, math.inf
                return buffer[:end]
            if len(buffer) > MAX_HEAD:
                raise TOO_LONG
            if buffer and _is_hopeless(buffer, searched):
                raise RequestError(400, "this is not HTTP/1.1, or a line of the request head ends in a bare CR or LF")
            searched = len(buffer)
            data = await (self.receive() if buffer else self._receive_next())
            if not data or self._carried is not None:
                break
            if not buffer and not self._first:
                self.due = trio.current_time() + HEAD_TIMEOUT
            self._buffer += data
            self._first = False
        return b""

    # ---- requests that are carried -----------------------------------------------------------------------------------

    def answered(self, *, stays: bool) -> None:
        """The request that was carried has its answer. ``stays``: the connection is good for another one."""
        self._carried = None
        if stays and not self.ending:
            self._wait_for_next()
        else:
            self.ending = True
            self.wake()

    def wake(self) -> None:
        """The request that is carried needs the task."""
        self._receiver.interrupt()

    def _hear_next(self, data: bytes) -> bool:
        """The first bytes behind a request. False: they are for the task."""
        if (carried := self._carried) is not None:
            self._buffer += data  # it does not wait for its answer
            carried.halt()
            return False
        if not data or (carried := self._answers.begin(self, data)) is None:
            return False
        self._carried, self._first, self._idle, self.stranger, self.due = carried, False, False, False, math.inf
        return not carried.halted

    async def _receive_next(self) -> bytes:
        """As `receive`, but for requests that are carried from here: `_carried` is one that needs the task now."""
        try:
            return await self._receiver.each(self._hear_next)
        except trio.ClosedResourceError:
            if self._overdue and not self.gone:
                self._overdue = False
                raise Overdue from None
        except OSError:
            self._lose()
        return b""

    # ---- receiving ---------------------------------------------------------------------------------------------------

    async def receive(self, size: int = RECEIVE_SIZE) -> bytes:
        """Return the client's next bytes, b"" at its end. Raises Overdue."""
        try:
            return await self._receiver.receive(size)
        except trio.ClosedResourceError:
            if self._overdue and not self.gone:
                self._overdue = False
                raise Overdue from None
        except OSError:
            self._lose()
        return b""

    def interrupt(self) -> None:
        """End the wait: `receive` returns b""."""
        self._receiver.interrupt()

    def rest(self) -> bytes:
        """Take what has come already behind the head of the request."""
        rest, self._buffer = self._buffer, b""
        return rest

    def overdue(self) -> None:
        """End the wait: `receive` raises Overdue."""
        self.due = math.inf
        self._overdue = self._receiver.interrupt()

    async def read_body(self, body: Body) -> bytes:
        """See `Source`."""
        if self._expects and not self._buffer:
            await self.write(CONTINUE)
        try:
            if body.length is None:
                return await self._read_chunked(body)
            return await self._read_sized(body, body.length)
        except BodyError as error:
            raise BadRequest(f"the chunked body of the request is malformed: {error}") from None

    async def _read_sized(self, body: Body, length: int) -> bytes:
        buffer = self._buffer
        body.grow_to(min(len(buffer), length))
        if len(buffer) >= length:
            self._buffer = buffer[length:]
            return buffer if len(buffer) == length else buffer[:length]
        self._buffer = b""
        content, left, pace = BytesIO(), length - len(buffer), Pace()
        content.write(buffer)
        while left:
            left -= content.write(await self.receive_at(pace, min(left, BODY_PIECE)))
            body.grow_to(length - left)
        return content.getvalue()  # the very bytes that were written: no second copy, however long it is

    async def _read_chunked(self, body: Body) -> bytes:
        chunked = Chunked(pipelined=True)
        content, pace = BytesIO(), Pace()
        data, self._buffer = self._buffer, b""
        while True:
            if piece := chunked.feed(data):
                body.grow_to(content.tell() + len(piece))
                content.write(piece)
            if chunked.complete:
                self._buffer = chunked.rest
                return content.getvalue()
            data = await self.receive_at(pace)

    async def receive_at(self, pace: Pace, size: int = BODY_PIECE) -> bytes:
        """The next bytes of a body. Raises ClientLeft, and BodyTooSlow for a client that is ``body_stall`` behind."""
        began, stall = trio.current_time(), self._settings.body_stall
        self.due = began + stall - pace.behind
        try:
            data = await self.receive(size)
        except Overdue:
            raise BodyTooSlow(stall) from None
        finally:
            self.due = math.inf
        if not data:
            self._lose()
            raise ClientLeft
        pace.passed(trio.current_time() - began, len(data))
        return data

    def _client_left(self) -> None:
        self.left = True
        if self.leaving is not None:
            self.leaving()

    # ---- sending -----------------------------------------------------------------------------------------------------

    def push(self, data: bytes) -> bool:
        """Send what the system takes at once. False: the rest is held, for `flush`."""
        if self.gone:
            return True  # nobody wants it
        if self._unsent:
            self._unsent += data
            return False
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[self.socket.send(rest) :]
        except BlockingIOError:
            self._unsent = bytes(rest)
            return False
        except OSError:
            self._lose()
        return True

    async def flush(self) -> None:
        """Return when the system has taken all. A client that takes nothing for ``write_stall`` seconds is cut off.

        So is a stranger that is so far behind the least rate: a little now and then would do for ever.
        """
        try:
            while self._unsent and not self.gone:
                began = trio.current_time()
                behind = self._pace.behind if self.stranger else 0.0
                with trio.move_on_at(began + self._settings.write_stall - behind) as stall:
                    await trio.lowlevel.wait_writable(self.socket)
                if stall.cancelled_caught:
                    break
                unsent, self._unsent = self._unsent, b""
                self.push(unsent)
                if self.stranger:
                    self._pace.passed(trio.current_time() - began, len(unsent) - len(self._unsent))
        except trio.ClosedResourceError:
            pass
        finally:
            if self._unsent:  # stalled, or cancelled in the middle of a frame: nothing sensible can follow
                self.abort()

    async def write(self, data: bytes) -> None:
        """`push`, and `flush` where it is needed."""
        if not self.push(data):
            await self.flush()

    async def _refuse(self, error: RequestError | Busy) -> None:
        """Answer what is not a request, did not come in time, or came where there is no place."""
        if self.gone or (self.ending and not self.turned_away):
            return
        self._idle, self._owed = False, True
        await self.write(refusal(error))

    # ---- ending ------------------------------------------------------------------------------------------------------

    def take_one(self) -> None:
        """The server ends, and this client has connected before that: its request is answered, if it comes soon."""
        self.ending = self._last = True

    def turn_away(self) -> None:
        """There is no place for the client, or none any more: what it asks, if it asks soon, is answered 503."""
        self.turned_away = True
        self.take_one()
        self.due = trio.current_time() + LAST_HEAD

    def give_way(self) -> None:
        """Close now, because somebody else needs the place. A client that has had no answer is told so."""
        if self.queued or (self._idle and (self._first or self._buffer)):
            self.push(refusal(FULL))
        if self.queued or self._idle or self._owed:
            self.close()
        else:
            self.abort()

    def hang_up(self) -> None:
        """Close at once if no request is under way or has just come; else the end of the request closes."""
        self.ending = True
        if self._idle and self._has_news():
            self._last, self.due = True, trio.current_time() + LAST_HEAD
        elif self._idle or self._owed:
            self.due = math.inf
            self.interrupt()

    def _has_news(self) -> bool:
        """Whether the client has sent something that was not received yet."""
        try:
            return bool(self.socket.recv(1, socket.MSG_PEEK))
        except OSError:
            return False

    def abort(self) -> None:
        """Close with RST, whatever is under way: the client cannot take what it has for a complete answer."""
        if self.socket.fileno() >= 0:
            try:
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            except OSError:
                pass  # it is closed already
        self.close()

    def cut(self, *, reset: bool) -> None:
        """End in the middle of an answer. That is not the client's doing, and ends no request as if it had left."""
        self.leaving = None
        if reset:
            self.abort()
        else:
            self.close()

    def owe(self) -> None:
        """Part of a request was not read: the client may still be sending it."""
        self._owed = True

    def close(self) -> None:
        """Close the socket; who waits for it learns of that. Twice is once."""
        self._lose()
        if self.socket.fileno() >= 0:
            self._receiver.close()
            trio.lowlevel.notify_closing(self.socket)
            self.socket.close()

    def _lose(self) -> None:
        self.gone, self._unsent = True, b""
        self._client_left()

    async def _linger(self) -> None:
        """Let the client finish sending, so that it sees the answer."""
        self.due, self._buffer = trio.current_time() + (LAST_HEAD if self.turned_away else LINGER), b""
        try:
            self.socket.shutdown(socket.SHUT_WR)
            while (self.turned_away or not self.ending) and await self.receive(BODY_PIECE):
                pass
        except (OSError, Overdue):
            return


def _without_empty_lines(buffer: bytes) -> bytes:
    for _ in range(EMPTY_LINES):
        buffer = buffer.removeprefix(b"\r\n")
    return buffer


def _is_hopeless(buffer: bytes, searched: int) -> bool:
    """Return whether the bytes cannot become a head: something other than HTTP, or lines that end in LF alone."""
    bare = buffer.count(b"\n", searched) != buffer.count(b"\r\n", max(searched - 1, 0))
    return bare or not (buffer[:1].isalpha() or buffer[:1] == b"\r")
