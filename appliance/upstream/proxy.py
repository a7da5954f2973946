"""Ways through a proxy: which one leads to a server, and a tunnel through it, by CONNECT or SOCKS5."""

from __future__ import annotations

import math
import os
import socket
import sys
from base64 import b64encode
from functools import lru_cache
from ipaddress import ip_address

import trio

from appliance.core.proxies import Proxy, proxy_in
from appliance.core.settings import in_url

TUNNEL_TIME = 30.0
"""Seconds for a proxy to reach a server, where the address has no limit."""
MAX_HEAD = 1 << 16
SOCKS_ERRORS = {
    1: "it failed",
    2: "its rules do not allow it",
    3: "the network cannot be reached",
    4: "the host cannot be reached",
    5: "the connection was refused",
    6: "it took too long",
    7: "it does not make connections",
    8: "it does not know this kind of address",
}
_ANSWERS = {407: "it wants a user name and a password: http://USER:PASSWORD@HOST:PORT", 403: "it does not allow it"}


class ProxyRefused(Exception):
    """The proxy makes no tunnel; the text ends a sentence."""


def proxy_for(scheme: str, host: str, port: int) -> Proxy | None:
    """Return the proxy of the environment, or else of the system's settings; None for a direct connection."""
    if sys.platform in ("win32", "darwin") and not any(name.lower().endswith("_proxy") for name in os.environ):
        found = _of_system(scheme, host)
        return proxy_in({"all_proxy": found}, scheme, host, port) if found else None
    return proxy_in(os.environ, scheme, host, port)


@lru_cache(maxsize=256)
def _of_system(scheme: str, host: str) -> str:
    from urllib.request import getproxies, proxy_bypass  # 30 ms that most systems need not spend

    found = "" if proxy_bypass(host) else getproxies().get(scheme, "")
    return found.replace("socks4://", "socks://")  # Python's name for any SOCKS server in Windows' settings


def authorization(proxy: Proxy) -> list[tuple[bytes, bytes]]:
    """Return the header that proves the user to an HTTP proxy."""
    if not proxy.user and not proxy.password:
        return []
    return [(b"Proxy-Authorization", b"Basic " + b64encode(f"{proxy.user}:{proxy.password}".encode()))]


async def open_tunnel(sock: socket.socket, proxy: Proxy, host: str, port: int, seconds: float | None) -> None:
    """Have the proxy connect its ``sock`` to a server. Raises ProxyRefused; the caller closes the socket."""
    limit = seconds or TUNNEL_TIME
    try:
        with trio.fail_after(limit):
            await (_connect if proxy.kind == "http" else _greet)(sock, proxy, host, port)
    except trio.TooSlowError:
        raise ProxyRefused(f"it did not answer within {limit:g} s") from None
    except OSError as cause:
        raise ProxyRefused(f"it broke the connection ({cause.strerror or cause})") from None


async def _connect(sock: socket.socket, proxy: Proxy, host: str, port: int) -> None:
    there = f"{in_url(host)}:{port}".encode()
    headers = [(b"Host", there), *authorization(proxy)]
    lines = b"".join(b"%b: %b\r\n" % header for header in headers)
    await _send(sock, b"CONNECT %b HTTP/1.1\r\n%b\r\n" % (there, lines))
    head = b""
    while b"\r\n\r\n" not in head:  # the server behind it speaks after this side, so nothing more comes with it
        head += await _receive(sock, MAX_HEAD, least=1)
        if len(head) > MAX_HEAD:
            raise ProxyRefused("its answer is not that of a proxy")
    status = head[9:12]
    if not head.startswith(b"HTTP/1.") or not status.isdigit() or head.partition(b"\r\n\r\n")[2]:
        raise ProxyRefused("its answer is not that of a proxy")
    if not status.startswith(b"2"):
        why = _ANSWERS.get(int(status), "it cannot reach the server")
        raise ProxyRefused(f"it answered {int(status)}; {why}")


async def _greet(sock: socket.socket, proxy: Proxy, host: str, port: int) -> None:
    """SOCKS5, RFC 1928 and 1929."""
    user, password = proxy.user.encode()[:255], proxy.password.encode()[:255]
    await _send(sock, b"\x05\x02\x00\x02" if user or password else b"\x05\x01\x00")
    version, method = await _receive(sock, 2)
    if version != 5:
        raise ProxyRefused("its answer is not that of a SOCKS5 proxy")
    if method == 2:
        await _send(sock, b"\x01%c%b%c%b" % (len(user), user, len(password), password))
        if (await _receive(sock, 2))[1] != 0:
            raise ProxyRefused("it does not accept the user name and the password")
    elif method != 0:
        raise ProxyRefused("it wants a user name and a password: socks5://USER:PASSWORD@HOST:PORT")
    await _send(sock, b"\x05\x01\x00" + await _named(host, resolves=proxy.resolves) + port.to_bytes(2, "big"))
    version, code, _, kind = await _receive(sock, 4)
    if version != 5 or code != 0:
        raise ProxyRefused(f"it cannot reach the server: {SOCKS_ERRORS.get(code, f'error {code}')}")
    length = {1: 4, 4: 16}.get(kind) or (await _receive(sock, 1))[0]
    await _receive(sock, length + 2)


async def _named(host: str, *, resolves: bool) -> bytes:
    try:
        address = ip_address(host)
    except ValueError:
        if resolves:
            name = host.encode()
            return b"\x03%c%b" % (len(name), name)
        try:
            found = await trio.socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except OSError as cause:
            raise ProxyRefused(f"the name {host} is not known here ({cause.strerror}); socks5h:// asks it") from None
        address = ip_address(found[0][4][0])
    return (b"\x01" if address.version == 4 else b"\x04") + address.packed


async def _send(sock: socket.socket, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        await trio.lowlevel.wait_writable(sock)
        rest = rest[sock.send(rest) :]


async def _receive(sock: socket.socket, count: int, *, least: float = math.inf) -> bytes:
    """Return so many bytes; or as many as there are, if they are ``least``."""
    data = b""
    while len(data) < min(count, least):
        await trio.lowlevel.wait_readable(sock)
        try:
            more = sock.recv(count - len(data))
        except BlockingIOError:
            continue
        if not more:
            raise ProxyRefused("it closed the connection")
        data += more
    return data
