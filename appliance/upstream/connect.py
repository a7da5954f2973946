"""From an address to an open connection: names, time limits, verified TLS.

A connection takes bytes out and in, and is closed at once.
"""

from __future__ import annotations

import errno
import math
import os
import socket
import ssl
import sys
from collections.abc import Callable
from functools import cache, lru_cache
from ipaddress import ip_address
from pathlib import Path
from typing import Protocol

import trio
from msgspec import structs

from appliance.errors import Busy, UpstreamFailed
from appliance.platform.poller import Poller
from appliance.platform.tls_socket import TlsSocket
from appliance.platform.unix_sockets import is_of
from appliance.upstream.address import Address
from appliance.upstream.proxy import ProxyRefused, open_tunnel

RECEIVE_SIZE = 1 << 14
NO_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL)
AUTHORITIES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
"""Files in which systems keep their authorities. A frozen program's OpenSSL looks where its build machine had them."""
UNDER_WAY = (0, errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EALREADY)
"""The results of connect(2) that are not failures (yet)."""
LOCALHOST = ("127.0.0.1", "::1")
"""The loopback's addresses, in the order in which engines listen: llama-server binds the first by default."""


class ConnectFailed(UpstreamFailed):
    """No byte of the request has left, so that another server may be asked instead."""


class NotTrusted(ConnectFailed):
    """A server answers that is not the one that was meant: its certificate is another's."""


class Wire(Protocol):
    """An open connection; everything raises OSError when it breaks."""

    async def send(self, data: bytes) -> None: ...

    async def receive(self) -> bytes:
        """Return the bytes that have come, b"" at the end."""
        ...

    def close(self) -> None:
        """Close at once, also during a call; a task that waits in `send` or `receive` gets an OSError."""
        ...


class SocketWire:
    """A TCP socket of our own, perhaps with TLS on it. With a poller, bytes are received there; see `Receiver`.

    An end without close_notify is an end: the body says if it is whole.
    """

    def __init__(self, sock: socket.socket | TlsSocket, poller: Poller | None = None) -> None:
        self._sock = sock
        self._fd = sock.fileno()
        """Waiting on the number costs less than on the socket; -1 once that is closed."""
        self._receiver = poller.receiver(sock) if poller is not None else None
        self._unsent = b""  # of what was pushed

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

    def push(self, data: bytes) -> None:
        """Send what the system takes, at the end of the poller's turn, and the rest as it takes it; only with a poller.

        A server that stops reading breaks nothing here: its answer, or the lack of one, comes next and tells why.
        """
        assert self._receiver is not None
        self._unsent = self._unsent + data if self._unsent else data
        if not self._receiver.at_turn_end(self._push_rest):
            self._push_rest()

    def _push_rest(self) -> None:
        assert self._receiver is not None
        rest, self._unsent = memoryview(self._unsent), b""
        try:
            while rest:
                rest = rest[self._sock.send(rest) :]
        except BlockingIOError:
            self._unsent = bytes(rest)
            self._receiver.on_room(self._push_rest)
        except OSError:
            pass

    async def receive(self) -> bytes:
        try:
            if self._receiver is not None:
                return await self._receiver.receive(RECEIVE_SIZE)
            return await self._receive_in_this_task()
        except trio.ClosedResourceError:
            raise _closed() from None

    @property
    def listens(self) -> bool:
        """It has a poller: a callback can get its bytes without a task."""
        return Poller.listens and self._receiver is not None

    def listen(self, on_data: Callable[[bytes], bool], ended: Callable[[], None]) -> None:
        """See `Receiver.listen`; only where it `listens`."""
        assert self._receiver is not None
        self._receiver.listen(on_data, ended)

    @property
    def broken(self) -> bool:
        """The end that `listen` reported was an error: `receive` raises it."""
        return self._receiver is not None and self._receiver.broken

    def is_quiet(self) -> bool:
        """True if nothing is left to receive, and everything that was pushed has left."""
        return not self._unsent and (self._receiver is None or self._receiver.is_quiet())

    def stop_listening(self) -> None:
        """End `listen`. Idempotent."""
        if self._receiver is not None:
            self._receiver.stop_listening()

    def on_hang_up(self, lost: Callable[[], None]) -> None:
        """Call ``lost`` when its other side closes it, now or while it is used again."""
        if self._receiver is not None:
            self._receiver.on_hang_up(lost)

    @property
    def certificate(self) -> bytes:
        """The server's certificate (DER), which it has proved to hold; only with TLS."""
        assert isinstance(self._sock, TlsSocket)
        return self._sock.certificate

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


