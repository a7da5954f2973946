"""Where an answer goes: the pipeline writes into a `Sink` and does not know what carries it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import h11

if TYPE_CHECKING:
    from hypercorn.typing import ASGISendEvent

Headers = Sequence[tuple[bytes, bytes]]
EVENTS = b"text/event-stream"


class Sink(Protocol):
    """One answer. ``status`` is None until it has started; a write returns when the client's side has taken it."""

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

    async def start(self, status: int, headers: Headers) -> None: ...

    async def write(self, data: bytes) -> None: ...

    async def end(self) -> None: ...

    def abort(self) -> None:
        """Break the connection, so that nobody takes a torn answer for a whole one."""
        ...


class Passing:
    """A sink that passes an answer on to ``inner``; who looks at it on the way overrides what it looks at."""

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

    async def start(self, status: int, headers: Headers) -> None:
        await self.inner.start(status, headers)

    async def write(self, data: bytes) -> None:
        await self.inner.write(data)

    async def end(self) -> None:
        await self.inner.end()

    def abort(self) -> None:
        self.inner.abort()


class AsgiSink:
    """A sink on an ASGI ``send``. ``own_headers`` go out with every answer.

    Records of an event stream go past ASGI where ``write_wire`` is given: to the connection, framed here. Only a
    chunked body has frames that the protocol layer need not know of (RFC 9112, section 7.1), and an event stream
    without a length, to an HTTP/1.1 request that is not HEAD, always has one. It saves a quarter of a chunk's cost.
    """

    def __init__(
        self,
        send: Callable[[ASGISendEvent], Awaitable[None]],
        abort: Callable[[], None],
        own_headers: Headers,
        write_wire: Callable[[bytes], Awaitable[None]] | None = None,
    ) -> None:
        self.status: int | None = None
        self.event_stream = False
        self.ended = False
        self.sent = 0
        self._send = send
        self._abort = abort
        self._own_headers = own_headers
        self._write_wire = write_wire
        self._chunked = False

    async def start(self, status: int, headers: Headers) -> None:
        self.status = status
        self.event_stream = any(name.lower() == b"content-type" and value.startswith(EVENTS) for name, value in headers)
        self._chunked = self.event_stream and status == 200 and not _has_length(headers)
        await self._pass(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [*headers, *self._own_headers],
            }
        )

    async def write(self, data: bytes) -> None:
        self.sent += len(data)
        if self._chunked and self._write_wire is not None:
            await self._write_wire(b"%x\r\n%b\r\n" % (len(data), data))
            return
        await self._pass({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self) -> None:
        self.ended = True
        await self._pass({"type": "http.response.body", "body": b"", "more_body": False})

    def abort(self) -> None:
        self.ended = True
        self._abort()

    async def pass_on(self, event: ASGISendEvent) -> None:
        """``send`` for an application that speaks ASGI itself."""
        match event["type"]:
            case "http.response.start":
                await self.start(event["status"], list(event["headers"]))
            case "http.response.body":
                if event["body"]:
                    await self.write(event["body"])
                if not event["more_body"]:
                    await self.end()
            case _:
                raise ValueError(f"unexpected ASGI event {event['type']}")

    async def _pass(self, event: ASGISendEvent) -> None:
        try:
            await self._send(event)
        except h11.LocalProtocolError:
            self.abort()  # the client broke the protocol meanwhile, or the body is not as long as its header says


async def send_whole(sink: Sink, status: int, headers: Headers, content: bytes = b"") -> None:
    """An answer that is there already; its length goes behind ``headers``."""
    await sink.start(status, (*headers, (b"Content-Length", str(len(content)).encode())))
    if content:
        await sink.write(content)
    await sink.end()


def _has_length(headers: Headers) -> bool:
    return any(name.lower() == b"content-length" for name, _ in headers)
