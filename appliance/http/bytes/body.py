"""Reading request bodies within bounds, before anything is allocated for them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import trio

from appliance.core.settings import HttpSettings
from appliance.errors import BadRequest, BodyTooLarge, BodyTooSlow, Busy
from appliance.traffic.request import Request

if TYPE_CHECKING:
    from hypercorn.typing import ASGIReceiveEvent

Receive = Callable[[], Awaitable["ASGIReceiveEvent"]]


class ClientLeft(Exception):
    """The client is gone; there is nobody to answer."""


class Bodies:
    """All bodies held at once, counted against one budget."""

    def __init__(self, settings: HttpSettings) -> None:
        self._settings = settings
        self._held = 0

    @property
    def held(self) -> int:
        """Bytes reserved now."""
        return self._held

    @contextmanager
    def reading(self) -> Generator[BodyReader]:
        """A reader whose body counts against the budget until the block is left."""
        reader = BodyReader(self, self._settings)
        try:
            yield reader
        finally:
            self._held -= reader.reserved

    def release(self, size: int) -> None:
        """For who has taken a body over; see `BodyReader.hand_over`."""
        self._held -= size

    def reserve(self, size: int) -> None:
        """Raises Busy when so many more bytes do not fit."""
        if self._held + size > self._settings.max_bodies:
            raise Busy(f"the server holds {self._held} bytes of request bodies and has no room for {size} more")
        self._held += size


class BodyReader:
    """Reads one body. ``complete`` tells whether the client has nothing more to send."""

    def __init__(self, bodies: Bodies, settings: HttpSettings) -> None:
        self.reserved = 0
        self.complete = False
        self._bodies = bodies
        self._limit = settings.max_body
        self._stall = settings.body_stall

    async def read(self, request: Request, receive: Receive) -> bytes:
        """Raises BodyTooLarge (at once, where the length is declared), BodyTooSlow, Busy and ClientLeft."""
        declared = _declared_length(request)
        self._grow_to(declared)
        chunks: list[bytes] = []
        size = 0
        more = True
        with trio.move_on_after(self._stall) as stall:
            while more:
                event = await receive()
                if event["type"] != "http.request":
                    raise ClientLeft
                chunks.append(event["body"])
                size += len(event["body"])
                self._grow_to(size)
                more = event["more_body"] and not size == declared > 0
                if more:
                    stall.deadline = trio.current_time() + self._stall
        if stall.cancelled_caught:
            raise BodyTooSlow(self._stall)
        self.complete = True
        return b"".join(chunks)

    def hand_over(self) -> int:
        """The body is held for longer than its request: whoever holds it gives so many bytes back to the budget."""
        reserved, self.reserved = self.reserved, 0
        return reserved

    def _grow_to(self, size: int) -> None:
        if size > self._limit:
            raise BodyTooLarge(self._limit)
        if size > self.reserved:
            self._bodies.reserve(size - self.reserved)
            self.reserved = size


def _declared_length(request: Request) -> int:
    """Content-Length, which the protocol layer has checked to be one number; 0 for a chunked body."""
    try:
        return int(request.header(b"content-length") or 0)
    except ValueError:
        raise BadRequest("the Content-Length header is not a number") from None
