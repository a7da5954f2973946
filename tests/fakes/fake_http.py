"""One connection of the fake: HTTP/1.1 on a plain blocking socket, with an eye on whether the client is still there."""

from __future__ import annotations

import select
import socket
import time
from urllib.parse import parse_qsl, unquote, urlsplit

KEEP_ALIVE = 5.0
"""Seconds an idle connection is kept, as llama-server does."""
MAX_REQUESTS = 100

REASONS = {
    200: "OK",
    204: "No Content",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    500: "Internal Server Error",
    501: "Not Implemented",
    503: "Service Unavailable",
}


class ClientLeft(Exception):
    """The peer closed its side, or cannot be written to any more."""


class Request:
    """One request as received; header names in lower case, the last of equal ones wins."""

    def __init__(self, head: bytes, body: bytes) -> None:
        self.head = head
        self.body = body
        first, *lines = head.decode("latin-1").split("\r\n")
        self.method, self.target, _ = first.split(" ")
        split = urlsplit(self.target)
        self.path = unquote(split.path)
        self.query = dict(parse_qsl(split.query, keep_blank_values=True))
        pairs = (line.partition(":") for line in lines if line)
        self.headers = {name.lower(): value.strip() for name, _, value in pairs}


class Connection:
    """Owns one accepted socket. Every method raises ClientLeft once the peer is gone."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = sock
        self.buffer = b""
        self.origin = ""
        self.head_only = False
        self.streaming = False
        """The head of a stream is out, and its end is not."""
        self.framed = True
        """A stream has chunks; else it ends with the connection."""
        self.closing = False
        """Set by an error response: llama-server closes the connection behind every status >= 400."""

    def receive(self) -> bytes:
        try:
            data = self.sock.recv(1 << 16)
        except OSError:
            raise ClientLeft from None
        if not data:
            raise ClientLeft
        return data

    def read_request(self) -> Request:
        """The next request with its whole body. ValueError: not HTTP."""
        if not self.buffer and not select.select([self.sock], [], [], KEEP_ALIVE)[0]:
            raise ClientLeft
        while b"\r\n\r\n" not in self.buffer:
            self.buffer += self.receive()
        head, _, self.buffer = self.buffer.partition(b"\r\n\r\n")
        request = Request(head, b"")
        if request.headers.get("expect", "").lower() == "100-continue":
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if "chunked" in request.headers.get("transfer-encoding", "").lower():
            request.body = self._read_chunked()
        else:
            request.body = self._take(int(request.headers.get("content-length", "0")))
        self.closing = request.headers.get("connection", "").lower() == "close"
        self.origin = request.headers.get("origin", "")
        self.head_only = request.method == "HEAD"
        return request

    def _take(self, size: int) -> bytes:
        parts = [self.buffer]
        have = len(self.buffer)
        while have < size:
            parts.append(self.receive())
            have += len(parts[-1])
        whole = b"".join(parts)
        self.buffer = whole[size:]
        return whole[:size]

    def _read_chunked(self) -> bytes:
        body = b""
        while True:
            while b"\r\n" not in self.buffer:
                self.buffer += self.receive()
            line, _, self.buffer = self.buffer.partition(b"\r\n")
            size = int(line.split(b";")[0], 16)
            data = self._take(size + 2)[:size]
            if not size:
                return body
            body += data

    def write(self, data: bytes) -> None:
        try:
            self.sock.sendall(data)
        except OSError:
            raise ClientLeft from None

    def wait(self, seconds: float) -> None:
        """Sleep for so long, or raise ClientLeft as soon as the peer closes."""
        until = time.monotonic() + seconds
        while True:
            left = max(0.0, until - time.monotonic())
            if select.select([self.sock], [], [], left)[0]:
                try:
                    gone = not self.sock.recv(1, socket.MSG_PEEK)
                except OSError:
                    gone = True
                if gone:
                    raise ClientLeft
                time.sleep(min(left, 0.05))  # a pipelined request makes the socket readable; it is not a farewell
            if time.monotonic() >= until:
                return

    def respond(self, status: int, kind: str, body: bytes, *extra: tuple[str, str], sent: int | None = None) -> None:
        """A whole response with its length; ``sent`` cuts the body short without saying so."""
        self.closing = self.closing or status >= 400
        head = self._head(status, kind, (("Content-Length", str(len(body))), *extra))
        self.write(head if self.head_only else head + body[:sent])

    def start_stream(self) -> None:
        """Twice is once."""
        if self.streaming:
            return
        self.streaming = True
        self.closing = self.closing or not self.framed
        framing = (("Transfer-Encoding", "chunked"),) if self.framed else ()
        self.write(self._head(200, "text/event-stream", (("X-Accel-Buffering", "no"), *framing)))

    def chunk(self, data: bytes, most: int | None = None) -> None:
        """``most`` cuts it off without saying so."""
        whole = b"%x\r\n%b\r\n" % (len(data), data[:most]) if self.framed else data[:most]
        self.write(whole if most is None else whole.rstrip(b"\r\n"))

    def end_stream(self) -> None:
        self.streaming = False
        if self.framed:
            self.write(b"0\r\n\r\n")

    def _always(self) -> tuple[tuple[str, str], ...]:
        return ("Server", "llama.cpp"), ("Access-Control-Allow-Origin", self.origin)

    def _head(self, status: int, content_type: str, headers: tuple[tuple[str, str], ...]) -> bytes:
        lines = [f"HTTP/1.1 {status} {REASONS.get(status, 'Fake')}"]
        lines += [f"{name}: {value}" for name, value in (*self._always(), *headers)]
        if content_type:
            lines.append(f"Content-Type: {content_type}")
        if self.closing:
            lines.append("Connection: close")
        else:
            lines.append(f"Keep-Alive: timeout={KEEP_ALIVE:.0f}, max={MAX_REQUESTS}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
