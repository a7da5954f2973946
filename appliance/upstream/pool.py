"""Connections that wait for their next request, so that it need not make one.

A connection costs some 80 us, and one with TLS some 2 ms; and a server that closes each after one answer,
as this program did, makes every request pay for it. Only a connection whose answer ended in good order is kept: closing
its connection is the only way to tell llama-server that a request was given up.

A server may close a kept connection at any moment. The poller notices that, so a connection that is taken was open an
instant ago; the instant is for `upstream.client`, which asks once more on a new one. llama-server spends a thread on
each open connection, so none is opened while one is free: the pool never holds more than were in use at once.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial

from appliance.platform.poller import Poller, open_poller
from appliance.upstream.address import Address
from appliance.upstream.connect import SocketWire, tls_context

MAX_FREE = 64
"""Free connections to one server; more than so many requests at once is more than an engine has slots for."""
MAX_AGE = 60.0
"""Seconds for which a connection may wait; most servers close it long before."""

_Key = tuple[str, int, str | None, ssl.SSLContext | None, str | None]


def _key(address: Address) -> _Key:
    """With TLS, a connection is one to a server that has proved who it is: to that name, with those authorities."""
    context = address.tls_context or tls_context() if address.tls else None
    return address.host, address.port, address.resolved, context, address.tls_name


class Pool:
    """Made by `open_pool`. Every method is atomic."""

    def __init__(self, poller: Poller) -> None:
        self.poller = poller
        self._free: dict[_Key, dict[SocketWire, float]] = {}

    @property
    def free(self) -> int:
        """How many connections wait."""
        return sum(map(len, self._free.values()))

    def take(self, address: Address) -> SocketWire | None:
        """The connection that was used last: those that were not for long are the first to grow too old."""
        free = self._free.get(_key(address))
        while free:
            wire, since = free.popitem()
            if wire.is_quiet() and since >= time.monotonic() - MAX_AGE:
                return wire
            # It said something behind its answer, which nobody may take for the next one. Or it is so old that a box
            # in between (a router, a load balancer) may have forgotten it and tell nobody.
            wire.close()
        return None

    def give(self, address: Address, wire: SocketWire) -> None:
        """Keep it for the next request, or close it where there are enough."""
        key, now = _key(address), time.monotonic()
        free = self._free.get(key, {})
        # `take` removes at the end of the dictionary and this adds there, so the first is always the one unused for the
        # longest time. That makes a look at the first enough, and no timer is needed: idle connections age until the
        # next use.
        while free and (len(free) >= MAX_FREE or next(iter(free.values())) < now - MAX_AGE):
            self._drop(key, next(iter(free)))
        free[wire] = now
        self._free[key] = free
        wire.on_hang_up(partial(self._lost, key, wire))

    def close(self) -> None:
        for key, free in list(self._free.items()):
            for wire in list(free):
                self._drop(key, wire)

    def _lost(self, key: _Key, wire: SocketWire) -> None:
        """Its other side has closed it. A request that uses it learns of that by itself."""
        if wire in self._free.get(key, ()):
            self._drop(key, wire)

    def _drop(self, key: _Key, wire: SocketWire) -> None:
        del self._free[key][wire]
        if not self._free[key]:
            del self._free[key]  # a key names a context, and the secret of a box pool changes
        wire.close()


@asynccontextmanager
async def open_pool() -> AsyncGenerator[Pool]:
    """Open the pool with the program's poller. Leaving the block closes the waiting connections."""
    async with open_poller() as poller:
        pool = Pool(poller)
        try:
            yield pool
        finally:
            pool.close()
