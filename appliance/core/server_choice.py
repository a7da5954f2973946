"""Which server a command asks, and whose files it works on: one decision over facts that the command line collects.

A server says where it is by a socket in the data folder of its home. The folder's permissions say who may use it: its
user, root, and for the system's service the members of its group. So a command of the same home needs neither an
address nor a key. A home may be another user's: root keeps the caller's with some sudo. So a socket is believed only if
a program of this user, of root or of the service listens there, and no other user's can take the server's place.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from appliance.core.installed import NAME, STATE
from appliance.core.settings import DEFAULT_URL, URL_VARIABLE
from appliance.errors import UsageError

SOCKET_NAME = "server.sock"
"""The name of the server's socket in the data folder of its home."""
SERVICE_SOCKET = f"{STATE}/{SOCKET_NAME}"
LET_IN = f"'sudo usermod -aG {NAME} USER' lets in a user, who needs no key once logged in again"

SocketState = Literal["missing", "closed", "answers"]
"""``closed``: this user may not connect. ``missing``: nobody answers, or a program of another user."""
Side = Literal["system", "own"]
Kind = Literal["named", "own", "service", "closed", "usual"]
"""``named``: the user gave its address. ``own``: it shares its home with the command. ``usual``: whatever is at the
default address. ``closed``: the same, where it may be the service, whose socket is not open to this user.
"""


class ServerFacts(Struct, frozen=True, kw_only=True):
    """The facts when a command begins. ``side`` is ``--system`` or ``--own``, None without either."""

    option: str | None = None
    """``--url``"""
    variable: str | None = None
    """`URL_VARIABLE`"""
    side: Side | None = None
    own_socket: str = ""
    own: SocketState = "missing"
    service: SocketState = "missing"
    is_installed: bool = False
    """The service of the system is here, whether it runs or not."""
    is_root: bool = False


class ServerChoice(Struct, frozen=True, kw_only=True):
    """The server that a command asks. ``why`` is for people.

    ``enters``: root's command becomes the service's user first. From then on it shares the service's home.
    """

    kind: Kind
    url: str
    why: str
    enters: bool = False


def choose_server(facts: ServerFacts) -> ServerChoice:
    """Decide. The user's words come first, then the server that runs. Raises UsageError for a contradiction."""
    given = facts.option or facts.variable
    if given and facts.side == "system":
        option = "--url" if facts.option else URL_VARIABLE
        raise UsageError(f"--system means the service of this machine, and {option} names {given}; leave one out")
    if given:
        return ServerChoice(kind="named", url=given, why="--url" if facts.option else URL_VARIABLE)
    if facts.side == "system":
        return _service_on_request(facts)
    if facts.own == "answers":
        return ServerChoice(kind="own", url=f"unix:{facts.own_socket}", why="your own server runs")
    if facts.side is None and facts.service == "answers":
        return _service(facts, "the service of this machine runs")
    is_closed = facts.side is None and facts.service == "closed"
    return ServerChoice(
        kind="closed" if is_closed else "usual", url=DEFAULT_URL, why="the default, as no server of yours runs"
    )


def _service_on_request(facts: ServerFacts) -> ServerChoice:
    if not facts.is_installed:
        raise UsageError(f"--system: there is no service on this machine; 'sudo {NAME} service install' installs it")
    if not (facts.is_root or facts.service == "answers"):
        raise UsageError(f"--system needs root, for the service does not answer you: use sudo; {LET_IN}")
    return _service(facts, "--system")


def _service(facts: ServerFacts, why: str) -> ServerChoice:
    at_home = facts.is_root or facts.own_socket == SERVICE_SOCKET
    return ServerChoice(
        kind="own" if at_home else "service", url=f"unix:{SERVICE_SOCKET}", why=why, enters=facts.is_root
    )
