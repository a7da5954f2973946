"""The size of the compute buffer that llama-server (b11434) reserves for its largest batch.

A batch's own tensors stay for as long as the graph runs. Of the graph, which uses its room again from layer to layer,
the largest step counts: the tensors that one operation needs at the same time. Tensors as wide as the model are not
counted there, because they fit the places that the batch's own ones leave. Sizes are numbers of 4 bytes for each token.
"""

from __future__ import annotations

from math import ceil

from msgspec import Struct

from appliance.core.models.shape import ModelLayer, Shape

FLOAT = 4
COUNTERS = 8  # numbers for each token: its own, its positions, its cells


class Batch(Struct, frozen=True, kw_only=True):
    """The largest batch, for which buffers are reserved, and the context that it sees. Sizes in tokens."""

    tokens: int
    slots: int
    sequences: int  # with a context of their own: 1 if the slots share one
    context: int  # of all sequences
    cells: int  # the part of it that one token may see
    near_cells: int  # the same in layers with a window
    outputs: int  # tokens that need logits
    flash: bool
    key_bytes: float  # of a number in the cache of keys
    value_bytes: float

    def cells_of(self, layer: ModelLayer) -> int:
        return self.near_cells if layer.windowed else self.cells

    def kept_of(self, layer: ModelLayer) -> int:
        """Return the bytes of a layer's keys and values for all sequences."""
        sizes = layer.keys * self.key_bytes + layer.values * self.value_bytes
        return ceil(self.cells_of(layer) * self.sequences * sizes)


def inputs_of(shape: Shape, batch: Batch, wide: int) -> int:
    """Return the bytes of a batch's own tensors; ``wide``: how many of them are as wide as the model."""
    kinds = {False: batch.cells} if shape.encoder else {x.windowed: batch.cells_of(x) for x in shape.layers if x.keys}
    masks = sum(kinds.values()) * batch.tokens * (2 if batch.flash else FLOAT)
    return (wide * shape.width + COUNTERS) * FLOAT * batch.tokens + masks


def compute_of(shape: Shape, batch: Batch, *, gpu: bool, copied: bool = False) -> int:
    """Return the bytes on a device that computes layers, a GPU or the processor.

    ``copied``: weights and context lie in main memory, and are copied to the GPU when they are needed.
    """
    wide = 5 if copied or not gpu else 2 if shape.encoder else 4
    logits = 0 if shape.encoder else shape.vocabulary * batch.outputs * FLOAT
    steps = (_step(shape, batch, layer, gpu=gpu, copied=copied) for layer in dict.fromkeys(shape.layers))
    return inputs_of(shape, batch, wide) + max(logits, *steps)


# What is needed at the same time, found by comparison with what b11434 says that it allocates. A recurrent layer: both
# halves of its input projection, the mixed window, the time step and the scan, which holds the state as well. A
# feed-forward part: two products and their product; without a gate one product, which is changed in place.
def _step(shape: Shape, batch: Batch, layer: ModelLayer, *, gpu: bool, copied: bool) -> int:
    """Return the bytes of the largest step of a layer."""
    row = FLOAT * batch.tokens
    if layer.state and not layer.keys:
        mixing = 5 * (shape.inner or 2 * shape.width) * row + layer.state * FLOAT
    else:
        mixing = _attention(shape, batch, layer, copied=copied)
    used = max(1, shape.experts_used)
    shared = 2 * shape.feed * row if gpu and layer.experts and layer.feed else 0  # GPUs compute these first
    experts = _grown(used * shape.expert_feed * row, layer.experts // 3 if copied else 0) if layer.experts else 0
    if not shape.gated:
        return max(mixing, experts + shared, shape.feed * row + (layer.feed // 2 if copied else 0))
    feed = _grown(shape.feed * row, layer.feed // 3 if copied else 0) if layer.feed else 0
    return max(mixing, experts + shared, feed)


def _grown(size: int, copy: int) -> int:
    """Two products and what becomes of them, which goes where the weights were copied to if it fits there."""
    return 2 * size + copy + (size if copy < size else 0)


# Queries, keys and values come first; with latent attention the absorbed queries are as wide as the compressed keys for
# every head. Then attention itself: flash attention makes no table of all pairs of tokens and cells.
def _attention(shape: Shape, batch: Batch, layer: ModelLayer, *, copied: bool) -> int:
    row = FLOAT * batch.tokens
    kept = batch.kept_of(layer) if copied else 0
    table = 0 if batch.flash else batch.cells_of(layer) * shape.heads * row
    if shape.latent:
        wide, head = shape.heads * shape.latent, shape.heads * shape.latent_head
        return max((layer.queries + wide + head) * row, (layer.queries + wide) * row + kept + table)
    keys, values = layer.keys or layer.queries, layer.values or layer.queries
    return max(
        (layer.queries + keys + values - min(shape.width, layer.queries)) * row,
        layer.queries * row + kept,
        table + kept,
    )
