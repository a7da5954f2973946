"""A model's memory on each device, as llama-server (b11434) allocates it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil

from msgspec import Struct

from appliance.core.memory import RAM, DeviceUse
from appliance.core.models.gguf_bytes import TENSOR_TYPES
from appliance.core.models.shape import ModelLayer, Shape
from appliance.features.fit.core.compute import FLOAT, Batch, compute_of, inputs_of

CELLS = 256
"""Contexts are rounded up to a multiple of this many cells."""
AUTO_PARALLEL = 4
"""Slots without ``--parallel``; they then share one context."""
BYTES = {name.lower(): size / block for name, block, size in TENSOR_TYPES.values()}
"""Bytes of one number, by the types' names for ``--cache-type-k``."""


class Options(Struct, frozen=True, kw_only=True):
    """The options of a start. The defaults are llama-server's."""

    context: int = 0
    """Tokens of all slots together; 0: as many as the model was trained for."""
    parallel: int = 0
    """0: llama-server's choice."""
    unified: bool | None = None
    """The slots share one context. None: if their number is llama-server's choice."""
    keys_type: str = "f16"
    values_type: str = "f16"
    batch: int = 2048
    ubatch: int = 512
    flash: bool = True
    gpu_layers: int | None = None
    """Layers on GPUs: the last so many of all layers and the output; None: all."""
    window_full: bool = False
    embedding: bool = False
    experts_in_ram: int = 0
    """Layers, from the first, whose experts stay in main memory."""
    cache_in_ram: bool = False
    repack: bool = True
    projector: int = 0
    """Size of the projector's file in bytes."""
    draft: Shape | None = None
    gpus: tuple[str, ...] = ()
    """Names of the devices beside the processor, in the order in which they are filled."""


class Estimated(Struct, frozen=True, kw_only=True):
    """Bytes by device: ``ram`` or one of the `Options.gpus`."""

    devices: Mapping[str, DeviceUse]
    context: int
    """Tokens of all slots together, as llama-server rounds them."""
    parallel: int
    gpu_layers: int
    """Number of ``layers`` on GPUs; the output counts as one."""
    layers: int

    def by_device(self) -> dict[str, int]:
        return {device: use.total for device, use in self.devices.items()}


class Costs(Struct, frozen=True, kw_only=True):
    """The sizes of a model's parts wherever they are placed, in bytes: the sums of an estimate without the places."""

    weights: tuple[int, ...]
    """By layer, and at the end for the output on a GPU."""
    kept: tuple[int, ...]
    """The context of each layer for all sequences, and 0 at the end."""
    in_ram: tuple[int, ...]
    """The part of each that main memory holds although the layer is on a GPU."""
    ram: DeviceUse
    """In main memory in any case."""
    ram_output: int
    """The output's weights in main memory."""
    gpu_compute: int
    """On each GPU that has a layer."""
    copied_compute: int
    """On the first GPU, instead, while some layers are in main memory."""
    extra: DeviceUse
    """Projector and draft model, on the first GPU if there is one."""
    context: int
    slots: int


def estimate(shape: Shape, options: Options) -> Estimated:
    """Pure and total: any shape and any options have an estimate."""
    places = places_of(len(shape.layers), options)
    return placed(costs_of(shape, options), places, options.gpus)


def placed(costs: Costs, places: Sequence[str], gpus: Sequence[str]) -> Estimated:
    """Return the estimate for layers, and at the end the output, on these devices."""
    models, caches = dict.fromkeys((RAM, *gpus), 0), dict.fromkeys((RAM, *gpus), 0)
    for place, weights, in_ram, kept in zip(places, costs.weights, costs.in_ram, costs.kept, strict=True):
        models[place] += weights
        caches[place] += kept
        if place != RAM:
            models[place] -= in_ram
            models[RAM] += in_ram
    if places[-1] == RAM:
        models[RAM] += costs.ram_output - costs.weights[-1]
    uses = {place: DeviceUse(model=models[place], cache=caches[place]) for place in models}
    uses[RAM] += costs.ram
    for number, gpu in enumerate(gpus):
        compute = costs.gpu_compute if gpu in places else 0
        if number == 0 and places[0] == RAM:
            compute = max(compute, costs.copied_compute)
        uses[gpu] += DeviceUse(compute=compute)
    uses[gpus[0] if gpus else RAM] += costs.extra
    on_gpus = sum(place != RAM for place in places)
    return Estimated(devices=uses, context=costs.context, parallel=costs.slots, gpu_layers=on_gpus, layers=len(places))


