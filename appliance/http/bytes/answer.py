"""One answer on a connection: HTTP/1.1 framing (RFC 9112 sections 4 to 7)."""

from __future__ import annotations

import time
from http import HTTPStatus
from typing import Protocol

from appliance.core.bodies.http_request import HttpHead, RequestError
from appliance.core.bodies.sse import ErrorInfo
from appliance.core.headers import EVENTS
from appliance.errors import Busy
from appliance.http import errors
from appliance.http.bytes.body import Body
from appliance.traffic.request import Headers

_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
_NO_CONTENT = (204, 304)
LAST_CHUNK = b"0\r\n\r\n"


class Writes(Protocol):
    """The connection, as far as an answer knows it."""

    ending: bool

    @property
    def drained(self) -> bool: ...

    def push(self, data: bytes) -> bool: ...

    async def flush(self) -> None: ...

    def cut(self, *, reset: bool) -> None: ...


class HttpSink:
    """The `Sink` of a request on a connection. ``own_headers`` go out with every answer.

    If the head states a length, it leaves together with the first bytes of the body.
    """

    def __init__(self, connection: Writes, head: HttpHead, body: Body, own_headers: Headers) -> None:
        self.status: int | None = None
        self.event_stream = False
        self.ended = False
        self.sent = 0
        self.stays = head.keep_alive
        """The connection is good for another request after this answer."""
        self._connection = connection
        self._body = body
        self.own_headers = own_headers
        self._version = head.http_version
        self._bodiless = head.method == "HEAD"
        self._chunked = False
        self._left: int | None = None  # of the length that the head told
        self._held = b""  # the head, until the first bytes follow it

    def start(self, status: int, headers: Headers) -> None:
        """Raises ValueError for a header that holds a line break."""
        self.status = status
        self._bodiless = self._bodiless or status in _NO_CONTENT
        lines = [_STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status, _OWN.lines()]
        for name, value in (*headers, *self.own_headers):
            lowered = name.lower()
            if lowered == b"connection":
                self.stays = self.stays and b"close" not in value.lower()
                continue
            if lowered == b"content-length":
                self._left = int(value)
            elif lowered == b"content-type" and value.startswith(EVENTS):
                self.event_stream = True
            lines.append(b"%b: %b\r\n" % (name, value))
        # A body's end is marked in one of three ways (RFC 9112 section 6.3): by a length, by chunks, or by the
        # connection's end. An HTTP/1.0 client does not know chunks, so without a length the connection is given up.
        if self._left is None and not self._bodiless:
            if self._version == "1.1":
                self._chunked = True
                lines.append(b"Transfer-Encoding: chunked\r\n")
            else:
                self.stays = False  # the end of the connection is the end of the body
        # A body that was not read to its end would be taken for the next request, so the connection cannot stay.
        if not self.stays or self._connection.ending or not self._body.complete:
            self.stays = False
            lines.append(b"Connection: close\r\n")
        elif self._version == "1.0":
            lines.append(b"Connection: keep-alive\r\n")
        head = b"".join(lines)
        # One count over the finished head finds a line break in any name or value, with which a server behind could add
        # headers, or a whole answer, of its own. To check each header by itself costs more on every answer.
        if head.count(b"\n") != len(lines) + _OWN.more or head.count(b"\r") != head.count(b"\n"):
            raise ValueError("a header of an answer holds a line break")
        self._held = head + b"\r\n"
        if self._left is None or self._bodiless:
            held, self._held = self._held, b""
            self._connection.push(held)

    def push(self, data: bytes) -> bool:
        self.sent += len(data)
        if self._bodiless or not data:
            return True
        if self._chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        elif self._left is not None:
            self._left -= len(data)
            # Bytes beyond the length would be read as the beginning of the next answer on this connection.
            if self._left < 0:
                self.abort()
                return True
            if self._held:
                data, self._held = self._held + data, b""
        return self._connection.push(data)

    async def flush(self) -> None:
        await self._connection.flush()

    async def write(self, data: bytes) -> None:
        if not self.push(data):
            await self._connection.flush()

    async def end(self) -> None:
        if not self.finish():
            await self._connection.flush()

    def finish(self) -> bool:
        """See `Sink`. An answer that is shorter than its head declared is broken. Idempotent."""
        if self._left and not self._bodiless:
            self.abort()
            return True
        if not self.ended:
            self.ended = True
            if last := self._held + (LAST_CHUNK if self._chunked else b""):
                self._held = b""
                self._connection.push(last)
        return self._connection.drained

    def abort(self) -> None:
        self.ended, self.stays = True, False
        # With a length or with chunks a client sees by itself that the rest is missing, and keeps the bytes that it
        # has; a reset would discard them.
        self._connection.cut(reset=not self._chunked and self._left is None)


def refusal(error: RequestError | Busy) -> bytes:
    """The answer to a client whose request cannot be read, or that there is no place for."""
    if isinstance(error, Busy):
        status, about, content = 503, errors.headers(error, close=True), errors.body(errors.describe(error))
    else:
        info = ErrorInfo(message=str(error), type=errors.INVALID, code=error.status, reason="invalid_http")
        status, about, content = error.status, errors.headers(None, close=True), errors.body(info)
    fields = (*about, (b"Content-Length", b"%d" % len(content)))
    lines = b"".join(b"%b: %b\r\n" % field for field in fields)
    return b"%b%b%b\r\n%b" % (_STATUS_LINES[status], _OWN.lines(), lines, content)


class _OwnHeaders:
    """Date and Server, made anew once a second."""

    more = 1
    """Lines in it beside the first."""

    def __init__(self) -> None:
        self._second = 0
        self._lines = b""

    def lines(self) -> bytes:
        if (now := int(time.time())) != self._second:
            self._second = now
            date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(now))  # English: see core.records.log_lines
            self._lines = b"Date: %b\r\nServer: llama-appliance\r\n" % date.encode()
        return self._lines


_OWN = _OwnHeaders()
