"""A task that runs carry out for another part of the program, which waits for its end: the MCP server asks so."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from msgspec import Raw, Struct

Tell = Callable[[str], Awaitable[None]]
"""Tells a client, in words, what has happened since the last time."""


class TaskEnd(Struct, frozen=True, kw_only=True):
    """The end of a task. ``failure`` is None where it was completed, and ``result`` has all of it, as JSON."""

    output: str
    failure: str | None
    result: Raw


RunTask = Callable[[bytes, Tell | None], Awaitable[TaskEnd]]
"""Runs a task, given as the body of ``POST /api/runs``, to its end; cancelling cancels it. Raises ApplianceError."""
