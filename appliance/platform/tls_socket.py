"""TLS on a socket, of either side, that is used like a plain one.

The TLS engine works on memory (`ssl.MemoryBIO`), so that reading never has to write first nor the other way round,
and neither the poller nor the code of plain connections knows of it.
"""

from __future__ import annotations

import errno
import select
import socket
import ssl
import sys
from contextlib import suppress
from copy import copy

SEND_SIZE = 1 << 16
"""Bytes encrypted at once; those that the system does not take are held until it does."""
MAX_UNSENT = 1 << 18
"""Bytes the other side's TLS may make this one answer without reading them; key updates are all there is of that."""
_WORDS = b"this port speaks HTTPS; begin the address with https://\n"
NOT_HTTPS = (
    b"HTTP/1.1 400 Bad Request\r\nServer: llama-appliance\r\nContent-Type: text/plain; charset=utf-8\r\n"
    b"Connection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(_WORDS), _WORDS)
)


class TlsSocket:
    """A socket with TLS on it: as much of a socket as its users need, and never blocking.

    `recv` makes the handshake as its first bytes come, and leaves nothing inside it: waiting for the socket is waiting
    for the other side. After BlockingIOError `send` must be called with the same bytes again.

    Without a ``server_name`` this side is the server. With one it is a client, which begins by `say_hello`, and the
    server has to prove that name.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, server_name: str | None = None) -> None:
        self._sock = sock
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_name is None, server_hostname=server_name
        )
        self.secure = False
        """The handshake is over."""
        self._unwrapped = False
        self._unsent = b""
        """Encrypted; the other side gets it before anything else."""
        self._taken = 0
        """Bytes given to `send` that are in ``_unsent``, and that `send` has not said yet to have taken."""

    def say_hello(self) -> None:
        """Begin the handshake as a client; `recv` goes on with it. Raises OSError."""
        self._shake_hands()
        self._flush()

    def moved(self) -> TlsSocket:
        """Give the connection to another object, with which it goes on; this one is closed."""
        other, sock = copy(self), self._sock
        other._sock = socket.socket(sock.family, sock.type, sock.proto, fileno=sock.detach())
        other._sock.setblocking(False)
        return other

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        """Return what the other side sent. Raises BlockingIOError when there is nothing yet, and OSError."""
        if flags:
            return b"" if _hung_up(self._sock) else self._sock.recv(size, flags)
        if data := self._sock.recv(size):
            self._incoming.write(data)
        else:
            self._incoming.write_eof()
        try:
            # The ``finally`` sends what OpenSSL has to say even where the handshake fails: the alert tells the
            # other side why.
            self.secure = self.secure or self._shake_hands()
            content = self._decrypted(size)
        finally:
            self._flush()
        if len(self._unsent) > MAX_UNSENT:
            raise ConnectionAbortedError(errno.ECONNABORTED, "the other side asks for TLS and does not read it")
        if content is None:
            raise BlockingIOError
        return content

    def send(self, data: memoryview, /) -> int:
        """How many bytes were taken. Raises BlockingIOError, and OSError before the handshake."""
        if not self.secure or self._unwrapped:
            raise OSError(errno.ENOTCONN, "there is no TLS connection")
        # Bytes that are encrypted cannot be taken back. So the caller's bytes are encrypted once, `_taken` remembers
        # how many, and the caller learns of them only when all of the encrypted ones have left. Until then it must
        # offer the same bytes again, which are not looked at.
        if not self._taken:
            data = data[:SEND_SIZE]
            while self._taken < len(data):  # OpenSSL takes a record, 16 KiB, at once
                self._taken += self._tls.write(data[self._taken :])
        self._flush()
        if self._unsent:
            raise BlockingIOError
        taken, self._taken = self._taken, 0
        return taken

    def unwrap(self) -> None:
        """Send close_notify, as far as the system takes it now. Raises nothing."""
        if not self.secure or self._unwrapped:
            return
        self._unwrapped = True
        with suppress(OSError):  # it asks for the other side's close_notify, which nobody waits for
            self._tls.unwrap()
        with suppress(OSError):
            self._flush()

    def shutdown(self, how: int, /) -> None:
        self.unwrap()
        self._sock.shutdown(how)

    def close(self) -> None:
        """Close without close_notify: a truncated answer must not look complete."""
        self._sock.close()

    @property
    def certificate(self) -> bytes:
        """The other side's certificate (DER), which it has proved to hold; b"" where it showed none."""
        return self._tls.getpeercert(binary_form=True) or b""

    @property
    def family(self) -> int:
        return self._sock.family

    def fileno(self) -> int:
        return self._sock.fileno()

    def getpeername(self) -> tuple[str, int]:
        return self._sock.getpeername()

    def getsockname(self) -> tuple[str, int]:
        return self._sock.getsockname()

    def setsockopt(self, level: int, option: int, value: int | bytes, /) -> None:
        self._sock.setsockopt(level, option, value)

    def _shake_hands(self) -> bool:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            if error.reason == "HTTP_REQUEST":
                self._outgoing.read()
                self._unsent = NOT_HTTPS
            raise
        return True

    def _decrypted(self, size: int) -> bytes | None:
        """Return the bytes that are there; b"" at the end, None for nothing yet. An end without a close_notify also
        counts.
        """
        if not self.secure:
            return None
        content = b""
        try:
            # Everything is taken out, also more than ``size``. The poller sees the socket alone: bytes that stayed
            # inside OpenSSL would wait until more is sent, perhaps for ever.
            while piece := self._tls.read(size):
                content += piece
        except ssl.SSLWantReadError:
            return content or None
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            pass
        return content

    def _flush(self) -> None:
        self._unsent += self._outgoing.read()
        while self._unsent:
            try:
                self._unsent = self._unsent[self._sock.send(self._unsent) :]
            except BlockingIOError:
                return


if sys.platform == "linux":

    def _hung_up(sock: socket.socket) -> bool:
        """Return whether the other side has closed its end, even behind unread bytes (its close_notify is some)."""
        poll = select.poll()
        poll.register(sock, select.POLLRDHUP)
        return bool(poll.poll(0))

else:

    def _hung_up(sock: socket.socket) -> bool:
        """This cannot be known here; the next write finds that the other side has left."""
        return False
