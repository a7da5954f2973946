"""A conversation with one MCP server, over any transport."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from msgspec import Raw

from appliance.core.mcp.messages import Answer


class SessionLost(Exception):
    """The server cannot be asked, or not any more. ``unsent``: it never got the whole request."""

    def __init__(self, why: str, *, unsent: bool = False) -> None:
        super().__init__(why)
        self.why = why
        self.unsent = unsent


class Session(Protocol):
    """Handles one request at a time. Runs in a task of `open_mcp`, which ends it."""

    version: str
    """The protocol revision to request."""
    last: int
    """The id of the last request."""

    @property
    def alive(self) -> bool: ...

    @property
    def dropped(self) -> int:
        """Number of messages that were too long."""
        ...

    async def ask(self, method: str, params: object = None) -> Answer:
        """Wait for the answer, however long. Raises SessionLost."""
        ...

    async def tell(self, method: str, params: object = None) -> None:
        """Raises SessionLost."""
        ...

    def begun(self, result: Raw) -> None:
        """Take the server's answer to ``initialize``."""
        ...

    def end(self, *, busy: bool = False) -> None:
        """Leave the server; returns at once. ``busy``: it works on something that nobody wants any more."""
        ...

    async def wait_gone(self) -> None:
        """Wait until nothing is left of it."""
        ...


Start = Callable[[], Awaitable[Session]]
"""Begins a session in a task of its own. Raises SessionLost."""
