"""Listening, accepting, and ending in a bounded time."""

from __future__ import annotations

import errno
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from wsgiref.handlers import format_date_time

import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.trio.worker_context import WorkerContext

from appliance.core.settings import HttpSettings, Listen, UnixSocket
from appliance.errors import Busy
from appliance.http.bytes.connection import Connection
from appliance.http.bytes.listening import Listener, open_listeners
from appliance.http.bytes.tls import Certificates, TlsSocket
from appliance.http.way.errors import body, describe
from appliance.http.way.front import Front, Owners
from appliance.http.way.gateway import Gateway
from appliance.traffic.lifetime import Lifetime

MAX_CONNECTIONS = 2000
"""Clients at once; each that uses a model costs two file descriptors and about 60 KiB."""
MAX_HEAD = 64 << 10
"""Bytes of a request head; llama-server allows a URI of 32 KiB."""
LAST_WORDS = 0.5
"""Seconds for streams that are cut off at the end of the grace to say why."""
OUT_OF_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
ACCEPT_PAUSE = 0.1
_FULL_BODY = body(describe(Busy("too many connections")))
FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nServer: llama-appliance\r\nContent-Type: application/json; charset=utf-8\r\n"
    b"Retry-After: 1\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(_FULL_BODY), _FULL_BODY)
)

log = logging.getLogger(__name__)


async def serve(
    settings: HttpSettings,
    owners: Owners,
    *,
    shutdown: trio.Event,
    task_status: trio.TaskStatus[Sequence[Listen]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until ``shutdown`` is set, then end within ``settings.grace`` and about a second.

    ``started`` is called with the bound addresses. Raises UsageError when an address cannot be listened on, or a file
    of the certificate cannot be used.
    """
    certificates = Certificates(*settings.tls) if settings.tls is not None else None
    listeners = await open_listeners(settings.listen, reuse_port=settings.reuse_port)
    try:
        bound = [listener.bound for listener in listeners]
        front = Front(settings, owners, bound)
        clients = _Clients(ASGIWrapper(Gateway(front)), settings.write_stall, certificates)
        async with trio.open_nursery() as connections:
            async with trio.open_nursery() as accepting:
                for listener in listeners:
                    accepting.start_soon(clients.accept, listener, connections)
                task_status.started(bound)
                await shutdown.wait()
                accepting.cancel_scope.cancel()
            for listener in listeners:
                listener.close()
            await clients.end(front.lifetime, settings.grace, owners.agents.wait_ended)
            connections.cancel_scope.cancel()
    finally:
        for listener in listeners:
            listener.close()


class _Clients:
    """The open connections."""

    def __init__(self, app: ASGIWrapper, write_stall: float, certificates: Certificates | None) -> None:
        self._app = app
        self._write_stall = write_stall
        self._certificates = certificates
        self._config = _ProtocolConfig()
        self._context = WorkerContext(None)
        self._open: set[Connection] = set()
        self._none_left = trio.Event()

    async def accept(self, listener: Listener, connections: trio.Nursery) -> None:
        """Take connections for ever. A client's fault never ends it; a lack of files makes it pause."""
        on_machine = isinstance(listener.bound, UnixSocket)
        certificates = None if on_machine else self._certificates
        while True:
            try:
                accepted, _ = await listener.socket.accept()
            except OSError as error:
                if error.errno in OUT_OF_FILES:
                    log.warning("cannot accept a connection: %s; waiting for others to end", error.strerror)
                    await trio.sleep(ACCEPT_PAUSE)
                continue
            sock = socket.socket(accepted.family, accepted.type, accepted.proto, fileno=accepted.detach())
            sock.setblocking(False)
            if len(self._open) >= MAX_CONNECTIONS:
                _turn_away(sock, None if certificates is not None else FULL)
                continue
            if not on_machine and not _is_prompt(sock):
                continue
            client = sock if certificates is None else TlsSocket(sock, certificates.context())
            connections.start_soon(self._serve_one, client)

    async def end(self, lifetime: Lifetime, grace: float, others: Callable[[], Awaitable[None]]) -> None:
        """Let requests under way finish within ``grace``, and what ``others`` waits for, then make them.

        Returns when all are closed or overdue.
        """
        await self._context.terminated.set()
        lifetime.end_followers()
        for connection in list(self._open):
            connection.hang_up()
        with trio.move_on_after(grace):
            if self._open:
                await self._none_left.wait()
            await others()
        lifetime.end_requests()
        if self._open:
            with trio.move_on_after(LAST_WORDS):
                await self._none_left.wait()
        for connection in list(self._open):
            connection.abort()

    async def _serve_one(self, sock: socket.socket | TlsSocket) -> None:
        try:
            connection = Connection(sock, self._app, self._config, self._context, self._write_stall)
        except OSError:
            sock.close()
            return  # it left before it was looked at
        self._open.add(connection)
        try:
            await connection.run()
        except Exception:
            log.exception("a connection ended in an error; this is a bug")
        finally:
            self._open.discard(connection)
            if not self._open:
                self._none_left.set()
                self._none_left = trio.Event()


class _ProtocolConfig(Config):
    """What hypercorn's protocol asks of its configuration."""

    errorlog = None
    accesslog = None
    h11_max_incomplete_size = MAX_HEAD
    h11_pass_raw_headers = True

    def __init__(self) -> None:
        self._second = 0
        self._own_headers: list[tuple[bytes, bytes]] = []

    def response_headers(self, protocol: str) -> list[tuple[bytes, bytes]]:
        if (now := int(time.time())) != self._second:
            self._second = now
            self._own_headers = [(b"Date", format_date_time(now).encode()), (b"Server", b"llama-appliance")]
        return self._own_headers


def _turn_away(sock: socket.socket, answer: bytes | None) -> None:
    try:
        if answer is not None:
            sock.send(answer)
    except OSError:
        pass
    sock.close()


def _is_prompt(sock: socket.socket) -> bool:
    """Make a TCP socket send what it is given at once. False, and closed: the client left before it was looked at."""
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError:
        sock.close()
        return False
    return True
