"""The shape in which routes on Quart sign in: a blueprint that also says what the frame has to know of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quart import Blueprint

from appliance.http.route_facts import MAX_LARGE_BODY, PLAIN, RouteFacts

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
