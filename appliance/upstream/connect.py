"""From an address to an open connection: names, time limits, TLS."""

from __future__ import annotations

import errno
import math
import os
import socket
import sys
from functools import lru_cache
from ipaddress import ip_address

import trio

from appliance.errors import Busy
from appliance.platform.poller import Poller
from appliance.upstream.address import Address
from appliance.upstream.tls import secure
from appliance.upstream.wire import NO_RESOURCES, ConnectFailed, PlainWire, Wire

UNDER_WAY = (0, errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EALREADY)
"""The results of connect(2) that are not failures (yet)."""
LOCALHOST = ("127.0.0.1", "::1")
"""Both, in the order in which engines listen: llama-server binds the first unless told otherwise."""


async def connect(address: Address, poller: Poller | None = None) -> Wire:
    """The caller closes it. Raises ConnectFailed, or Busy when this process or the system has no sockets left."""
    try:
        sock = await _connect(address)
    except OSError as cause:
        if cause.errno in NO_RESOURCES:
            raise Busy(f"the system is out of resources ({cause.strerror})") from None
        raise ConnectFailed(address.label, f"it does not accept connections ({_words(cause)})") from None
    if address.keepalive is not None:
        _keep_alive(sock, address.keepalive)
    return await secure(sock, address) if address.tls else PlainWire(sock, poller)


async def _connect(address: Address) -> socket.socket:
    """Raises OSError, also when it takes too long."""
    seconds = address.connect_timeout or math.inf
    fixed = (address.resolved,) if address.resolved is not None else _fixed(address.host)
    if not fixed:
        return await _connect_by_name(address.host, address.port, seconds)
    failures: list[OSError] = []
    for host in fixed:
        try:
            return await _connect_to(host, address.port, seconds)
        except OSError as cause:
            failures.append(cause)
    raise failures[0]  # a machine without IPv6 would complain about that rather than about the server


@lru_cache(maxsize=1024)
def _fixed(host: str) -> tuple[str, ...]:
    """The addresses of ``host`` where nobody has to be asked. localhost is the loopback by definition (RFC 6761)."""
    if host.lower() == "localhost" or host.lower().endswith(".localhost"):
        return LOCALHOST
    try:
        ip_address(host)
    except ValueError:
        return ()
    return (host,)


async def _connect_to(host: str, port: int, seconds: float) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        code = sock.connect_ex((host, port))
        if code in UNDER_WAY and not _is_connected(sock):
            with trio.move_on_after(seconds) as limit:
                await trio.lowlevel.wait_writable(sock)
            if limit.cancelled_caught:
                raise _too_slow(seconds)
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code and code not in UNDER_WAY:
            raise OSError(code, os.strerror(code))
    except BaseException:
        sock.close()
        raise
    return sock


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
        return f"{cause}: {os.strerror(first.errno)}"
    return cause.strerror or str(cause)


def _first_attempt(cause: BaseException | None) -> OSError | None:
    """Trio puts the failures of several attempts into a group behind its error."""
    match cause:
        case ExceptionGroup(exceptions=(OSError() as first, *_)):
            return first
        case _:
            return None


def _keep_alive(sock: socket.socket, seconds: int) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "darwin":
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPALIVE, seconds)
    else:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, seconds)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, seconds)
