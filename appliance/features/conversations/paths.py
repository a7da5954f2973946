"""The routes that take or give a file."""

from __future__ import annotations

from appliance.traffic.request import CONVERSATIONS, Request

FILES = frozenset(
    (("GET", "export"), ("HEAD", "export"), *(("POST", name) for name in ("import", "pack", "pdf", "text", "unpack")))
)
"""By method and the name below ``/api/conversations``."""


def file_route(request: Request) -> tuple[str, str]:
    """Return the place of a request in `FILES`, if it is one of those."""
    place, _, name = request.path.rpartition("/")
    return request.method, name if place == CONVERSATIONS else ""
