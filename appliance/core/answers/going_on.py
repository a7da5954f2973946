"""A broken stream that goes on elsewhere, as the way of a request asks for it. A feature knows how.

llama-server's formats are that feature's business; here is only when it is asked, and what is passed on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from appliance.core.answers.families import Family


class Refusal(Struct, frozen=True):
    """It cannot be continued faithfully. ``why`` ends the sentence "it was not continued: ..."."""

    why: str


class Seam(Struct, frozen=True, kw_only=True):
    """The place where the halves meet: the seats of both, the reason for two, and the time of the first half."""

    origin: str
    on: str
    why: str
    milliseconds: float = 0.0


class SecondHalf(Protocol):
    """Turns the second stream into the continuation of the first. No input makes it raise; ``broken`` says that it is
    not a stream.
    """

    broken: bool

    def begin(self) -> bytes:
        """The mark, as a comment and as a record."""
        ...

    def feed(self, piece: bytes, /) -> bytes:
        """Return the client's bytes for these."""
        ...


class BrokenAnswer(Protocol):
    """The beginning of an answer."""

    @property
    def begun(self) -> bool:
        """True after the first record."""
        ...

    @property
    def finished(self) -> bool:
        """True if only ``closing`` is missing."""
        ...

    @property
    def closing(self) -> bytes: ...

    def continued(self, body: bytes, /) -> bytes | Refusal:
        """Return the request that asks another engine to go on, for the request with this body."""
        ...

    def splicer(self, seam: Seam, /) -> SecondHalf:
        """Return what makes a second stream the rest of this one."""
        ...


class StreamSoFar(Protocol):
    """Reads a stream piece by piece; no input makes it raise."""

    def feed(self, piece: bytes, /) -> None: ...

    def partial(self) -> BrokenAnswer | Refusal:
        """Return the content read so far."""
        ...


Continues = Callable[[Family], StreamSoFar]
"""Makes the reader of a stream that may have to be continued."""
