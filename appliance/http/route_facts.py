"""The facts about the program's own routes: those that their frame needs, and those for documents and OpenAPI."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

MAX_CONTROL_BODY = 1 << 20
"""Bytes of a request to the program's own routes, but for a few that say otherwise."""
MAX_LARGE_BODY = 16 << 20
"""Bytes: a conversation with a few pictures in it."""
AS_MODELS = 0
"""In place of a number of bytes: the body of a request to a model, as large as ``--max-body`` lets it be."""


class AdminDoor(Struct, frozen=True):
    """A route that changes the program: open with ``serve --admin`` alone, and with ``trusted`` to the program's own
    socket. ``what`` and ``verb`` are those of `AdminOff`.
    """

    what: str
    verb: str
    trusted: bool = False


class RouteFacts(Struct, frozen=True, kw_only=True):
    """The facts about a route that the frame needs before Quart has the request, and those for `openapi_document`."""

    most: int = MAX_CONTROL_BODY
    """Bytes of a request's body, `MAX_LARGE_BODY` at most on Quart."""
    admin: AdminDoor | None = None
    """None: open to everybody with a key."""
    follows: bool = False
    """Its answer has no end: its writer has to notice that the client leaves."""
    takes: type | None = None
    """The shape of its body, as JSON."""
    gives: type | None = None
    """The shape of its answer, as JSON."""
    gives_late: Callable[[], type] | None = None
    """Returns that shape instead, where it is made of much that few need."""


PLAIN = RouteFacts()


class DescribedRoute(Struct, frozen=True):
    """A route that is answered without Quart. ``path`` has ``<name>`` where something of the client's goes."""

    method: str
    path: str
    facts: RouteFacts = PLAIN
    says: str = ""
    """Its answer, in a sentence."""