def costs_of(shape: Shape, options: Options) -> Costs:
    slots, unified = slots_of(options)
    each, context = cells_of(shape, options)
    batch = _batch(shape, options, each, slots, unified)
    of_kind = {
        kind: _kept(layer, options, batch, slots, each, unified)
        for kind, layer in {_keeping(layer): layer for layer in shape.layers}.items()
    }
    kept = [of_kind[_keeping(layer)] for layer in shape.layers]
    repack = options.repack and not options.gpus
    weights = [layer.weights + (layer.repacked if repack else 0) for layer in shape.layers]
    output = shape.output + shape.other
    rows = shape.vocabulary + (shape.width if options.embedding or shape.encoder else 0)
    return Costs(
        weights=(*weights, output + (shape.input if shape.tied and not shape.encoder else 0)),
        kept=(*((0,) * len(kept) if options.cache_in_ram else kept), 0),
        in_ram=(*(layer.experts if n < options.experts_in_ram else 0 for n, layer in enumerate(shape.layers)), 0),
        ram=DeviceUse(
            model=max(0, shape.input - (shape.tail if repack else 0)),
            cache=sum(kept) if options.cache_in_ram else 0,
            compute=inputs_of(shape, batch) if options.gpus else compute_of(shape, batch, gpu=False),
            output=slots * rows * FLOAT,
        ),
        ram_output=output + (shape.output_repacked if repack else 0),
        gpu_compute=compute_of(shape, batch, gpu=True) if options.gpus else 0,
        copied_compute=compute_of(shape, batch, gpu=True, copied=True) if options.gpus else 0,
        extra=_extra(options, context),
        context=context,
        slots=slots,
    )


def _extra(options: Options, context: int) -> DeviceUse:
    """A draft model has as much context as its main model, and lies completely where the most room is."""
    use = DeviceUse(model=options.projector)
    if options.draft is None:
        return use
    asked = Options(context=context, parallel=options.parallel, unified=options.unified, batch=options.batch,
                    ubatch=options.ubatch, flash=options.flash, repack=options.repack)  # fmt: skip
    return use + estimate(options.draft, asked).devices[RAM]


def slots_of(options: Options) -> tuple[int, bool]:
    """Return the number of slots, and whether they share one context."""
    if options.parallel <= 0:
        return AUTO_PARALLEL, options.unified is not False
    return options.parallel, bool(options.unified)


def cells_of(shape: Shape, options: Options) -> tuple[int, int]:
    """Return the tokens that one sequence may have, and the tokens of all of them."""
    slots, unified = slots_of(options)
    context = _padded(options.context or shape.trained or CELLS)
    if unified:
        return context, context
    each = _padded(max(1, context // slots))
    return each, each * slots


def places_of(layers: int, options: Options) -> tuple[str, ...]:
    """Return the device of each layer, and at the end that of the output: the first layers stay in main memory.

    Free memory decides about the shares of several GPUs, here they are equal.
    """
    wanted = layers + 1 if options.gpu_layers is None else min(max(0, options.gpu_layers), layers + 1)
    wanted = wanted if options.gpus else 0
    first = layers + 1 - wanted
    return (RAM,) * first + tuple(options.gpus[number * len(options.gpus) // wanted] for number in range(wanted))


def _batch(shape: Shape, options: Options, each: int, slots: int, unified: bool) -> Batch:
    context = each * (1 if unified else slots)
    tokens = max(1, min(options.ubatch, options.batch, context if not shape.encoder else options.ubatch))
    near = each
    if shape.window and not options.window_full:
        near = min(each, _padded(min(each, shape.window * (slots if unified else 1) + tokens)))
    return Batch(
        tokens=tokens,
        cells=tokens if shape.encoder else each,
        near_cells=near,
        outputs=tokens if options.embedding else min(slots, tokens),
        flash=options.flash,
        key_bytes=BYTES.get(options.keys_type, 2.0),
        cache_tokens=each * (1 if unified else slots),
    )


def _keeping(layer: ModelLayer) -> tuple[int, int, bool, int]:
    """Return what `_kept` depends on: a model has one to three kinds of layers."""
    return layer.keys, layer.values, layer.windowed, layer.state


def _kept(layer: ModelLayer, options: Options, batch: Batch, slots: int, each: int, unified: bool) -> int:
    """Return the bytes of one layer's context for all sequences."""
    cells = (batch.near_cells if layer.windowed else each) * (1 if unified else slots)
    sizes = layer.keys * BYTES.get(options.keys_type, 2.0) + layer.values * BYTES.get(options.values_type, 2.0)
    return ceil(cells * sizes) + layer.state * slots * FLOAT


def _padded(cells: int) -> int:
    return -(-cells // CELLS) * CELLS
