"""Connections that a server has made to this program, because this program cannot reach it.

Such a server sends the beginning of an upgrade and waits for its answer. A request takes the connection by giving that
answer, `SWITCHED`, and from then on this program is the client of it. So the wait costs nothing, no time limit of HTTP
applies to it, and the server knows that a connection is taken without being told in another way.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

import trio

from appliance.platform.tls_socket import TlsSocket
from appliance.trio_parts import Changed

REVERSE = "/pool/reverse"
UPGRADE = b"llama-appliance-reverse"  # the name of the protocol, in lower case
SWITCHED = b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: %b\r\n\r\n" % UPGRADE


HandOver = Callable[[], TlsSocket | None]  # Gives a connection away. None: it has ended.


class Dialled:
    """The connections of one server, which wait for requests of this program."""

    def __init__(self) -> None:
        self._waiting: dict[HandOver, None] = {}
        self._more = Changed()

    @contextmanager
    def waiting(self, hand_over: HandOver) -> Generator[None]:
        """Offer a connection in the block. ``hand_over`` is called once at most."""
        self._waiting[hand_over] = None
        self._more.wake()
        try:
            yield
        finally:
            self._waiting.pop(hand_over, None)

    async def take(self, seconds: float) -> TlsSocket | None:
        """Return a connection, turned round. None: the server has none here, and has made none within the time."""
        with trio.move_on_after(seconds):
            while True:
                while self._waiting:
                    hand_over, _ = self._waiting.popitem()
                    if (sock := hand_over()) is None:
                        continue
                    try:
                        sock.send(memoryview(SWITCHED))
                    except OSError:  # it broke a moment ago
                        sock.close()
                    else:
                        return sock
                await self._more.wait()
        return None
