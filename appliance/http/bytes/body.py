"""Request bodies, read within bounds, before anything is allocated for them."""

from __future__ import annotations

from typing import Protocol

from appliance.core.settings import HttpSettings
from appliance.errors import BodyTooLarge, Busy


class ClientLeft(Exception):
    """The client is gone; there is nobody to answer."""


class Bodies:
    """All bodies held at once, counted against one budget."""

    def __init__(self, settings: HttpSettings) -> None:
        self.limit = settings.max_body
        """Bytes of one body."""
        self._most = settings.max_bodies
        self._held = 0

    @property
    def held(self) -> int:
        """Bytes reserved now."""
        return self._held

    def release(self, size: int) -> None:
        """Give back what was reserved."""
        self._held -= size

    def reserve(self, size: int) -> None:
        """Raises Busy when so many more bytes do not fit."""
        if self._held + size > self._most:
            raise Busy(f"the server holds {self._held} bytes of request bodies and has no room for {size} more")
        self._held += size


class BodySource(Protocol):
    """The source of a body: a connection, which knows how the body is framed."""

    async def read_body(self, body: Body) -> bytes:
        """All of it; calls `Body.grow_to` as the bytes come: a declared length alone reserves no room.

        Raises BodyTooSlow, RequestError and ClientLeft.
        """
        ...


class Body:
    """One request's body. ``length`` is what its head says, None for a chunked one.

    The bytes that it holds count against the budget of ``bodies`` until `release`.
    """

    def __init__(self, bodies: Bodies, length: int | None, source: BodySource) -> None:
        self.complete = length == 0
        """The client has nothing more to send."""
        self.length = length
        self._bodies = bodies
        self._source = source
        self.limit = bodies.limit
        """Most bytes that it may have."""
        self._reserved = 0

    async def read(self, limit: int | None = None) -> bytes:
        """The whole body. Raises BodyTooLarge, at once where the length is declared, BodyTooSlow, Busy and ClientLeft.

        ``limit`` is a smaller one than the server's, in bytes.
        """
        if self.complete:
            return b""
        self.limit = min(self.limit, limit) if limit is not None else self.limit
        self._check(self.length or 0)
        content = await self._source.read_body(self)
        self.complete = True
        return content

    def grow_to(self, size: int) -> None:
        """Reserve room for so many bytes in all, once they are there. Raises BodyTooLarge and Busy."""
        # Room is reserved for bytes that are there, and never for a declared length: a thousand heads that promise a
        # gigabyte each would otherwise lock everyone out without sending a byte.
        self._check(size)
        if size > self._reserved:
            self._bodies.reserve(size - self._reserved)
            self._reserved = size

    def arrived(self) -> None:
        """All of it is here, with its head. Raises as `grow_to`."""
        size = self.length or 0
        self._check(size)
        self._bodies.reserve(size)
        self._reserved, self.complete = size, True

    def _check(self, size: int) -> None:
        if size > self.limit:
            raise BodyTooLarge(self.limit, fixed=self.limit < self._bodies.limit)

    def hand_over(self) -> int:
        """The body outlives its request: its new holder gives so many bytes back to the budget."""
        reserved, self._reserved = self._reserved, 0
        return reserved

    def release(self) -> None:
        """Release the reservation."""
        if self._reserved:
            self._bodies.release(self.hand_over())
