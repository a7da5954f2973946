"""One client connection: requests read one after the other, answers written, and an end in bounded time.

HTTP/1.1 is strict here (`core.bodies.http_request`): a head that a proxy in front could read in another way is refused,
and the connection closed.

A connection has no task until something needs one. The poller calls it with the bytes that arrive. A request that comes
whole, and whose model is ready, is answered in the poller's turns (`Answers.begin`), and most connections never do
anything else. Anything that has to wait gets a task: a head or a body in pieces, a model that loads, an error that has
to be sent. The task serves until the connection waits for its next request again, and ends. So a connection is in one
of three states, and only its own methods move it: it *waits* for a request, it is *busy* with one that has no task, or
its *task* serves it. Where there is no poller, the task lasts as long as the connection.

No time limit is a timer of its own: ``due`` says when what is waited for is overdue, and the server looks at all
connections twice a second.
"""

from __future__ import annotations

import logging
import math
import socket
import struct
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from io import BytesIO
from typing import Protocol

import trio

from appliance.core.bodies.http_message import BodyError, Chunked
from appliance.core.bodies.http_request import HttpHead, RequestError, read_request
from appliance.core.bodies.pace import Pace
from appliance.core.settings import HttpSettings, UnixSocket
from appliance.errors import BadRequest, BodyTooSlow, Busy
from appliance.http.bytes.answer import refusal
from appliance.http.bytes.body import Body, ClientLeft
from appliance.platform.poller import Poller
from appliance.platform.tls_socket import TlsSocket
from appliance.traffic.request import TRUSTED

log = logging.getLogger(__name__)

HEAD_TIMEOUT = 15.0
"""Seconds for a request head to arrive, from the connection's start or the head's first bytes."""
LAST_HEAD = 1.0
"""The same when the server has begun to end, or has no place for the client; and then the time to see the answer."""
IDLE_TIMEOUT = 75.0
"""Seconds that a connection may wait for its next request; nginx's default."""
LINGER = 5.0
"""Seconds that a client gets to stop sending an unwanted body; closing at once would discard the answer."""
MAX_HEAD = 64 << 10
"""Bytes of a request head; llama-server allows a URI of 32 KiB."""
RECEIVE_SIZE = 1 << 16
BODY_PIECE = 1 << 18
CORK = 1 << 16
"""Bytes that wait for the end of the poller's turn."""
EMPTY_LINES = 2
"""Before a request line, which some clients send behind the body of the request before (RFC 9112 section 2.2)."""
RESET = struct.pack("hh" if sys.platform == "win32" else "ii", 1, 0)
"""SO_LINGER with no time to linger: close sends RST and frees the socket at once."""
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
TOO_SLOW = RequestError(408, "the request head did not arrive in time")
TOO_LONG = RequestError(431, "the request head is too large")
FULL = Busy("the server has as many connections as it takes; ask again in a moment, or raise its limit of open files")


class Overdue(Exception):
    """The awaited bytes did not come in time."""


class Answers(Protocol):
    """Has every request of a connection answered; the gateway."""

    def begin(self, connection: Connection, data: bytes) -> bool:
        """Answer the request that ``data`` is without a task, until `Connection.answered` or `go_on_in_task` is called.

        False: nothing has happened, and it is for `answer`.
        """
        ...

    async def answer(self, connection: Connection, head: HttpHead) -> bool:
        """True: the answer is whole, and the connection good for another request."""
        ...


Work = Callable[[], Awaitable[bool]]
"""The rest of a request. Returns as `Answers.answer`."""


class Owner(Protocol):
    """Owns the tasks of connections; the server's clients."""

    def start(self, task: Callable[[], Awaitable[None]]) -> None: ...

    def closed(self, connection: Connection) -> None:
        """Its socket is closed, and nothing is under way on it."""
        ...


