"""A model's memory on each device, as llama-server (b11434) allocates it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from appliance.core.memory import RAM, DeviceUse
from appliance.core.models.gguf_bytes import TENSOR_TYPES
from appliance.core.models.shape import Shape
from appliance.features.fit.core.compute import FLOAT, Batch, compute_of, inputs_of
from appliance.features.fit.core.options import AUTO_PARALLEL, Options

CELLS = 256  # contexts are rounded up to a multiple of this many
BYTES = {name.lower(): size / block for name, block, size in TENSOR_TYPES.values()}  # of one number, by --cache-type-k


class LayerCost(Struct, frozen=True):
    """Bytes of a layer, or of the output."""

    in_ram: int  # its weights, where it is in main memory
    on_gpu: int  # its weights, where it is on a GPU
    kept: int  # its context for all sequences


class Costs(Struct, frozen=True, kw_only=True):
    """The sizes of a model's parts wherever they are placed, in bytes: the sums of an estimate without the places."""

    options: Options  # of the start that has them
    parts: tuple[LayerCost, ...]  # the layers, and at the end the output
    ram: DeviceUse  # in main memory in any case
    gpu_compute: int  # on each GPU that has a layer
    copied_compute: int  # on the first GPU, instead, while some layers are in main memory
    extra: DeviceUse  # projector and draft model, on the first GPU if there is one
    batch: Batch  # the slots, and their context as llama-server rounds it


def estimate(shape: Shape, options: Options) -> Mapping[str, DeviceUse]:
    """Return what lies in ``ram`` and on each of the `Options.gpus`. Pure and total: any shape and any options have it.

    The first layers stay in main memory. Free memory decides about the shares of several GPUs, here they are equal.
    """
    return placed(costs_of(shape, options), places_of(shape, options))


def placed(costs: Costs, places: Sequence[str]) -> Mapping[str, DeviceUse]:
    """Return the estimate for layers, and at the end the output, on these devices."""
    gpus = costs.options.gpus
    models, caches = dict.fromkeys((RAM, *gpus), 0), dict.fromkeys((RAM, *gpus), 0)
    for place, part in zip(places, costs.parts, strict=True):
        caches[place] += part.kept
        models[place] += part.in_ram if place == RAM else part.on_gpu
    uses = {place: DeviceUse(model=models[place], cache=caches[place]) for place in models}
    uses[RAM] += costs.ram
    for number, gpu in enumerate(gpus):
        compute = costs.gpu_compute if gpu in places else 0
        if number == 0 and places[0] == RAM:
            compute = max(compute, costs.copied_compute)
        uses[gpu] += DeviceUse(compute=compute)
    uses[gpus[0] if gpus else RAM] += costs.extra
    return uses


def places_of(shape: Shape, options: Options) -> tuple[str, ...]:
    """Return the device of each layer, and at the end that of the output, as `estimate` places them."""
    count = len(shape.layers) + 1
    wanted = count if options.gpu_layers is None else max(0, min(options.gpu_layers, count))
    wanted = wanted if options.gpus else 0
    return (RAM,) * (count - wanted) + tuple(options.gpus[n * len(options.gpus) // wanted] for n in range(wanted))


def costs_of(shape: Shape, options: Options) -> Costs:
    batch = batch_of(shape, options)
    repack = options.repack and not options.gpus
    parts, experts, kept = list[LayerCost](), 0, 0  # these experts and contexts stay in main memory
    for number, layer in enumerate(shape.layers):
        weights = layer.weights + (layer.repacked if repack else 0)
        cache = batch.kept_of(layer) + layer.state * batch.slots * FLOAT
        if number < options.experts_in_ram:
            weights, experts = weights - layer.experts, experts + layer.experts
        if options.cache_in_ram:
            cache, kept = 0, kept + cache
        parts.append(LayerCost(weights, weights, cache))
    output = shape.output + shape.other
    tied = shape.input if shape.tied and not shape.encoder else 0
    parts.append(LayerCost(output + (shape.output_repacked if repack else 0), output + tied, 0))
    rows = shape.vocabulary + (shape.width if options.embedding or shape.encoder else 0)
    return Costs(
        options=options,
        parts=tuple(parts),
        ram=DeviceUse(
            model=max(0, shape.input - (shape.tail if repack else 0)) + experts,
            cache=kept,
            compute=inputs_of(shape, batch, 5 if shape.encoder else 4)  # the batch is here although GPUs compute
            if options.gpus
            else compute_of(shape, batch, gpu=False),
            output=batch.slots * rows * FLOAT,
        ),
        gpu_compute=compute_of(shape, batch, gpu=True) if options.gpus else 0,
        copied_compute=compute_of(shape, batch, gpu=True, copied=True) if options.gpus else 0,
        extra=_extra(options, batch.context),
        batch=batch,
    )


def _extra(options: Options, context: int) -> DeviceUse:
    """A draft model has as much context as its main model, and lies completely where the most room is."""
    use = DeviceUse(model=options.projector)
    if options.draft is None:
        return use
    asked = Options(context=context, parallel=options.parallel, unified=options.unified, batch=options.batch,
                    ubatch=options.ubatch, flash=options.flash, repack=options.repack)  # fmt: skip
    return use + estimate(options.draft, asked)[RAM]


def batch_of(shape: Shape, options: Options) -> Batch:
    slots = options.parallel or AUTO_PARALLEL
    sequences = 1 if (not options.parallel if options.unified is None else options.unified) else slots
    each = _padded(max(1, _padded(options.context or shape.trained or CELLS) // sequences))
    tokens = max(1, min(options.ubatch, options.batch, options.ubatch if shape.encoder else each * sequences))
    near = each
    if shape.window and not options.window_full:
        near = min(each, _padded(shape.window * (slots // sequences) + tokens))
    return Batch(
        tokens=tokens,
        slots=slots,
        sequences=sequences,
        context=each * sequences,
        cells=tokens if shape.encoder else each,
        near_cells=near,
        outputs=tokens if options.embedding else min(slots, tokens),
        flash=options.flash,
        key_bytes=BYTES.get(options.keys_type, 2.0),
        value_bytes=BYTES.get(options.values_type, 2.0),
    )


def _padded(cells: int) -> int:
    return -(-cells // CELLS) * CELLS
