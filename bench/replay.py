"""How fast a finished stream is read again from its ring, and whether it is the same however often it is cut.

    python bench/replay.py

Exit status 1 below the goal, or when a byte is wrong. No socket: what those cost is in bench.py.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

import trio

sys.path.insert(0, str(Path(__file__).parents[1]))

from appliance.core.answers.ring import Ring
from appliance.core.headers import EVENTS
from appliance.replay.generation import Generation, GenerationEnd, GenerationHead

GOAL = 500.0
"""Megabytes a second."""
RECORD = 220
"""Bytes of an ordinary chunk of a chat."""


class _Nobody:
    def began(self, generation: Generation) -> None: ...

    def grew(self, generation: Generation, data: bytes, held: int) -> None: ...

    def ended(self, generation: Generation) -> None: ...


def finished(size: int, seed: int = 1) -> tuple[Generation, bytes]:
    """A stream of about this many bytes, and the bytes."""
    source = random.Random(seed)
    said = b"".join(b"data: %b\n\n" % source.randbytes(RECORD // 2 - 4).hex().encode() for _ in range(size // RECORD))
    generation = Generation("bench", 0.0, Ring(len(said)), _Nobody())
    generation.begin(GenerationHead(200, ((b"Content-Type", EVENTS),)))
    for start in range(0, len(said), RECORD):
        generation.keep(said[start : start + RECORD])
    generation.finish(GenerationEnd.DONE)
    return generation, said


async def read(generation: Generation, offset: int, most: int | None = None) -> bytes:
    """From the offset to the end, or until so many bytes are there: what a connection that is cut then has had."""
    reader, parts, size = generation.reader(offset), list[bytes](), 0
    while (most is None or size < most) and (data := await reader.receive()):
        parts.append(data)
        size += len(data)
    whole = b"".join(parts)
    return whole if most is None else whole[:most]


async def speed(generation: Generation, rounds: int) -> float:
    """Megabytes a second of the median round."""
    times: list[float] = []
    for _ in range(rounds):
        reader = generation.reader(0)
        began = time.perf_counter()
        while await reader.receive():
            pass
        times.append(time.perf_counter() - began)
    return generation.ring.total / sorted(times)[rounds // 2] / 1e6


async def cut(generation: Generation, said: bytes, cuts: int, seed: int) -> bool:
    """Read it with so many cuts at random bytes, after each of which another reader goes on; True if it is the same."""
    source = random.Random(seed)
    got = b""
    for _ in range(cuts):
        got += await read(generation, len(got), source.randrange(2 * len(said) // cuts))
    return got + await read(generation, len(got)) == said


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=64 << 20, help="bytes of the stream")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--cuts", type=int, default=1000)
    args = parser.parse_args()
    seed = random.randrange(1 << 32)
    generation, said = finished(args.size)
    rate = trio.run(speed, generation, args.rounds)
    same = trio.run(cut, generation, said, args.cuts, seed)
    print(f"{len(said)} bytes in records of {RECORD}: {rate:.0f} MB/s replayed (goal {GOAL:.0f})")
    print(f"{args.cuts} cuts at random bytes: {'the same' if same else 'NOT THE SAME'} (seed {seed})")
    return 0 if same and rate >= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
