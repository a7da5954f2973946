"""The tasks of one connection's requests, and the ASGI events on their way to them.

hypercorn's own task group stops reading from a client for ever when an application answers without taking a large
body, since nobody empties its queue then.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING

import trio
from hypercorn.config import Config

from appliance.http.bytes.body import ClientLeft

if TYPE_CHECKING:
    from hypercorn.typing import AppWrapper, ASGIReceiveEvent, ASGISendEvent, Scope

UNREAD = 1 << 18
"""Bytes of a body taken from the socket before the application wants them."""

log = logging.getLogger(__name__)
Send = Callable[["ASGISendEvent | None"], Awaitable[None]]


class RequestTasks:
    """One task for each request of a connection (one at a time, with HTTP/1.1); what hypercorn calls a task group."""

    def __init__(self) -> None:
        self._opened = trio.open_nursery()
        self._nursery: trio.Nursery

    async def __aenter__(self) -> RequestTasks:
        self._nursery = await self._opened.__aenter__()
        return self

    async def __aexit__(self, exc_type: type[BaseException], exc_value: BaseException, tb: TracebackType) -> None:
        await self._opened.__aexit__(exc_type, exc_value, tb)

    async def spawn_app(
        self, app: AppWrapper, config: Config, scope: Scope, send: Send
    ) -> Callable[[ASGIReceiveEvent], Awaitable[None]]:
        scope["state"]["client"] = inbox = Inbox()
        self._nursery.start_soon(_run_app, app, scope, inbox, send)
        return inbox.put

    def spawn(self, func: Callable[..., Awaitable[object]], *args: object) -> None:
        self._nursery.start_soon(func, *args)


async def _run_app(app: AppWrapper, scope: Scope, inbox: Inbox, send: Send) -> None:
    """The application answers its own bugs; what still comes out of it costs this one connection only."""
    try:
        await app(scope, inbox.receive, send, trio.to_thread.run_sync, trio.from_thread.run)
    except Exception:
        log.exception("a request ended in an error that nobody caught; this is a bug")
    except BaseExceptionGroup as group:
        cancelled, bugs = group.split(trio.Cancelled)
        if bugs is not None:
            log.error("a cancelled request ended in an error; this is a bug", exc_info=bugs)
        if cancelled is not None:
            raise cancelled from None
    finally:
        inbox.close()
    await send(None)


class Inbox:
    """ASGI events on their way to the application, which finds it as ``client`` in the scope's state.

    A client that has left is told at once, and to every caller.
    """

    def __init__(self) -> None:
        self._events: deque[ASGIReceiveEvent] = deque()
        self._unread = 0
        self._left: ASGIReceiveEvent | None = None
        self._closed = False
        self._waited_for: trio.CancelScope | None = None
        self._news = trio.lowlevel.ParkingLot()
        self._room = trio.lowlevel.ParkingLot()

    async def put(self, event: ASGIReceiveEvent) -> None:
        if event["type"] in ("http.disconnect", "websocket.disconnect"):
            self._left = event
            if self._waited_for is not None:
                self._waited_for.cancel()
        elif not self._closed:
            self._events.append(event)
            self._unread += _size(event)
        self._news.unpark_all()
        while self._unread > UNREAD and not self._closed and self._left is None:
            await self._room.park()

    async def receive(self) -> ASGIReceiveEvent:
        while not self._events:
            if self._left is not None:
                await trio.lowlevel.checkpoint()
                return self._left
            await self._news.park()
        event = self._events.popleft()
        self._unread -= _size(event)
        self._room.unpark_all()
        return event

    @contextmanager
    def staying(self) -> Generator[None]:
        """Cancel the block as soon as the client has left, which may be now, and raise ClientLeft. Not to be nested.

        It saves every request a task that does nothing but wait for its client.
        """
        with trio.CancelScope() as scope:
            self._waited_for = scope
            if self._left is not None:
                scope.cancel()
            try:
                yield
            finally:
                self._waited_for = None
        if scope.cancelled_caught:
            raise ClientLeft

    def close(self) -> None:
        """The application has returned; a body that it did not read is let go."""
        self._closed = True
        self._room.unpark_all()


def _size(event: ASGIReceiveEvent) -> int:
    return len(event["body"]) if event["type"] == "http.request" else 0