@cache
def tls_context() -> ssl.SSLContext:
    """Certificates and names are verified, against the system's authorities or those of ``SSL_CERT_FILE``."""
    context = ssl.create_default_context()
    built_in = ssl.get_default_verify_paths()
    if not (built_in.cafile or built_in.capath):
        for path in AUTHORITIES:
            if Path(path).is_file():
                context.load_verify_locations(path)
                break
    return context


async def secure(sock: socket.socket, address: Address) -> TlsSocket:
    """Takes the socket over. Raises ConnectFailed with what the certificate or the handshake lacks."""
    try:
        made = TlsSocket(sock, address.tls_context or tls_context(), address.tls_name or address.host)
        with trio.move_on_after(address.tls_timeout or math.inf):
            made.say_hello()
            while not made.secure:
                await trio.lowlevel.wait_readable(sock)
                try:
                    early = made.recv(RECEIVE_SIZE)
                except BlockingIOError:
                    continue
                # `recv` leaves nothing inside, so these bytes would never reach anybody.
                raise ssl.SSLError("it speaks before it is asked") if early else ssl.SSLEOFError
            return made
    except OSError as cause:
        sock.close()
        why = _why_not_secure(address, cause)
        if isinstance(cause, ssl.SSLCertVerificationError):
            raise NotTrusted(address.label, why) from None
        raise ConnectFailed(address.label, why) from None
    except BaseException:
        sock.close()
        raise
    sock.close()
    raise ConnectFailed(address.label, f"no TLS handshake within {address.tls_timeout} s; see timeouts.tlsHandshake")


def _why_not_secure(address: Address, cause: OSError) -> str:
    match cause:
        case ssl.SSLCertVerificationError():
            advice = "install the authority that signed it, or name its file in SSL_CERT_FILE"
            if address.tls_context is not None:
                advice = "it is another server, or has other keys"
            name = address.tls_name or address.host
            return f"its certificate is not trusted for '{name}' ({cause.verify_message}); {advice}"
        case ssl.SSLError() if not isinstance(cause, ssl.SSLEOFError):
            return f"no TLS connection could be made ({cause.reason or cause}); is it https at all?"
        case _:
            return "it closed the connection during the TLS handshake; is it https at all?"


async def connect(address: Address, poller: Poller | None = None) -> Wire:
    """The caller closes it. Raises ConnectFailed, or Busy when this process or the system has no sockets left."""
    if address.dialled is None:
        sock = await open_socket(address)
        return SocketWire(await secure(sock, address) if address.tls else sock, poller)
    if (turned := await address.dialled.take(address.connect_timeout or math.inf)) is None:
        raise ConnectFailed(address.label, "it only dials out, and has no connection to this box; is it running?")
    return SocketWire(turned, poller)


async def open_socket(address: Address) -> socket.socket:
    """Connect without TLS, through a proxy if the address has one. Raises as `connect`."""
    proxy, there, who = address.proxy, address, "it"
    if proxy is not None:
        there, who = structs.replace(address, host=proxy.host, port=proxy.port), f"the proxy {proxy}"
        if proxy.error is not None:
            raise ConnectFailed(address.label, f"{who} cannot be used: {proxy.error}")
    try:
        sock = await _connect(there)
    except OSError as cause:
        if cause.errno in NO_RESOURCES:
            raise Busy(f"the system is out of resources ({cause.strerror})") from None
        raise ConnectFailed(address.label, f"{who} does not accept connections ({_words(cause)})") from None
    if address.keepalive is not None:
        keep_alive(sock, address.keepalive)
    if proxy is not None and address.relayed is None:
        try:
            await open_tunnel(sock, proxy, address.host, address.port, address.connect_timeout)
        except ProxyRefused as cause:
            sock.close()
            raise ConnectFailed(address.label, f"{who} gives no connection: {cause}") from None
        except BaseException:
            sock.close()
            raise
    return sock


def connect_now(address: Address, poller: Poller) -> SocketWire | None:
    """Connect to a server on this machine, which needs no waiting. None where it cannot be done so: `connect` does it,
    or says why not.
    """
    if (host := _here(address)) is None:
        return None
    try:
        sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError:
        return None
    try:
        # On this machine the kernel completes the handshake within connect(2), as long as the server's backlog has
        # room. So a connection that never blocks is made here, without a task. A full backlog is the exception, and is
        # left to `connect`.
        if _begin(sock, host, address.port) in UNDER_WAY and _is_connected(sock):
            if address.keepalive is not None:
                keep_alive(sock, address.keepalive)
            return SocketWire(sock, poller)
    except OSError:
        pass
    sock.close()
    return None


def is_here(address: Address) -> bool:
    """A server on this machine: where `connect_now` gives nothing, it takes no connections."""
    return _here(address) is not None


