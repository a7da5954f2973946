"""The size of the compute buffers: the graph of a few layers, replayed in an `Arena` with sizes alone.

Which tensors there are, who reads them and what is written in place is llama.cpp's (b11434); layers that are alike need
the same room, so a few of each kind do. Sizes are numbers of 4 bytes for each token of the largest batch.

llama-server reserves its compute buffers for the largest batch by walking the graph once: a tensor takes the smallest
hole that holds it, or grows the buffer; its place is free when the last one that reads it is done; some operations
write over what they read. The holes that stay are why no sum of tensors gives the size.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from appliance.core.models.shape import ModelLayer, Shape

ALIGNMENT = 64
FLOAT = 4
FOREVER = 1 << 30
"""Readers of tensors that are needed to the end."""
EACH = 2
"""Layers of each kind that are walked."""
MOST_LAYERS = 16


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
        old = next((block for block in read if over and block.readers == 1 and block.size >= size > 0), None)
        if old is None:
            result = self.take(size, readers)
        else:
            result = Block(old.size, readers)
            result.offset, old.offset = old.offset, -1
        for block in read:
            self.drop(block)
        return result

    def drop(self, block: Block) -> None:
        """Note that one of its readers is done."""
        block.readers -= 1
        if block.readers == 0 and block.offset >= 0:
            self._free(block.offset, block.size)

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


class Batch(Struct, frozen=True, kw_only=True):
    """Tokens of the largest batch, for which buffers are reserved."""

    tokens: int
    cells: int
    """Cells of the context that one token may see."""
    near_cells: int
    """The same in layers with a window."""
    outputs: int
    """Tokens that need logits."""
    flash: bool
    key_bytes: float = 2.0
    """Bytes of a number in the cache of keys; values are assumed to be as large."""
    cache_tokens: int = 0
    """All cells of all sequences."""


class Walk:
    """One graph in one buffer."""

    def __init__(self, shape: Shape, batch: Batch, *, copied: bool = False) -> None:
        self.arena = Arena()
        self._shape = shape
        self._batch = batch
        self._row = FLOAT * batch.tokens
        self._copied = copied
        """True if weights and context lie elsewhere and are copied in when they are needed."""
        self._gpu = False

    # The order of these takes is the order in which llama.cpp (b11434) allocates a batch's inputs, and it matters: each
    # one fills a hole or makes one. A tensor that nobody reads in this buffer still gets its room, as the allocator
    # reserves it.
    def inputs(self, *, own: bool, compute: bool) -> Block:
        """Place a batch's own tensors. ``own``: this buffer's device gets it first; ``compute``: layers follow."""
        self._gpu = not own
        arena, width = self.arena, self._shape.width * self._row
        readers = 1 if compute else 0
        if self._gpu and self._shape.encoder:  # positions are looked up in main memory, too
            tokens = arena.take(width, 2)
            self._take_masks()
            return tokens
        if own:
            arena.take(width, 0)  # room for vectors instead of tokens, used or not
        mixed = arena.take(width, readers)
        tokens, other = Block(0, 0), Block(0, 0)
        if not own:
            other, tokens = arena.take(width, readers), arena.take(width, 2)
        arena.take(8 * self._row, FOREVER)  # numbers of tokens, positions and cells
        self._take_masks()
        if own:
            tokens, other = arena.take(width, 2 * readers), arena.take(width, readers)
        if not compute and self._shape.encoder:
            arena.take(width, 0)
        if compute:
            arena.run(width, 0, [mixed])  # tokens and vectors in one batch; it is kept to the end
            arena.drop(other)
        return tokens

    def layers(self, stream: Block, layers: Iterable[ModelLayer]) -> None:
        """Walk these layers, each reading the one before it."""
        for layer in layers:
            if layer.state and not layer.keys:
                stream = self._recurrent(stream, layer)
                if not (layer.feed or layer.experts):
                    continue
            elif self._shape.latent:
                stream = self._latent(stream, layer)
            else:
                stream = self._attention(stream, layer)
            if layer.experts:
                stream = self._experts(stream, layer)
            elif layer.feed:
                stream = self._forward(stream, layer)
        if not self._shape.encoder:
            outputs = self._batch.outputs * FLOAT
            last = self.arena.run(self._shape.width * outputs, 1, [stream])
            self.arena.run(self._shape.vocabulary * outputs, FOREVER, [last])

    def _take_masks(self) -> None:
        size = 2 if self._batch.flash else FLOAT
        windowed = {layer.windowed for layer in self._shape.layers if layer.keys}
        if self._shape.encoder:
            windowed = {False}
        cells = {False: self._batch.cells, True: self._batch.near_cells}
        for near in sorted(windowed):
            self.arena.take(cells[near] * self._batch.tokens * size, FOREVER)

    def _matrix(self, numbers: int, readers: int, read: Iterable[Block], weights: int) -> Block:
        """A product with weights, which are copied in first if they lie elsewhere."""
        copy = [self.arena.take(weights, 1)] if self._copied and weights else []
        return self.arena.run(numbers * self._row, readers, [*read, *copy])

    def _normed(self, stream: Block, readers: int) -> Block:
        size = self._shape.width * self._row
        norm = self.arena.run(size, 1, [])
        self.arena.drop(stream)
        return self.arena.run(size, readers, [norm], over=True)

    def _attention(self, stream: Block, layer: ModelLayer) -> Block:
        arena, row, width = self.arena, self._row, self._shape.width
        keys, values = layer.keys or layer.queries, layer.values or layer.queries
        part = layer.attention // max(1, 2 * layer.queries + keys + values)
        normed = stream if self._shape.encoder else self._normed(stream, 3)
        query = self._matrix(layer.queries, 1, [normed], part * layer.queries)
        query = arena.run(layer.queries * row, 1, [query], over=True)
        value = self._matrix(values, 1, [normed], part * values)
        key = self._matrix(keys, 1, [normed], part * keys)
        key = arena.run(keys * row, 1, [key], over=True)
        if self._shape.encoder:
            key, value = arena.run(keys * row // 2, 1, [key]), arena.run(values * row // 2, 1, [value])
            mixed = self._mixed(query, layer, [key, value])
        else:
            arena.drop(key)
            arena.drop(value)
            mixed = self._mixed(query, layer, self._cache(layer))
        out = self._matrix(width, 1, [mixed], part * layer.queries)
        return arena.run(width * row, 2, [out, stream], over=True)

    def _cache(self, layer: ModelLayer) -> list[Block]:
        if not self._copied:
            return []
        share = self._batch.near_cells / max(1, self._batch.cells) if layer.windowed else 1
        cells = round(self._batch.cache_tokens * share)
        return [self.arena.take(round(n * cells * self._batch.key_bytes), 1) for n in (layer.keys, layer.values) if n]

    def _mixed(self, query: Block, layer: ModelLayer, read: list[Block], numbers: int = 0) -> Block:
        """Attention itself: with flash attention no table of all pairs is made."""
        numbers = numbers or layer.queries
        if self._batch.flash:
            return self.arena.run(numbers * self._row, 1, [query, *read])
        cells = self._batch.near_cells if layer.windowed else self._batch.cells
        table = self.arena.run(cells * self._shape.heads * self._row, 1, [query])
        table = self.arena.run(table.size, 1, [table], over=True)
        mixed = self.arena.run(numbers * self._row, 1, [table, *read])
        return self.arena.run(numbers * self._row, 1, [mixed])

    def _latent(self, stream: Block, layer: ModelLayer) -> Block:
        """Attention over compressed keys and values."""
        arena, row, shape = self.arena, self._row, self._shape
        wide, head = shape.heads * shape.latent, shape.heads * shape.latent_head
        rope = max(0, layer.queries - wide)
        part = layer.attention // 4
        normed = self._normed(stream, 2)
        query = self._matrix(head, 2, [normed], part)
        absorbed = self._matrix(wide, 1, [query], part)
        turned = arena.run(rope * row, 1, [query])
        query = arena.run(layer.queries * row, 1, [absorbed, turned])
        small = arena.run(layer.keys * row, 2, [normed])
        key = arena.run(layer.keys * row, 1, [small])
        arena.drop(small)
        arena.drop(key)
        mixed = self._mixed(query, layer, self._cache(layer), wide)
        mixed = arena.run(head * row, 1, [mixed])
        mixed = arena.run(head * row, 1, [mixed])
        out = self._matrix(shape.width, 1, [mixed], part)
        return arena.run(shape.width * row, 2, [out, stream], over=True)

    def _forward(self, stream: Block, layer: ModelLayer) -> Block:
        arena, row, shape = self.arena, self._row, self._shape
        parts = 3 if shape.gated else 2
        normed = stream if shape.encoder else self._normed(stream, 2 if shape.gated else 1)
        grown = self._grown(normed, layer.feed // parts)
        out = self._matrix(shape.width, 1, [grown], layer.feed // parts)
        out = arena.run(shape.width * row, 4 if shape.encoder else 2, [out, stream], over=True)
        return self._normed(out, 4) if shape.encoder else out

    def _grown(self, normed: Block, weights: int) -> Block:
        arena, feed = self.arena, self._shape.feed
        up = self._matrix(feed, 1, [normed], weights)
        if not self._shape.gated:
            return arena.run(feed * self._row, 1, [up], over=True)
        gate = self._matrix(feed, 1, [normed], weights)
        return arena.run(feed * self._row, 1, [up, gate])

    def _experts(self, stream: Block, layer: ModelLayer) -> Block:
        """A mixture: each token goes through a few experts, and through those that all tokens share."""
        arena, row, shape = self.arena, self._row, self._shape
        used, shared, part = max(1, shape.experts_used), bool(layer.feed and shape.feed), layer.experts // 3
        normed = self._normed(stream, 5 if shared else 3)
        early = self._grown(normed, layer.feed // 3) if shared and self._gpu else None  # GPUs take it out of order
        odds = arena.run(shape.experts * row, 2, [normed])
        chosen = arena.run(shape.experts * row, 4, [odds])
        weights = arena.run(used * row, 1, [odds, chosen])
        gate = self._matrix(used * shape.expert_feed, 1, [normed, chosen], part)
        up = self._matrix(used * shape.expert_feed, 1, [normed, chosen], part)
        grown = arena.run(used * shape.expert_feed * row, 1, [gate, up])
        down = self._matrix(used * shape.width, 1, [grown, chosen], part)
        down = arena.run(used * shape.width * row, 1, [down, weights], over=True)
        out = arena.run(shape.width * row, 1, [down])
        if shared:
            grown = early or self._grown(normed, layer.feed // 3)
            both = self._matrix(shape.width, 1, [grown], layer.feed // 3)
            out = arena.run(shape.width * row, 1, [out, both], over=True)
        return arena.run(shape.width * row, 2, [out, stream], over=True)

    def _recurrent(self, stream: Block, layer: ModelLayer) -> Block:
        arena, row, shape = self.arena, self._row, self._shape
        inner = shape.inner or 2 * shape.width
        both = self._matrix(2 * inner, 2, [self._normed(stream, 1)], layer.attention * 2 // 3)
        window = arena.run(inner * row, 2, [both])
        mixed = arena.run(inner * row, 1, [window])
        arena.drop(window)
        mixed = arena.run(inner * row, 2, [mixed], over=True)
        step = arena.run(inner * row, 1, [mixed])
        scanned = arena.run(inner * row + layer.state * FLOAT, 1, [step])
        gate = arena.run(inner * row, 1, [both])
        mixed = arena.run(inner * row, 1, [mixed], over=True)
        mixed = arena.run(inner * row, 1, [scanned, mixed])
        out = arena.run(inner * row, 1, [gate, mixed])
        out = self._matrix(shape.width, 1, [out], layer.attention // 3)
        return arena.run(shape.width * row, 2, [out, stream], over=True)


def sampled(layers: Iterable[ModelLayer]) -> list[ModelLayer]:
    """A few layers of each kind, in their order."""
    seen: dict[ModelLayer, int] = {}
    some: list[ModelLayer] = []
    for layer in layers:
        seen[layer] = seen.get(layer, 0) + 1
        if seen[layer] <= EACH and len(some) < MOST_LAYERS:
            some.append(layer)
    return some
