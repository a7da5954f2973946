"""Listening, accepting, and ending in a bounded time."""

from __future__ import annotations

import logging
import math
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence

import trio

from appliance.core.settings import HttpSettings, Listen, UnixSocket
from appliance.http.bytes.connection import LAST_HEAD, Answers, Connection
from appliance.http.bytes.listening import Listener, public_places
from appliance.http.bytes.tls import ServerContexts
from appliance.platform.poller import Poller
from appliance.platform.tls_socket import TlsSocket
from appliance.traffic.traffic import Lifetime
from appliance.trio_parts import EPISODE, Changed, lacking

KEPT_FOR_FILES = 64
"""Places that only clients of a socket in the file system can take: nobody on the network keeps those out."""
TURNED_AWAY = 128
"""Clients at once that get an error because the server is full, but no more than there are places."""
KEEPS = 2.0
"""Seconds for which a client that we wait for keeps its place: its request may be on its way."""
BRIEFLY = 0.25
"""The same where a client from an address with fewer places wants it."""
UNFAIRLY = 15.0
"""The same where a client from an address with as many places, or more, wants it."""
ACCEPTED_AT_ONCE = 8
"""Connections taken before other tasks have their turn, so that the first of many does not wait for the last."""
LAST_WORDS = 0.5
"""Seconds for streams that are cut off at the end of the grace to say why."""
LOOK_EVERY = 0.5
"""Seconds between two looks whether a client has had its time."""
ACCEPT_PAUSE = 0.1

log = logging.getLogger(__name__)


class _Open:
    """The open connections, oldest first: those with a place by the address of their other end, and those without."""

    def __init__(self) -> None:
        self._by_peer: dict[str, dict[Connection, None]] = {}
        self._turned_away: dict[Connection, float] = {}
        self.places = 0
        """Places that are taken."""

    def __len__(self) -> int:
        return self.places + len(self._turned_away)

    def __iter__(self) -> Iterator[Connection]:
        yield from (connection for each in list(self._by_peer.values()) for connection in list(each))
        yield from list(self._turned_away)

    def add(self, connection: Connection) -> None:
        self._by_peer.setdefault(connection.peer, {})[connection] = None
        self.places += 1

    def discard(self, connection: Connection) -> None:
        same = self._by_peer.get(connection.peer, {})
        if connection not in same:
            self._turned_away.pop(connection, None)
            return
        del same[connection]
        self.places -= 1
        if not same:
            del self._by_peer[connection.peer]

    def turn_away(self, connection: Connection) -> None:
        """Send an error to a connection that has no place, or has lost it."""
        self.discard(connection)
        self._turned_away[connection] = trio.current_time()
        connection.turn_away()

    def may_turn_away(self, most: int) -> bool:
        """True if one more client can be turned away. The first of them makes way, if it had the time to read its
        error.
        """
        if len(self._turned_away) < most:
            return True
        first, since = next(iter(self._turned_away.items()))
        if trio.current_time() - since < LAST_HEAD:
            return False
        del self._turned_away[first]
        first.give_way()
        return True

    def make_room(self, newcomer: str) -> bool:
        """End one that makes no use of its place, the oldest of the address with the most. False: there is none.

        So a client that holds every place loses them to others, one by one, and others keep theirs. A new connection
        keeps its place for a while, or many that come at once would end each other. Against an address with fewer
        places it does so for a moment only, so no client keeps others out by reconnecting. An address that has its
        share gives up its own places first, or its new connections would end others' keep-alive connections.
        """
        now, own = trio.current_time(), self._by_peer.get(newcomer, {})
        for same in sorted(self._by_peer.values(), key=len, reverse=True):
            keeps = KEEPS if same is own else BRIEFLY if len(same) > len(own) + 1 else UNFAIRLY
            for connection in same:
                if connection.is_spare(now, keeps):
                    if connection.is_spare(now, KEEPS):
                        self.discard(connection)
                        connection.give_way()
                    else:
                        self.turn_away(connection)
                    return True
        return False