class Connection:
    """Owns one accepted socket, from `begin` to its end, which it reports to ``owner``.

    A `TlsSocket` makes its handshake within the time for the first request head.
    """

    def __init__(
        self, sock: socket.socket | TlsSocket, answers: Answers, poller: Poller, settings: HttpSettings, owner: Owner
    ) -> None:
        """Raises OSError when the client has left already."""
        name = sock.getpeername()
        self.peer: str = name[0] if isinstance(name, tuple) else _peer_of_file(sock, settings)
        """The address of the other end; "unix:", as in nginx, for a socket in the file system, or `TRUSTED`."""
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
        self.on_left: Callable[[], None] | None = None
        """Called when the client leaves, or is cut off."""
        self.stranger = True
        """The newest request needed no key, or had none that is good."""
        self.queued = False
        """Its request waits for the turn of strangers, and nothing was done for it."""
        self.turned_away = False
        """There is no place for it: its request is answered 503."""
        self._answers = answers
        self._owner = owner
        self._listens = poller.listens
        self._receiver = poller.receiver(sock, eager=not poller.listens)
        self._settings = settings
        self._buffer: bytes = b""
        self._unsent = b""
        self._corked = False  # that leaves at the end of the poller's turn
        self._drained: Callable[[], None] | None = None  # called when nothing is left of that
        self._pace = Pace()  # of a stranger who reads
        self._born = trio.current_time()
        self._busy = False  # a request is answered without a task
        self._has_task = False
        self._reported = False  # that it is closed
        self._first = True  # nothing has come yet
        self._idle = True
        self._overdue = False
        self._last = False  # one request is taken although it is ending
        self._unread = False  # the client may still be sending what was not read
        self._expects = False  # the client waits for 100 Continue before it sends the body

    def begin(self, begun: bytes = b"") -> None:
        """Serve requests until the client leaves, something is overdue, or the server ends. ``begun`` was received."""
        self.due = trio.current_time() + (LAST_HEAD if self._last else HEAD_TIMEOUT)
        self._buffer = begun
        self._receiver.on_hang_up(self._client_left)
        if self._listens and not begun:
            self._receiver.listen(self._on_data, self.close)
        else:
            self._start(None)

    def is_spare(self, now: float, keeps: float) -> bool:
        """True if the place may go to another client: this one has kept us waiting for ``keeps`` seconds.

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
        return self.stranger and bool(self._unsent or self._unread or self.queued)

    # ---- without a task ----------------------------------------------------------------------------------------------

    def _on_data(self, data: bytes) -> bool:
        """The first bytes of a request, or some behind one that is answered."""
        if self._busy:  # the client does not wait for its answer
            # Listening ends with the first pipelined bytes. A client that sends on without reading its answers then
            # fills the system's buffers and not this program's memory.
            self._buffer += data
            return False
        first, self._first, self._busy = self._first, False, True
        try:
            # Only a request that comes whole, in one piece, is offered without a task. A request in pieces would be
            # looked at again with each piece. Behind a rest in the buffer the order of the requests has to be kept.
            begun = not self._buffer and self._answers.begin(self, data)
        except Exception:
            log.exception("a request could not be begun; this is a bug")
            self._busy = False
            self.abort()
            return False
        if begun:
            self._idle, self.stranger, self.due = False, False, math.inf
            return True
        self._busy = False
        self._buffer += data
        # The time for a head counts from its first bytes. It is not renewed with later ones, so a slow drip does not
        # extend it.
        if not first and not self._last:
            self.due = trio.current_time() + HEAD_TIMEOUT
        self._start(None)
        return False

    def answered(self, *, stays: bool) -> None:
        """The request that `Answers.begin` took has its answer. ``stays``: the connection is good for another one."""
        self._busy = False
        if not stays or self.ending or self.gone:
            self._send_close_notify()
            self.close()
        elif self._buffer:
            self._start(None)
        else:
            self._wait_for_next()
            self._receiver.listen(self._on_data, self.close)

    def go_on_in_task(self, work: Work) -> None:
        """The same request needs a task, which does this for it."""
        self._busy = False
        self._start(work)

    def when_drained(self, drained: Callable[[], None]) -> None:
        """Call ``drained`` when the system has taken all that `push` has held. Time limits as in `flush`."""
        self._drained = drained
        if not self._corked:
            self._wait_for_room()

    def _wait_for_room(self) -> None:
        if not self._has_task:  # which looks at the time by itself
            self.due = trio.current_time() + self._settings.write_stall - (self._pace.behind if self.stranger else 0.0)
        self._receiver.on_room(self._has_room)

    def _has_room(self) -> None:
        unsent, self._unsent = self._unsent, b""
        if not self._send(unsent):
            self._wait_for_room()
            return
        if not self._has_task:
            self.due = math.inf
        self._call_drained()

    def _call_drained(self) -> None:
        drained, self._drained = self._drained, None
        if drained is not None:
            drained()

    # ---- in a task ---------------------------------------------------------------------------------------------------

    def _start(self, work: Work | None) -> None:
        self._receiver.stop_listening()
        self._has_task = True
        self._owner.start(partial(self._run, work))

    async def _run(self, work: Work | None) -> None:
        """Serve what has come, and what follows it, until the connection waits for its next request."""
        try:
            good = work is None or (await work() and await self._is_good())
            while good and (raw := await self._next_head()):
                if self.turned_away:
                    raise FULL
                head = read_request(raw)
                self._expects = head.expects
                good = await self._answers.answer(self, head) and await self._is_good()
            if good and self._waits_untasked:
                self._has_task = False
                self._receiver.listen(self._on_data, self.close)
        except (RequestError, Busy) as error:
            await self._refuse(error)
        except Overdue:
            if self._buffer or self._first:
                await self._refuse(FULL if self.turned_away else TOO_SLOW)
        except Exception:
            log.exception("a connection ended in an error; this is a bug")
        finally:
            await self._end_task()

    async def _end_task(self) -> None:
        """Close the connection, unless it waits for its next request."""
        if not self._has_task:
            return
        try:
            if self._unread and not self.gone:
                await self._linger()
            self._send_close_notify()
        finally:
            self._has_task = False
            self.close()

    async def _is_good(self) -> bool:
        """Make ready for the next request, behind the answer to one. False: the client is gone."""
        await self.flush()  # of an answer that was cancelled behind its last byte
        if self._buffer:
            await trio.lowlevel.checkpoint()  # others have their turn between pipelined requests
        self._wait_for_next()
        return not self.gone

    @property
    def _waits_untasked(self) -> bool:
        return self._listens and not self._buffer and not self.gone and (not self.ending or self._last)

    def _wait_for_next(self) -> None:
        self.due = trio.current_time() + (HEAD_TIMEOUT if self._buffer else IDLE_TIMEOUT)
        self._idle = True

    async def _next_head(self) -> bytes:
        """Up to and with the empty line; b"" when no request comes any more, or there is nothing yet to wait for here.

        Raises RequestError and Overdue.
        """
        searched = 0
        while not self.ending or self._last:
            buffer = self._buffer
            if buffer[:1] in b"\r\n":
                buffer = _without_empty_lines(buffer)
                self._buffer = buffer
            # Only the new bytes are searched, and three before them for an end that is split. So no way of cutting a
            # head into pieces makes the search quadratic.
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
            if self._waits_untasked:
                break
            searched = len(buffer)
            data = await self.receive()
            if not data:
                break
            if not buffer and not self._first:
                self.due = trio.current_time() + HEAD_TIMEOUT
            self._buffer += data
            self._first = False
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
        if self._has_task:
            self._overdue = self._receiver.interrupt()
        elif self._busy:
            self.abort()  # the client does not read
        elif self._first:
            self._start(_overdue)  # the client gets an error
        else:
            self._send_close_notify()
            self.close()

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
        if self.on_left is not None:
            self.on_left()

    # ---- sending -----------------------------------------------------------------------------------------------------

    def push(self, data: bytes) -> bool:
        """Send what the system takes, in the poller's turns at their end. False: the rest is held, for `flush`.

        To send wakes the other side, which costs more than all of the work on a chunk where that runs on another core.
        Pieces that one turn sends together wake it once.
        """
        if self.gone:
            return True  # nobody wants it
        # Bytes that were not sent are *corked*, which means not tried and due at the turn's end, or *blocked*, which
        # means that the system takes no more and `_has_room` or `flush` will send them. A push appends in both states,
        # so the order is kept. `CORK` bounds what one turn can hold.
        if self._corked:
            self._unsent += data
            return len(self._unsent) < CORK or self._uncork()
        if self._unsent:
            self._unsent += data
            return False
        if self._receiver.at_turn_end(self._uncork):
            self._unsent, self._corked = data, True
            return True
        return self._send(data)

    @property
    def drained(self) -> bool:
        """The system has taken all that was pushed."""
        return not self._unsent

    def _uncork(self) -> bool:
        """Send what was pushed in this turn. As `push`."""
        if not self._corked:
            return not self._unsent
        self._corked, unsent, self._unsent = False, self._unsent, b""
        if not self._send(unsent):
            self._wait_for_room()
            return False
        # The callback waits for the end of the turn. This runs inside of `push` as well, and the exchange that pushes
        # must not be called back from within its own call.
        if self._drained is not None and not self._receiver.at_turn_end(self._call_drained):
            self._call_drained()
        return True

    def _send(self, data: bytes) -> bool:
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
                self._send(unsent)
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
        self._idle, self._unread = False, True
        await self.write(refusal(error))

    # ---- ending ------------------------------------------------------------------------------------------------------

    def take_one(self) -> None:
        """The server ends, and this client has connected before that: its request is answered, if it comes soon."""
        self.ending = self._last = True

    def turn_away(self) -> None:
        """There is no place for the client, or none any more: its request, if one comes soon, is answered 503."""
        self.turned_away = True
        self.take_one()
        self.due = trio.current_time() + LAST_HEAD

    def give_way(self) -> None:
        """Close now, because another client needs the place. A client without an answer gets an error first."""
        if self.queued or (self._idle and (self._first or self._buffer)):
            self.push(refusal(FULL))
        if self.queued or self._idle or self._unread:
            self.close()
        else:
            self.abort()

    def hang_up(self) -> None:
        """Close at once if no request is under way or has just come; else the end of the request closes."""
        self.ending = True
        # An idle connection may have a request on its way at this very moment: in the system's buffer, or with a task
        # that has started and not received yet. To close it now would reset a request that the client has sent in good
        # faith, so it gets `LAST_HEAD` seconds to come.
        starts = self._has_task and not self._receiver.waits
        if self._idle and (starts or self._has_news()):
            self._last, self.due = True, trio.current_time() + LAST_HEAD
        elif self._idle and not self._has_task:
            self._send_close_notify()
            self.close()
        elif self._idle or self._unread:
            self.due = math.inf
            self.interrupt()

    def _has_news(self) -> bool:
        """True if the client has sent something that was not received yet."""
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
        self.on_left = None
        if reset:
            self.abort()
        else:
            self.close()

    def hand_over(self) -> TlsSocket:
        """Give the TLS connection away while a request is under way, and close this object without ``on_left``."""
        assert isinstance(self.socket, TlsSocket)
        self._receiver.close()
        moved, self.on_left = self.socket.moved(), None
        self.close()
        return moved

    def mark_unread(self) -> None:
        """Part of a request was not read: the client may still be sending it."""
        self._unread = True

    def close(self) -> None:
        """Close the socket, behind what was pushed; a task that waits for it learns of that. Idempotent."""
        self._uncork()
        self._lose()
        if self.socket.fileno() >= 0:
            self._receiver.close()
            trio.lowlevel.notify_closing(self.socket)
            self.socket.close()
        # The owner learns of it last, and once. While a task or the fast path still uses the connection it counts as
        # open: otherwise the server could end with an answer under way.
        if not (self._has_task or self._busy or self._reported):
            self._reported = True
            self._owner.closed(self)

    def _send_close_notify(self) -> None:
        """Send close_notify, where there is TLS."""
        if isinstance(self.socket, TlsSocket) and not self.gone:
            self.socket.unwrap()

    def _lose(self) -> None:
        self.gone, self._unsent = True, b""
        self._client_left()

    async def _linger(self) -> None:
        """Let the client finish sending, so that it sees the answer."""
        # A socket that is closed with unread bytes sends a reset, and the client's system then discards an answer that
        # it has not read yet (RFC 9112 section 9.6). So this side ends, reads until the client ends as well, and closes
        # then.
        self.due, self._buffer = trio.current_time() + (LAST_HEAD if self.turned_away else LINGER), b""
        try:
            self.socket.shutdown(socket.SHUT_WR)
            while (self.turned_away or not self.ending) and await self.receive(BODY_PIECE):
                pass
        except (OSError, Overdue):
            return


def _peer_of_file(sock: socket.socket | TlsSocket, settings: HttpSettings) -> str:
    """Raises OSError when the client has left already."""
    path = sock.getsockname()
    trusted = any(isinstance(at, UnixSocket) and at.trusted and at.path == path for at in settings.places)
    return TRUSTED if trusted else "unix:"


async def _overdue() -> bool:
    raise Overdue


def _without_empty_lines(buffer: bytes) -> bytes:
    for _ in range(EMPTY_LINES):
        buffer = buffer.removeprefix(b"\r\n")
    return buffer


def _is_hopeless(buffer: bytes, searched: int) -> bool:
    """Return whether the bytes cannot become a head: something other than HTTP, or lines that end in LF alone."""
    bare = buffer.count(b"\n", searched) != buffer.count(b"\r\n", max(searched - 1, 0))
    return bare or not (buffer[:1].isalpha() or buffer[:1] == b"\r")
