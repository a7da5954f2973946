"""A port for a child to listen on."""

from __future__ import annotations

import socket

LOOPBACK = "127.0.0.1"


def free_port() -> int:
    """Return a loopback port that was free a moment ago; a child that loses the race for it exits, and is started
    again.
    """
    with socket.socket() as sock:
        sock.bind((LOOPBACK, 0))
        port: int = sock.getsockname()[1]
        return port
