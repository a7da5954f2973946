"""The shape in which routes on Quart sign in: a blueprint that also says what the frame has to know of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct
from quart import Blueprint

from appliance.http.control.edge_routes import MAX_CONTROL_BODY

MAX_LARGE_BODY = 16 << 20
"""Bytes: a conversation with a few pictures in it."""


class RouteFacts(Struct, frozen=True, kw_only=True):
    """The facts about a route that the frame needs before Quart has the request, and those for `openapi_document`."""

    most: int = MAX_CONTROL_BODY
    """Bytes of a request's body, `MAX_LARGE_BODY` at most."""
    follows: bool = False
    """Its answer has no end: its writer has to notice that the client leaves."""
    takes: type | None = None
    """The shape of its body, as JSON."""
    gives: type | None = None
    """The shape of its answer, as JSON."""
    gives_late: Callable[[], type] | None = None
    """Returns that shape instead, where it is made of much that few need."""


PLAIN = RouteFacts()
LARGE = RouteFacts(most=MAX_LARGE_BODY)
FOLLOWS = RouteFacts(follows=True)


def large(takes: type, gives: type | None = None) -> RouteFacts:
    """Return the facts of a route with a large body."""
    return RouteFacts(most=MAX_LARGE_BODY, takes=takes, gives=gives)


class Routes(Blueprint):
    """Routes of one feature, or of the kernel: ``@routes.get("/api/x", facts=FOLLOWS)``. ``facts`` are by endpoint.

    ``usual`` is true of each route that says nothing else.
    """

    def __init__(self, name: str, usual: RouteFacts = PLAIN) -> None:
        super().__init__(name, __name__)
        self.facts: dict[str, RouteFacts] = {}
        self._usual = usual

    def add_url_rule(
        self,
        rule: str,
        endpoint: str | None = None,
        view_func: Callable[..., Any] | None = None,
        provide_automatic_options: bool | None = None,
        *,
        facts: RouteFacts | None = None,
        **options: Any,
    ) -> None:
        """Register a route, as `Blueprint.add_url_rule` does."""
        name = endpoint or getattr(view_func, "__name__", "")
        self.facts[f"{self.name}.{name}"] = facts or self._usual
        super().add_url_rule(rule, endpoint, view_func, provide_automatic_options, **options)
