"""Damaged inputs, made from good ones: the one mutator of all fuzzers, and what one input may cost."""

from __future__ import annotations

import random
import time
import tracemalloc
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from memory import peak
from msgspec import Struct

CORPUS = Path(__file__).with_name("corpus")
LONGEST = 0.05
"""Seconds of a processor for one input of some kilobytes, whatever else the machine does meanwhile."""
MOST = 16 << 20
"""Bytes of memory beyond the input, at most."""
BATCH = 500
"""Inputs between two looks at the memory."""
BYTES = [b"%c" % byte for byte in b" \t\x00\x01\x0b\x7f\x80\x85\xff:,;015a+-_#/*@\"'\\{}[]\r\n"]


class Parser(Struct, frozen=True, kw_only=True):
    """One reader of inputs that strangers can send."""

    seeds: Sequence[bytes]
    """Good inputs."""
    joined: bool = False
    """Two of them, one behind the other, are one, too."""
    words: Sequence[bytes] = ()
    """Pieces with a meaning, put in where they do not belong."""
    read: Callable[[bytes], bool]
    """Read one input, and say whether it was accepted. Any exception is a mistake of ours."""
    agrees: Callable[[bytes], None] = lambda _: None
    """Compare with another reader, or with the same one on the input in pieces. Its time and memory do not count."""
    least: float = 0.05
    """The share of inputs that is accepted at least; otherwise most of them would try one refusal only."""
    pace: float = 0.0
    """Seconds of a processor for each byte, where that is more than `LONGEST`."""
    share: float = 1.0
    """The part of the number of inputs that this one gets: one that works on files takes longer."""


def damaged(parser: Parser, chance: random.Random) -> bytes:
    """A good input with one to four mistakes."""
    data = bytearray(b"".join(chance.choices(parser.seeds, k=chance.choice((1, 1, 2)) if parser.joined else 1)))
    for _ in range(chance.choice((1, 1, 2, 3, 4))):
        at = chance.randrange(len(data) + 1)
        upto = min(len(data), at + chance.choice((0, 1, 1, 2, 8, 40)))
        match chance.randrange(9):
            case 0:
                data[at : at + 1] = chance.randbytes(1)
            case 1:
                del data[at:upto]
            case 2:  # twice, or many times
                data[at:at] = data[at:upto] * chance.choice((1, 1, 1, 1, 60))
            case 3:  # moved
                piece = data[at:upto]
                del data[at:upto]
                to = chance.randrange(len(data) + 1)
                data[to:to] = piece
            case 4:
                data[at:upto] = data[at:upto].swapcase()
            case 5:  # to a place where something begins
                at = data.find(b"\n", at) + 1
                data[at:at] = chance.choice(parser.words or BYTES)
            case 6:
                del data[at:]
                data += chance.choice(parser.seeds)[chance.randrange(60) :]
            case 7 if data:
                data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            case _:
                data[at:upto] = chance.choice(chance.choice((BYTES, parser.words or BYTES)))
    return bytes(data)


def fuzz(parser: Parser, inputs: Iterable[bytes], keep: Path) -> int:
    """Have all inputs read. The number of accepted ones; a mistake raises AssertionError and leaves its input behind.

    ``keep`` is where it is left: put into the corpus, it is tried from then on.
    """
    accepted, batch = 0, list[bytes]()
    before = peak(anew=True)
    for data in inputs:
        try:
            accepted += examine(parser, data)
        except BaseException as error:
            keep.write_bytes(data)
            raise AssertionError(f"{error!r} ({len(data)} bytes in {keep}): {data[:500]!r}") from error
        batch.append(data)
        if len(batch) == BATCH:
            if peak() - before > MOST:
                _find_large(parser, batch, keep)
            before = peak(anew=True)
            batch.clear()
    return accepted


def examine(parser: Parser, data: bytes) -> bool:
    """Read one input within its time. A second and a third try are for a collection of garbage, and cold caches."""
    longest = max(LONGEST, parser.pace * len(data))
    took, accepted = longest, False
    for _ in range(3):
        began = time.thread_time()
        accepted = parser.read(data)
        took = time.thread_time() - began
        if took < longest:
            break
    assert took < longest, f"it took {1000 * took:.0f} ms"
    parser.agrees(data)
    return accepted


def _find_large(parser: Parser, batch: Sequence[bytes], keep: Path) -> None:
    """The process has grown within this batch: which input did it?"""
    tracemalloc.start()
    try:
        for data in batch:
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            parser.read(data)
            took = tracemalloc.get_traced_memory()[1] - before
            if took > MOST + len(data):
                keep.write_bytes(data)
                raise AssertionError(f"it took {took >> 20} MiB ({keep}): {data[:500]!r}")
    finally:
        tracemalloc.stop()


def corpus(name: str) -> list[bytes]:
    """What once failed in this parser."""
    return [path.read_bytes() for path in sorted((CORPUS / name).glob("*"))]
