"""The program as its own client: agents, plugins and tools ask models through it. `http.way.handover` implements it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol


class InwardReply(Protocol):
    """An answer whose head has arrived."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Sequence[tuple[bytes, bytes]]: ...

    @property
    def event_stream(self) -> bool: ...

    async def receive(self) -> bytes:
        """Return the next bytes, b"" after the last. Raises UpstreamFailed when the answer was cut short."""
        ...

    async def read(self, limit: int) -> bytes:
        """Return the whole body. Raises UpstreamFailed when it is longer than ``limit`` bytes."""
        ...


class ProgressWatch:
    """Gets reports about the progress of a request, and ignores them."""

    def granted(self, model: str | None) -> None:
        """A server is chosen and the request leaves now; loading and queueing are over.

        ``model`` is the id of the model whose process is held, None if a peer is asked.
        """

    def connected(self) -> None:
        """The server has accepted the connection."""

    def received(self) -> None:
        """Bytes of its answer have come, though perhaps not enough of them to pass on yet."""


UNWATCHED = ProgressWatch()


class Asker(Protocol):
    """POST to one of the program's own model routes, through the same pipeline as a client's request.

    Names, selectors, peers, edits, queueing, leases and the activity log apply. Raises what the pipeline raises, as
    exceptions: ModelNotFound, QueueFull, UpstreamFailed and the like. Leaving the block cancels the request. ``origin``
    is what the list of requests in flight shows as its client.
    """

    def ask(
        self, path: str, body: bytes, *, origin: str = "program", watch: ProgressWatch | None = None
    ) -> AbstractAsyncContextManager[InwardReply]: ...
