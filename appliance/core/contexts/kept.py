"""Contexts that are kept in files: the manifest of each, what has to match, how many there may be, and their worth.

A context is the state of one slot of llama-server, written by the engine itself. Beside each file lies its manifest.
The engine compares the file's tokens with a new prompt's, so a context is never wrong for a prompt. It is wrong for
another model, build or kind of cache, which the engine cannot see. So all of that is in the key.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import PurePath
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from appliance.core.contexts.blocks import Prefix
from appliance.core.lenient_json import decoded
from appliance.core.llama import flags
from appliance.core.llama.flags import Option
from appliance.core.models.names import shard_of, stem_of
from appliance.core.sizes import GIB, MIB

VERSION = 1
"""Version of the manifest. A program reads no other one."""
PIECE = 32 * MIB
"""Bytes with a checksum of their own, so that several processors can check one file."""
MAX_AGE = 7 * 24 * 3600.0
"""Seconds without use after which a context goes."""
AT_MOST_MEMORY, AT_MOST_DISK = 8 * GIB, 16 * GIB
WRITTEN_HOURLY = 64 * GIB
"""A limit to the wear of a solid-state disk."""
_WITHOUT_EFFECT = (
    "--port", "--host", "--alias", "--api-key", "--api-key-file", "--threads", "--threads-batch", "--threads-http",
    "--batch-size", "--ubatch-size", "--cache-ram", "--cache-idle-slots", "--slot-save-path", "--metrics", "--slots",
    "--props", "--timeout", "--verbose", "--verbosity", "--log-file", "--log-disable", "--log-colors", "--log-prefix",
    "--log-timestamps", "--log-jsonl", "--offline",
)  # fmt: skip
"""Options that change nothing in a context."""
_FILES = tuple(map(flags.canonical, ("--model", "--mmproj")))
_VECTORS, _SCALED_VECTORS = "--control-vector", "--control-vector-scaled"
"""Nothing is kept of a model with a draft or an adapter: see `options.context_flags`."""

Whole = Annotated[int, Meta(ge=0)]
Moment = Annotated[float, Meta(ge=0, lt=1e11)]
"""Unix seconds, of a year that a date can have."""


class KeptContext(Struct, frozen=True, kw_only=True):
    """One context. ``chain`` are the digests of its prompt's blocks, and ``ends`` says where each one ends."""

    name: Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]
    """The stem of its files."""
    key: str
    """The `key_of` the process that has written it; only one with the same key may have it back."""
    model: str
    conversation: str = ""
    chain: tuple[bytes, ...]
    ends: tuple[Whole, ...]
    """Bytes of the prompt up to the end of each block."""
    prompt: Whole
    """Tokens of the prompt that ``chain`` describes."""
    tokens: Whole
    """All of them, with the answer's."""
    size: Whole
    """Bytes of its file."""
    token_seconds: Annotated[float, Meta(ge=0)]
    """Seconds that the reading of one token took."""
    pieces: tuple[Whole, ...] = ()
    """The checksum of each `PIECE` of the file."""
    made: Moment = 0.0
    used: Moment = 0.0
    saved_tokens: Whole = 0
    """Tokens that did not have to be read again, of all times it was given back."""

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


class FileIdentity(Struct, frozen=True):
    """A file of a model, and the signs of another one in its place."""

    path: str
    size: int
    mtime_ns: int
    inode: int


class Limits(Struct, frozen=True, kw_only=True):
    """How much is kept. Sizes in bytes."""

    at_most: int
    """The size of all contexts together."""
    stays_free: int
    """The part of their file system that they leave to others."""
    hourly: float
    """To be written within an hour; `math.inf`: no limit."""


class Room(Struct, frozen=True, kw_only=True):
    """The state of the file system. Sizes in bytes."""

    free: int
    written: int
    """Within the last hour."""
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


def files_named(options: Iterable[Option]) -> tuple[str, ...]:
    """Return the paths of every file that makes the model what it is: all parts, projector and control vectors.

    Empty: the engine fetches the model, so that nothing is known of its file.
    """
    return tuple(part for path in _paths(options) for part in _shards(path))


def key_of(files: Sequence[FileIdentity], options: Sequence[Option], engine: str) -> str:
    """Return the digest of everything on which the contexts of a process depend.

    ``options`` are all of the process, those of its environment included, and ``files`` those that they name.
    ``engine`` is the digest of the build.
    """
    _, said = flags.partition(options, _WITHOUT_EFFECT)
    facts = (engine, files, [(option.canonical, option.on, option.values) for option in said])
    return hashlib.sha256(msgspec.json.encode(facts)).hexdigest()


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


def _paths(options: Iterable[Option]) -> Iterator[str]:
    for option in options:
        if option.canonical in _FILES:
            yield option.values[0]
        elif option.canonical == _VECTORS:
            yield from option.values[0].split(",")
        elif option.canonical == _SCALED_VECTORS:
            yield from (each.rpartition(":")[0] or each for each in option.values[0].split(","))


def _shards(path: str) -> Iterator[str]:
    shard = shard_of(stem_of(PurePath(path).name) or "")
    if shard is None:
        yield path
    else:
        yield from (str(PurePath(path).with_name(shard.name(number))) for number in range(1, shard.total + 1))
