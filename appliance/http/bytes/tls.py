"""TLS towards clients: the certificate, and a socket that Connection uses like a plain one.

The TLS engine works on memory (`ssl.MemoryBIO`), so that reading never has to write first nor the other way round,
and plain connections do not know of it.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import socket
import ssl
import sys
import time
from contextlib import suppress
from copy import copy
from typing import NamedTuple, Protocol

import trio

from appliance.errors import UsageError

SEND_SIZE = 1 << 16
"""Bytes encrypted at once; those that the system does not take are held until it does."""
MAX_UNSENT = 1 << 18
"""Bytes the client's TLS may make this side answer without reading them; key updates are all there is of that."""
RECHECK_AFTER = 10.0
"""Seconds between looks whether the certificate's files were renewed."""
_WORDS = b"this port speaks HTTPS; begin the address with https://\n"
NOT_HTTPS = (
    b"HTTP/1.1 400 Bad Request\r\nServer: llama-appliance\r\nContent-Type: text/plain; charset=utf-8\r\n"
    b"Connection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(_WORDS), _WORDS)
)
_REASONS = {
    "KEY_VALUES_MISMATCH": "the key does not belong to the certificate",
    "KEY_TYPE_MISMATCH": "the key does not belong to the certificate",
    "EE_KEY_TOO_SMALL": "the certificate's key is too short to be safe; make one of 2048 bits or more",
}

log = logging.getLogger(__name__)


class ServerContexts(Protocol):
    """A server's certificate, which may change between two connections."""

    def context(self) -> ssl.SSLContext: ...


class _Version(NamedTuple):
    """A file's identity, by which a change shows."""

    modified_ns: int
    size: int


class Certificates:
    """The server's certificate (with its chain) and key. Files that are renewed in place are taken over by themselves.

    Raises UsageError when it is made, with what is wrong with which file; later a pair that cannot be used is logged
    and the one before stays.
    """

    def __init__(self, certificate: str, key: str) -> None:
        self._certificate = certificate
        self._key = key
        self._versions = self._look()
        self._context = load_context(certificate, key)
        self._looked_at = time.monotonic()

    def context(self) -> ssl.SSLContext:
        """For a new connection."""
        now = time.monotonic()
        if now - self._looked_at >= RECHECK_AFTER:
            self._looked_at = now
            if (versions := self._look()) != self._versions:
                self._versions = versions
                self._renew()
        return self._context

    def _renew(self) -> None:
        try:
            self._context = load_context(self._certificate, self._key)
        except UsageError as error:
            log.warning("the renewed certificate is not used, the old one stays: %s", error)
        else:
            log.info("the certificate %s was renewed", self._certificate)

    def _look(self) -> list[_Version | None]:
        found: list[_Version | None] = []
        for path in (self._certificate, self._key):
            try:
                stat = os.stat(path)  # noqa: PTH116  -- called between two connections
                found.append(_Version(stat.st_mtime_ns, stat.st_size))
            except OSError:
                found.append(None)
        return found