class Clients:
    """The open connections of one server."""

    def __init__(
        self, answers: Answers, poller: Poller, settings: HttpSettings, certificates: ServerContexts | None
    ) -> None:
        self._answers = answers
        self._poller = poller
        self._settings = settings
        self._certificates = certificates
        self._open = _Open()
        self._some = trio.Event()
        self._left = Changed()
        self._none_left = trio.Event()
        self._nursery: trio.Nursery | None = None  # while they are served

    async def serve(
        self,
        listeners: Sequence[Listener],
        lifetime: Lifetime,
        *,
        shutdown: trio.Event,
        grace: float,
        others: Callable[[], Awaitable[None]],
        task_status: trio.TaskStatus[Sequence[Listen]] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve until ``shutdown`` is set, then end within ``grace`` and about a second; see `_end`."""
        async with trio.open_nursery() as self._nursery:
            try:
                self._nursery.start_soon(self._keep_time)
                async with trio.open_nursery() as accepting:
                    for listener in listeners:
                        accepting.start_soon(self._accept_all, listener)
                    task_status.started(public_places(listeners))
                    await shutdown.wait()
                    # The end comes in this order, so that no client sees a reset for what it has sent. Idle connections
                    # hang up. The connections that the system has accepted for us are taken, because closing the
                    # listener would reset them. Then the listener closes, and what is under way has its grace.
                    accepting.cancel_scope.cancel()
                self._hang_up(lifetime)
                for listener in listeners:
                    self._take_waiting(listener)
                    listener.close()
                await self._end(lifetime, grace, others)
            finally:
                for connection in list(self._open):
                    connection.abort()
                self._nursery.cancel_scope.cancel()

    async def _accept_all(self, listener: Listener) -> None:
        """Take connections for ever. A client's fault never ends it; a lack of files makes it pause."""
        told_at = -math.inf
        while True:
            await trio.lowlevel.wait_readable(listener.socket)
            for _ in range(ACCEPTED_AT_ONCE):
                try:
                    if self._accept(listener):
                        continue
                    with trio.move_on_after(LOOK_EVERY):
                        await self._left.wait()
                    break
                except BlockingIOError:
                    break
                except OSError as error:
                    if why := lacking(error):
                        if trio.current_time() > told_at + EPISODE:
                            log.warning("cannot accept a connection: %s; waiting for others to end", why)
                        told_at = trio.current_time()
                        await trio.sleep(ACCEPT_PAUSE)

    async def _keep_time(self) -> None:
        """Tell connections what is overdue, for ever."""
        while True:
            await self._some.wait()
            while self._open:
                await trio.sleep(LOOK_EVERY)
                now = trio.current_time()
                # One sweep instead of a timer for each connection. A time limit is then an assignment to ``due``, for
                # each request and each piece of a body, and half a second of inaccuracy harms none of them.
                for connection in [each for each in self._open if each.due < now]:
                    connection.overdue()
            self._some = trio.Event()

    def _hang_up(self, lifetime: Lifetime) -> None:
        """End the connections without a request under way, and the feeds; the others end with their request."""
        lifetime.end_followers()
        for connection in list(self._open):
            connection.hang_up()

    async def _end(self, lifetime: Lifetime, grace: float, others: Callable[[], Awaitable[None]]) -> None:
        """Let requests under way finish within ``grace``, and what ``others`` waits for, then make them.

        Returns when all are closed or overdue.
        """
        with trio.move_on_after(grace):
            if self._open:
                await self._none_left.wait()
            await others()
        lifetime.end_requests()
        if self._open:
            with trio.move_on_after(LAST_WORDS):
                await self._none_left.wait()

    def _take_waiting(self, listener: Listener) -> None:
        """Take the connections that the system has made already, each for one request: closing would reset them."""
        try:
            for _ in range(self._settings.clients):
                if not self._accept(listener, last=True):
                    return
        except OSError:
            return  # there are no more of them

    def _accept(self, listener: Listener, *, last: bool = False) -> bool:
        """Take one connection. False: nothing is taken, because so many clients are turned away just now.

        Raises OSError where there is no connection to take, or none can be taken.
        """
        on_machine = isinstance(listener.bound, UnixSocket)
        certificates = None if on_machine else self._certificates
        places = self._settings.clients
        full = self._open.places >= places + (KEPT_FOR_FILES if on_machine else 0)
        if full and not self._open.may_turn_away(min(TURNED_AWAY, places)):
            return False
        sock, _ = listener.socket.accept()
        sock.setblocking(False)
        if on_machine or _is_prompt(sock):
            client = sock if certificates is None else TlsSocket(sock, certificates.context())
            self._take(client, full=full, last=last)
        return True

    def adopt(self, sock: TlsSocket, begun: bytes) -> None:
        """Serve a connection that this program has made, as if it had been accepted. ``begun`` was received on it."""
        self._take(sock, full=self._open.places >= self._settings.clients, last=False, begun=begun)

    def _take(self, sock: socket.socket | TlsSocket, *, full: bool, last: bool, begun: bytes = b"") -> None:
        """It counts from now on: many are accepted before the first one's task runs."""
        try:
            connection = Connection(sock, self._answers, self._poller, self._settings, self)
        except OSError:
            sock.close()
            return  # it left before it was looked at
        if last:
            connection.take_one()
        if full and not self._open.make_room(connection.peer):
            self._open.turn_away(connection)
        else:
            self._open.add(connection)
        self._some.set()
        connection.begin(begun)

    # ---- as `bytes.connection.Owner` ---------------------------------------------------------------------------------

    def start(self, task: Callable[[], Awaitable[None]]) -> None:
        assert self._nursery is not None
        self._nursery.start_soon(task)

    def closed(self, connection: Connection) -> None:
        self._open.discard(connection)
        self._left.wake()
        if not self._open:
            self._none_left.set()
            self._none_left = trio.Event()


def _is_prompt(sock: socket.socket) -> bool:
    """Make a TCP socket send what it is given at once. False, and closed: the client left before it was looked at."""
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError:
        sock.close()
        return False
    return True
