"""The target of an answer: the way of a request writes into a `Sink` and does not know what carries it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

Headers = Sequence[tuple[bytes, bytes]]
EVENTS = b"text/event-stream"


class Sink(Protocol):
    """One answer. ``status`` is None until it has started."""

    @property
    def status(self) -> int | None: ...

    @property
    def event_stream(self) -> bool:
        """It has started as server-sent events; every write ends at the end of a record."""
        ...

    @property
    def ended(self) -> bool: ...

    @property
    def sent(self) -> int:
        """Bytes of body."""
        ...

    def start(self, status: int, headers: Headers) -> None: ...

    def push(self, data: bytes) -> bool:
        """Hand these bytes on now. False: they are taken, but `flush` has to be awaited before the next."""
        ...

    async def flush(self) -> None:
        """Return when the client's side has taken all that was pushed."""
        ...

    async def write(self, data: bytes) -> None:
        """`push`, and `flush` where it is needed."""
        ...

    async def end(self) -> None: ...

    def abort(self) -> None:
        """Break the connection, so that nobody takes a torn answer for a whole one."""
        ...


class Passing:
    """A sink that passes an answer on to ``inner``. A subclass overrides what it looks at on the way."""

    def __init__(self, inner: Sink) -> None:
        self.inner = inner

    @property
    def status(self) -> int | None:
        return self.inner.status

    @property
    def event_stream(self) -> bool:
        return self.inner.event_stream

    @property
    def ended(self) -> bool:
        return self.inner.ended

    @property
    def sent(self) -> int:
        return self.inner.sent

    def start(self, status: int, headers: Headers) -> None:
        self.inner.start(status, headers)

    def push(self, data: bytes) -> bool:
        return self.inner.push(data)

    async def flush(self) -> None:
        await self.inner.flush()

    async def write(self, data: bytes) -> None:
        if not self.push(data):
            await self.inner.flush()

    async def end(self) -> None:
        await self.inner.end()

    def abort(self) -> None:
        self.inner.abort()


async def send_whole(sink: Sink, status: int, headers: Headers, content: bytes = b"") -> None:
    """An answer that is there already; its length goes behind ``headers``."""
    sink.start(status, (*headers, (b"Content-Length", b"%d" % len(content))))
    if content:
        await sink.write(content)
    await sink.end()


def is_event_stream(headers: Headers) -> bool:
    return any(name.lower() == b"content-type" and value.startswith(EVENTS) for name, value in headers)
