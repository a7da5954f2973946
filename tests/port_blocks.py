"""Runs of ports for ``startPort``: below those that a system gives to clients, so that no connection takes one."""

from __future__ import annotations

import random
import socket

LOWEST, HIGHEST = 12_000, 32_000


def port_block(size: int) -> int:
    """The first of so many loopback ports that nothing uses at this moment."""
    choice = random.SystemRandom()
    while True:
        first = choice.randrange(LOWEST, HIGHEST - size)
        if all(_is_free(port) for port in range(first, first + size)):
            return first


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