def load_context(certificate: str, key: str) -> ssl.SSLContext:
    """TLS 1.2 or later with this certificate. Raises UsageError."""
    shown = f"--ssl-cert-file {certificate}"
    if "CERTIFICATE-----" not in _pem("--ssl-cert-file", certificate):
        raise UsageError(f"{shown} holds no certificate in PEM form, which begins with -----BEGIN CERTIFICATE-----")
    text = _pem("--ssl-key-file", key)
    if "PRIVATE KEY-----" not in text:
        raise UsageError(f"--ssl-key-file {key} holds no private key in PEM form")
    if "ENCRYPTED" in text:
        raise UsageError(
            f"--ssl-key-file {key} is protected by a passphrase, which a service has nobody to type; "
            f"take it off with 'openssl pkey -in {key} -out NEW'"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(certificate, key, password="")  # never asks on the terminal
    except ssl.SSLError as error:
        reason = error.reason or str(error)
        why = _REASONS.get(reason, f"OpenSSL says {reason}")
        raise UsageError(f"{shown} and --ssl-key-file {key} cannot be used: {why}") from None
    except OSError as error:
        raise UsageError(f"{shown} and --ssl-key-file {key} cannot be used: {error.strerror}") from None
    return context


def _pem(flag: str, path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:  # noqa: PTH123  -- a path as the user wrote it
            return file.read(1 << 20)
    except OSError as error:
        raise UsageError(f"{flag} {path} cannot be read: {error.strerror or error}") from None


class TlsSocket:
    """One client's socket with TLS on it: as much of a socket as `Connection` uses, and never blocking.

    `recv` makes the handshake as its first bytes come, and leaves nothing inside it: waiting for the socket is waiting
    for the client. After BlockingIOError `send` must be called with the same bytes again.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, server: str | None = None) -> None:
        """``server``: the other side is one, whose certificate has to have this name. `greet` begins the handshake."""
        self._sock = sock
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=server is None, server_hostname=server)
        self._secure = False
        self._unwrapped = False
        self._unsent = b""
        """Encrypted; the client gets it before anything else."""
        self._taken = 0
        """Bytes of the answer that are in ``_unsent``, and that `send` has not said yet to have taken."""

    async def greet(self) -> None:
        """Make the handshake as a client. Raises OSError."""
        self._shake_hands()
        self._flush()
        while not self._secure:
            await trio.lowlevel.wait_readable(self._sock)
            with suppress(BlockingIOError):
                self.recv(SEND_SIZE)

    def moved(self) -> TlsSocket:
        """Give the connection to another object, with which it goes on; this one is closed."""
        other, sock = copy(self), self._sock
        other._sock = socket.socket(sock.family, sock.type, sock.proto, fileno=sock.detach())
        other._sock.setblocking(False)
        return other

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        """Return what the client sent. Raises BlockingIOError when there is nothing yet, and OSError."""
        if flags:
            return b"" if _hung_up(self._sock) else self._sock.recv(size, flags)
        if data := self._sock.recv(size):
            self._incoming.write(data)
        else:
            self._incoming.write_eof()
        try:
            # The ``finally`` sends what OpenSSL has to say even where the handshake fails: the alert tells the client
            # why.
            self._secure = self._secure or self._shake_hands()
            content = self._decrypted(size)
        finally:
            self._flush()
        if len(self._unsent) > MAX_UNSENT:
            raise ConnectionAbortedError(errno.ECONNABORTED, "the client asks for TLS answers and does not read them")
        if content is None:
            raise BlockingIOError
        return content

    def send(self, data: memoryview, /) -> int:
        """How many bytes were taken. Raises BlockingIOError, and OSError before the handshake."""
        if not self._secure or self._unwrapped:
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
        if not self._secure or self._unwrapped:
            return
        self._unwrapped = True
        try:
            self._tls.unwrap()
        except OSError:
            pass  # it asks for the client's close_notify, which nobody waits for
        try:
            self._flush()
        except OSError:
            pass

    def shutdown(self, how: int, /) -> None:
        self.unwrap()
        self._sock.shutdown(how)

    def close(self) -> None:
        """Close without close_notify: a truncated answer must not look complete."""
        self._sock.close()

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
        if not self._secure:
            return None
        content = b""
        try:
            # Everything is taken out, also more than ``size``. The poller sees the socket alone: bytes that stayed
            # inside OpenSSL would wait until the client sends more, perhaps for ever.
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
        """Return whether the client has closed its side, even behind unread bytes (its close_notify is some)."""
        poll = select.poll()
        poll.register(sock, select.POLLRDHUP)
        return bool(poll.poll(0))

else:

    def _hung_up(sock: socket.socket) -> bool:
        """This cannot be known here; the next write finds that the client has left."""
        return False