def _here(address: Address) -> str | None:
    fixed = (address.resolved,) if address.resolved is not None else _fixed(address.host)
    elsewhere = address.tls or address.socket is not None or len(fixed) != 1
    return None if elsewhere or not ip_address(fixed[0]).is_loopback else fixed[0]


async def _connect(address: Address) -> socket.socket:
    """Raises OSError, also when it takes too long."""
    seconds = address.connect_timeout or math.inf
    if address.socket is not None:
        return await _connect_to_file(address.socket, address.users)
    fixed = (address.resolved,) if address.resolved is not None else _fixed(address.host)
    if not fixed:
        return await _connect_by_name(address.host, address.port, seconds)
    failures: list[OSError] = []
    for host in fixed:
        try:
            return await _connect_to(host, address.port, seconds)
        except OSError as cause:
            failures.append(cause)
    try:
        raise failures[0]  # a machine without IPv6 would complain about that rather than about the server
    finally:
        failures.clear()  # its traceback leads back here: both would stay until Python looks for cycles


@lru_cache(maxsize=1024)
def _fixed(host: str) -> tuple[str, ...]:
    """The addresses of ``host`` where no look-up is needed. localhost is the loopback by definition (RFC 6761)."""
    if host.lower() == "localhost" or host.lower().endswith(".localhost"):
        return LOCALHOST
    try:
        ip_address(host)
    except ValueError:
        return ()
    return (host,)


async def _connect_to_file(path: str, users: frozenset[int] | None) -> socket.socket:
    stream = await trio.open_unix_socket(path)
    sock = stream.socket
    plain = socket.socket(sock.family, sock.type, sock.proto, fileno=sock.detach())
    if users is not None and not is_of(plain, users):
        plain.close()
        raise PermissionError(errno.EPERM, "another user's program answers there")
    plain.setblocking(False)
    return plain


async def _connect_to(host: str, port: int, seconds: float) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        code = _begin(sock, host, port)
        if code in UNDER_WAY and not _is_connected(sock):
            with trio.move_on_after(seconds) as limit:
                await trio.lowlevel.wait_writable(sock)
            if limit.cancelled_caught:
                raise _too_slow(seconds)
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code and code not in UNDER_WAY:
            raise OSError(code, system_words(code))
    except BaseException:
        sock.close()
        raise
    return sock


def _begin(sock: socket.socket, host: str, port: int) -> int:
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock.connect_ex((host, port))


def _is_connected(sock: socket.socket) -> bool:
    """A connection to this machine mostly is by now, and a time limit costs a sixth of a short request."""
    try:
        sock.getpeername()
    except OSError:
        return False
    return True


async def _connect_by_name(host: str, port: int, seconds: float) -> socket.socket:
    """Ask for the name's addresses and try them, the next one after a quarter of a second (RFC 8305)."""
    try:
        with trio.fail_after(seconds):
            stream = await trio.open_tcp_stream(host, port)
    except trio.TooSlowError:
        raise _too_slow(seconds) from None
    found = stream.socket
    sock = socket.socket(found.family, found.type, found.proto, fileno=found.detach())
    sock.setblocking(False)
    return sock


def _too_slow(seconds: float) -> OSError:
    return OSError(errno.ETIMEDOUT, f"none was made within {seconds:g} s; see timeouts.connect")


def _words(cause: OSError) -> str:
    if isinstance(cause, socket.gaierror):
        return f"its host name is not known: {cause.strerror}"
    first = _first_attempt(cause.__cause__)
    if first is not None and first.errno:
        return f"{cause}: {system_words(first.errno)}"
    return cause.strerror or str(cause)


def system_words(code: int) -> str:
    """Return the system's words for an error. Windows' C library, which `os.strerror` asks, knows none of sockets."""
    if sys.platform == "win32":
        import ctypes  # one error needs it

        return ctypes.FormatError(code).strip().rstrip(".")
    return os.strerror(code)


def _first_attempt(cause: BaseException | None) -> OSError | None:
    """Trio puts the failures of several attempts into a group behind its error."""
    match cause:
        case ExceptionGroup(exceptions=(OSError() as first, *_)):
            return first
        case _:
            return None


class HasOptions(Protocol):
    """A socket, plain or not."""

    def setsockopt(self, level: int, option: int, value: int, /) -> None: ...


def keep_alive(sock: HasOptions, seconds: int) -> None:
    """Probe a silent connection, so that it breaks if the other side is not there any more.

    A system without these options (Windows before 10.0.16299) uses its own times.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    idle = socket.TCP_KEEPALIVE if sys.platform == "darwin" else socket.TCP_KEEPIDLE
    try:
        sock.setsockopt(socket.IPPROTO_TCP, idle, seconds)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, seconds)
    except OSError as cause:
        if cause.errno not in (errno.ENOPROTOOPT, errno.EINVAL):
            raise
