"""The size of one compute buffer: ggml's way of placing the tensors of a graph, replayed with sizes alone.

llama-server reserves its compute buffers for the largest batch by walking the graph once: a tensor takes the smallest
hole that holds it, or grows the buffer; its place is free when the last one that reads it is done; some operations
write over what they read. The holes that stay are why no sum of tensors gives the size (b11434).
"""

from __future__ import annotations

from collections.abc import Iterable

ALIGNMENT = 64


class Block:
    """One tensor with a place of its own."""

    __slots__ = ("offset", "readers", "size")

    def __init__(self, size: int, readers: int) -> None:
        self.size = -(-size // ALIGNMENT) * ALIGNMENT
        self.readers = readers
        self.offset = -1


class Arena:
    """One buffer. ``peak`` is its size in bytes so far."""

    def __init__(self) -> None:
        self.peak = 0
        self._holes: list[tuple[int, int]] = []
        self._top = 0
        """The start of the free space behind everything."""

    def take(self, size: int, readers: int) -> Block:
        """Place a new tensor that ``readers`` operations will read; with none it stays for good."""
        block = Block(size, readers)
        fitting = [hole for hole in self._holes if hole[1] >= block.size]
        best = min(fitting, key=lambda hole: (hole[1], -hole[0]), default=None)
        if best is None:
            block.offset = self._top
            self._top += block.size
            self.peak = max(self.peak, self._top)
            return block
        self._holes.remove(best)
        block.offset = best[0]
        if best[1] > block.size:
            self._holes.append((best[0] + block.size, best[1] - block.size))
        return block

    def run(self, size: int, readers: int, read: Iterable[Block], *, over: bool = False) -> Block:
        """Place the result of an operation on ``read``; with ``over`` it may replace one that nobody else reads."""
        read = list(read)
        result = next((self._reuse(b, readers) for b in read if over and b.readers == 1 and b.size >= size > 0), None)
        if result is None:
            result = self.take(size, readers)
        for block in read:
            self.drop(block)
        return result

    def drop(self, block: Block) -> None:
        """Note that one of its readers is done."""
        block.readers -= 1
        if block.readers == 0 and block.offset >= 0:
            self._free(block.offset, block.size)

    def _reuse(self, block: Block, readers: int) -> Block:
        heir = Block(block.size, readers)
        heir.offset, block.offset = block.offset, -1
        return heir

    def _free(self, offset: int, size: int) -> None:
        end = offset + size
        for hole in self._holes[:]:
            if hole[0] + hole[1] == offset:
                offset = hole[0]
                self._holes.remove(hole)
            elif hole[0] == end:
                end += hole[1]
                self._holes.remove(hole)
        if end == self._top:
            self._top = offset
        else:
            self._holes.append((offset, end - offset))
