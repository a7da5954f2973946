"""Ports that model processes listen on."""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Mapping
from pathlib import PurePath

from appliance.core.config.types import ModelConfig
from appliance.platform.ports import LOOPBACK
from appliance.upstream.client import Address

LAUNCHERS = frozenset(
    (
        "docker",
        "podman",
        "nerdctl",
        "ctr",
        "crictl",
        "lxc",
        "incus",
        "kubectl",
        "ssh",
        "wsl",
        "systemctl",
        "systemd-run",
    )
)
"""Commands after which a process listens that is not their child."""
HERE = ("localhost", LOOPBACK, "::1")


def will_listen(config: ModelConfig, address: Address) -> bool:
    """Whether the command itself is told to listen where its requests will go.

    A command may also stand for a server that runs already, or elsewhere; then its port is nobody's business. A port
    within a URL is one that is called, not one that is listened on.
    """
    if address.host.lower() not in HERE:
        return False
    number = re.compile(rf"(?<!\d){address.port}(?!\d)")
    return any(number.search(word) and "://" not in word for word in (*config.argv, *config.env))


def listens_itself(config: ModelConfig, address: Address) -> bool:
    """Whether the port must be held by the command's own process or a descendant.

    Not where the command is a tool that has somebody else listen: the daemon of containers, another machine.
    """
    if config.compat.foreign_port or not will_listen(config, address):
        return False
    words = (PurePath(word).stem.lower() for part in config.argv for word in part.split())
    return LAUNCHERS.isdisjoint(words)


def is_taken(address: Address) -> bool:
    """Whether somebody listens there, so that nobody else can. ``localhost`` is where servers listen by default."""
    host = address.host if address.host == "::1" else LOOPBACK
    try:
        sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError:
        return False  # no IPv6 here: the server will say so itself
    with sock:
        if sys.platform != "win32":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, address.port))
        except PermissionError:
            return False  # a port for which the command may have rights that this program lacks
        except OSError:
            return True
    return False


def neighbour_at(address: Address, others: Mapping[str, Address]) -> str | None:
    """Which other model has its server there."""
    return next((m for m, other in others.items() if (other.host, other.port) == (address.host, address.port)), None)
