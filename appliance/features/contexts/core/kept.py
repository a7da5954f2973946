"""Contexts that are kept in files: the manifest of each, how many there may be, and their worth.

A context is the state of one slot of llama-server, written by the engine itself. Beside each file lies its manifest.
`origin` says which processes may have it back.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from appliance.core.bodies.blocks import Prefix
from appliance.core.lenient_json import decoded
from appliance.core.sizes import GIB, MIB
from appliance.features.contexts.core.origin import Origin

VERSION = 1  # version of the manifest. A program reads no other one.
PIECE = 32 * MIB  # bytes with a checksum of their own, so that several processors can check one file
MAX_AGE = 7 * 24 * 3600.0  # seconds without use after which a context goes
AT_MOST_MEMORY, AT_MOST_DISK = 8 * GIB, 16 * GIB
WRITTEN_HOURLY = 64 * GIB  # a limit to the wear of a solid-state disk

Whole = Annotated[int, Meta(ge=0)]
Moment = Annotated[float, Meta(ge=0, lt=1e11)]  # unix seconds, of a year that a date can have


class KeptContext(Origin, frozen=True, kw_only=True):
    """One context, and the process that has written it. ``chain`` are the digests of its prompt's blocks."""

    name: Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]  # the stem of its files
    model: str
    conversation: str = ""
    chain: tuple[bytes, ...]
    ends: tuple[Whole, ...]  # bytes of the prompt up to the end of each block
    prompt: Whole  # tokens of the prompt that `chain` describes
    tokens: Whole  # all of them, with the answer's
    size: Whole  # bytes of its file
    token_seconds: Annotated[float, Meta(ge=0)]  # seconds that the reading of one token took
    pieces: tuple[Whole, ...] = ()  # the checksum of each `PIECE` of the file
    made: Moment = 0.0
    used: Moment = 0.0
    saved_tokens: Whole = 0  # tokens that did not have to be read again, of all times it was given back

    @property
    def prefix(self) -> Prefix:
        """The prompt that the context was made of."""
        return Prefix(self.chain, self.ends)

    def reusable(self, prefix: Prefix) -> int:
        """Return how many of its tokens are also the prompt's, more or less."""
        own = self.prefix
        shared = own.shared(prefix)
        if own.size and shared == own.size < prefix.size:
            return self.tokens
        return self.prompt * shared // own.size if own.size else 0


class Limits(Struct, frozen=True, kw_only=True):
    """How much is kept. Sizes in bytes."""

    at_most: int  # the size of all contexts together
    stays_free: int  # the part of their file system that they leave to others
    hourly: float  # to be written within an hour; `math.inf`: no limit


class Room(Struct, frozen=True, kw_only=True):
    """The state of the file system. Sizes in bytes."""

    free: int
    written: int  # within the last hour
    now: float


class KeptRow(Struct, frozen=True, kw_only=True):
    """A `KeptContext` for people."""

    model: str
    conversation: str
    tokens: int
    size: int
    made: datetime
    used: datetime
    saved_tokens: int
    token_seconds: float


class _Manifest(Struct, frozen=True):
    version: int
    context: KeptContext


def manifest_of(context: KeptContext) -> bytes:
    return msgspec.json.encode(_Manifest(VERSION, context))


def read_manifest(data: bytes) -> KeptContext | None:
    """Return the context; None for anything but a manifest of this version whose parts agree."""
    found = decoded(_Manifest, data)
    if found is None or found.version != VERSION:
        return None
    context = found.context
    agree = len(context.chain) == len(context.ends) and list(context.ends) == sorted(context.ends)
    return context if agree and len(context.pieces) == pieces_of(context.size) else None


def pieces_of(size: int) -> int:
    return math.ceil(size / PIECE)


def limits_of(*, in_memory: bool, available: int, kept: int, total: int) -> Limits:
    """Return the limits of a folder on a file system of ``total`` bytes.

    ``in_memory``: that is the machine's memory, of which ``available`` bytes are unused and ``kept`` hold contexts.
    """
    if in_memory:
        at_most = min(AT_MOST_MEMORY, (available + kept) // 4)
        return Limits(at_most=at_most, stays_free=total // 10, hourly=math.inf)
    return Limits(at_most=AT_MOST_DISK, stays_free=total // 10, hourly=WRITTEN_HOURLY)


def victims(
    contexts: Iterable[KeptContext], incoming: int, limits: Limits, room: Room
) -> tuple[KeptContext, ...] | None:
    """Return those that make room for ``incoming`` bytes, the least recently used first; None: it cannot fit."""
    oldest = sorted(contexts, key=lambda each: (each.used, each.name))
    kept, free = sum(each.size for each in oldest), room.free
    if incoming > limits.at_most or room.written + incoming > limits.hourly:
        return None
    gone: list[KeptContext] = []
    for each in oldest:
        fits = kept + incoming <= limits.at_most and free - incoming >= limits.stays_free
        if fits and room.now - each.used <= MAX_AGE:
            break
        gone.append(each)
        kept, free = kept - each.size, free + each.size
    return tuple(gone) if free - incoming >= limits.stays_free else None


def worth(tokens: int, token_seconds: float, size: int, seconds_a_byte: float) -> bool:
    """True if reading so many tokens takes longer than moving a file of ``size`` bytes."""
    return tokens * token_seconds > size * seconds_a_byte


def best(
    contexts: Iterable[KeptContext], prefix: Prefix, held: int, least: int, seconds_a_byte: float
) -> KeptContext | None:
    """Return the context that saves most; None where none saves ``least`` tokens, or more time than it takes.

    ``held`` are the tokens of the prompt that its slot has already.
    """
    found = [(each.reusable(prefix) - held, each) for each in contexts]
    gains = [
        (gain, each.used, each)
        for gain, each in found
        if gain >= least and worth(gain, each.token_seconds, each.size, seconds_a_byte)
    ]
    return max(gains, key=lambda gain: gain[:2])[2] if gains else None


def replaced(contexts: Iterable[KeptContext], prefix: Prefix) -> list[KeptContext]:
    """Return the contexts that have nothing beyond a newer one of this prompt."""
    return [each for each in contexts if 0 < (own := each.prefix).size == own.shared(prefix)]
