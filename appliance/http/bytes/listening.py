"""Opening and closing the sockets that the program listens on, with words for what can be wrong."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Sequence

import trio

from appliance.core.settings import Listen, UnixSocket, in_url
from appliance.errors import UsageError
from appliance.platform import unix_sockets

PROBE_TIME = 3.0
WITHOUT_IPV6 = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT)
BACKLOG = 4096
"""Connections that may wait to be accepted; the system lowers it to its own limit."""


class Listener:
    """One listening socket, which never blocks. ``bound`` is where it listens; a port 0 has become a real one."""

    def __init__(self, sock: socket.socket, bound: Listen, file: unix_sockets.UnixListener | None = None) -> None:
        self.socket = sock
        self.bound = bound
        self._file = file

    def close(self) -> None:
        """Its file goes first, so that a missing file means that no server listens. Raises nothing; idempotent."""
        file, self._file = self._file, None
        if file is not None:
            unix_sockets.remove(file)
        self.socket.close()


def public_places(listeners: Sequence[Listener]) -> list[Listen]:
    """Return where clients reach the server; commands of its own home find their way by themselves."""
    return [each.bound for each in listeners if not (isinstance(each.bound, UnixSocket) and each.bound.trusted)]


def shown(where: Listen) -> str:
    """An address as it stands in a URL, a file as it is."""
    if isinstance(where, UnixSocket):
        return where.path
    host, port = where
    return f"{in_url(host)}:{port}"


def url_of(where: Listen, *, tls: bool) -> str:
    """Return the URL that the user is shown."""
    if isinstance(where, UnixSocket):
        return f"unix:{where.path}"
    return f"{'https' if tls else 'http'}://{shown(where)}"


def reachable(host: str) -> str:
    """Return the host by which this machine reaches a server that listens on ``host``, which may mean everywhere."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)


async def open_listeners(places: Sequence[Listen], *, reuse_port: bool = False) -> list[Listener]:
    """The caller closes them. Raises UsageError when one of them cannot be listened on.

    ``reuse_port``: other processes that ask for the same may listen on the same TCP ports.
    """
    if reuse_port and not hasattr(socket, "SO_REUSEPORT"):
        raise UsageError("--reuse-port: this system does not let processes share a port; leave it out")
    listeners: list[Listener] = []
    try:
        for place in places:
            listeners += (
                [await _listen_at(place)] if isinstance(place, UnixSocket) else await _listen_on(*place, reuse_port)
            )
    except BaseException:
        for listener in listeners:
            listener.close()
        raise
    return listeners


async def _listen_at(place: UnixSocket) -> Listener:
    where = f"cannot listen on {place.path}"
    try:
        found = await trio.to_thread.run_sync(unix_sockets.listen_at, place.path, place.mode)
    except unix_sockets.NotASocket:
        raise UsageError(f"{where}: there is a file that is not a socket; name another path, or remove it") from None
    except OSError as error:
        match error.errno:
            case errno.EADDRINUSE | errno.EWOULDBLOCK:
                why = "another program listens there already; stop it, or name another path"
            case errno.ENOENT | errno.ENOTDIR:
                why = f"there is no folder {os.path.dirname(place.path) or '.'}; create it"  # noqa: PTH120
            case errno.EACCES | errno.EPERM:
                why = "not permitted; name a path in a folder of your own"
            case None:
                why = f"{error}; name a shorter path"  # Python's own check of its length
            case _:
                why = f"{error.strerror or error}; name another path"
        raise UsageError(f"{where}: {why}") from None
    return Listener(found.socket, place, found)


async def _listen_on(host: str, port: int, reuse_port: bool) -> list[Listener]:
    where = shown((host, port))
    if not 0 <= port <= 65535:  # glibc would take it modulo 65536
        raise UsageError(f"cannot listen on {where}: a port is a number from 0 to 65535")
    try:
        if host.lower() == "localhost":
            return await _listen_locally(port, reuse_port)
        return await _listen_at_all(host, port, reuse_port)
    except socket.gaierror:
        raise UsageError(f"cannot listen on {where}: the host name is not known; use an address (--listen)") from None
    except OSError as error:
        code = error.errno
        why = error.strerror or str(error)
    match code:
        case errno.EADDRINUSE:
            who = await _who_answers(host, port)
            another = f"--listen {shown((host, port + 1))}, or with llama-server's options --port {port + 1}"
            advice = f"{who} listens there already; stop it, or choose another port, as in {another}"
            raise UsageError(f"cannot listen on {where}: {advice}")
        case errno.EACCES | errno.EPERM:
            raise UsageError(f"cannot listen on {where}: not permitted; choose a port above 1023, as in --listen")
        case errno.EADDRNOTAVAIL:
            raise UsageError(f"cannot listen on {where}: this machine has no such address; see --listen")
        case _:
            raise UsageError(f"cannot listen on {where}: {why}; choose another address with --listen")


async def _listen_locally(port: int, reuse_port: bool) -> list[Listener]:
    """At both addresses that localhost stands for, since a client takes either, if there is IPv6. Raises OSError."""
    listeners = await _listen_at_all("127.0.0.1", port, reuse_port)
    try:
        _, port = _bound(listeners[0].socket)
        listeners += await _listen_at_all("::1", port, reuse_port)
    except OSError as error:
        if error.errno not in WITHOUT_IPV6:
            listeners[0].close()
            raise
    return listeners


async def _listen_at_all(host: str, port: int, reuse_port: bool) -> list[Listener]:
    """At all addresses of a name. Raises OSError."""
    if reuse_port:
        return await _listen_sharing(host, port)
    # Of a text Python would look up IDNA, whose tables take a millisecond of the start.
    found = await trio.open_tcp_listeners(port, host=host.encode() if host.isascii() else host)
    plain = [_plain(each.socket) for each in found]
    return [Listener(sock, _bound(sock)) for sock in plain]


async def _listen_sharing(host: str, port: int) -> list[Listener]:
    """The same with SO_REUSEPORT, which trio does not set. Raises OSError."""
    found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    listeners: list[Listener] = []
    try:
        for family, kind, proto, _, address in found:
            sock = socket.socket(family, kind, proto)
            sock.setblocking(False)
            listeners.append(Listener(sock, (host, port)))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind(address)
            sock.listen(BACKLOG)
            listeners[-1] = Listener(sock, _bound(sock))
    except BaseException:
        for listener in listeners:
            listener.close()
        raise
    return listeners


def _plain(sock: trio.socket.SocketType) -> socket.socket:
    plain = socket.socket(sock.family, sock.type, sock.proto, fileno=sock.detach())
    plain.setblocking(False)
    return plain


def _bound(sock: socket.socket) -> tuple[str, int]:
    name = sock.getsockname()
    return name[0], name[1]


async def _who_answers(host: str, port: int) -> str:
    """Return whether another llama-appliance holds the port."""
    head = b""
    with trio.move_on_after(PROBE_TIME):
        try:
            stream = await trio.open_tcp_stream(reachable(host), port)
            async with stream:
                await stream.send_all(b"GET /health HTTP/1.0\r\n\r\n")
                head = await stream.receive_some(4096)
        except (OSError, trio.BrokenResourceError):
            pass
    return "another llama-appliance" if b"server: llama-appliance" in head.lower() else "another program"
