"""The plan to start a model in the free memory: the places of its parts, its context, and whether it fits at all.

Theory. llama-server (b11434) fits a model itself (``--fit``, on unless somebody turns it off): if nobody set the
context, it lowers it, down to 4096, and then moves layers to main memory, and for experts single tensors, which it does
better than a rule from outside. So the layers are left to it, with the reserve as its target, and are only predicted
here. It does not do five things, which are done here: without a GPU it counts the memory that a machine *has*, not the
memory that other models leave free; it never lowers the number of slots; it has no reserve in main memory; every
process may keep 8 GiB of prompts there, however many processes there are (`_prompt_cache`); and slots that share one
context may use it up, which ends the answers of all of them (`_choices`). A user's setting is always kept: `Options`
holds those of the model's own engine flags that concern its memory.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping

from msgspec import Struct, structs

from appliance.core.memory import RAM, DeviceUse, FitPlan, Sizes
from appliance.core.models.shape import Shape
from appliance.core.sizes import GIB, MIB
from appliance.features.fit.core.compute import FLOAT
from appliance.features.fit.core.estimate import Costs, batch_of, costs_of, placed, places_of
from appliance.features.fit.core.options import AUTO_PARALLEL, CACHE, CHECKPOINTS, MOST_CACHED, PER_SLOT, Options

LEAST_CHECKPOINTS, MOST_CHECKPOINTS = 4, 32
"""Checkpoints of each slot: fewer are of little use, and llama-server (b11434) keeps so many unless somebody says."""
HALF = 2  # bytes of a number in a checkpoint of a window, as in its cache by default
LEAST_CONTEXT = 4096  # a smaller one is never chosen, unless the model was trained for less
RESERVE = GIB  # bytes that stay free on each device; llama-server's own ``--fit-target``
SHARE = 16384  # tokens that a slot can have before there is another one beside it, or all that it was trained for
CACHE_STEP = 64 * MIB  # caches of prompts have sizes that are multiples of it; below one step there is no cache


class _Start(Struct, frozen=True, kw_only=True):
    """One way to start it."""

    costs: Costs
    places: tuple[str, ...]  # the device of each layer, and at the end that of the output
    fits: bool

    @property
    def uses(self) -> Mapping[str, DeviceUse]:
        return placed(self.costs, self.places)

    @property
    def on_gpus(self) -> int:
        """Number of ``places`` on GPUs."""
        return sum(place != RAM for place in self.places)


def plan(shape: Shape, room: Sizes, asked: Options, *, reserve: int = RESERVE, spoken_for: int = 0) -> FitPlan:
    """Choose a plan. Pure.

    ``room`` is the free memory by device, ``ram`` among them, and all GPUs that ``asked`` names. More room never makes
    the verdict worse, or the layers on GPUs fewer. ``spoken_for`` are bytes of free main memory that this model's cache
    of prompts leaves alone: the caches of other models may still grow into them, or the budget is smaller.
    """
    left = {device: max(0, size - reserve) for device, size in room.items()}
    asked = structs.replace(asked, apart=asked.apart and shape.trained > 0)
    starts, whole = list[_Start](), False
    for options in _choices(shape, asked):  # the best one that fits whole needs no look at the others
        starts.append(one := _start(shape, options, left))
        if whole := one.fits and (not asked.gpus or RAM not in one.places):
            break
    else:
        one = max((one for one in starts if one.fits), key=lambda one: one.on_gpus, default=starts[-1])
    batch, cached = one.costs.batch, _prompt_cache(one, left, asked, spoken_for)
    each = batch.context // (batch.slots if asked.apart else batch.sequences)
    return FitPlan(
        verdict="fits" if whole else "partly" if one.fits else "no",
        why=_why(one, shape, asked, left) if one.fits else _too_large(one, left),
        flags=(
            *(_flags(one, shape, asked, reserve) if one.fits else ()),
            *_cache_flags(shape, cached, batch.slots, asked),
        ),
        context=batch.context,
        parallel=batch.slots,
        gpu_layers=one.on_gpus,
        layers=len(one.places),
        memory={device: use for device, use in one.uses.items() if use.total},
        room=room,
        reserve=reserve,
        prompt_cache=cached,
        slot_context=min(each, asked.slot_context or each),
    )


# The slots of a unified cache share one context. When it is full, llama-server (b11434) ends the answers of all slots
# with an error (llama.cpp #23652): one long conversation ends the others. PER_SLOT limits each slot; the limits
# together are the context here, so that it is never full before a slot is. The price is a conversation's length: there
# is another slot only where each can have SHARE tokens, and a small trained context grows up to two shares.
def _choices(shape: Shape, asked: Options) -> Iterator[Options]:
    """Return ways to start it, best first: less context before fewer slots."""
    least = min(shape.trained or LEAST_CONTEXT, LEAST_CONTEXT)
    share, most = min(shape.trained, SHARE), max(shape.trained, 2 * SHARE)
    if asked.apart and asked.context is not None:
        context = asked.context or shape.trained
        slots = next((slots for slots in (AUTO_PARALLEL, 2) if context // slots >= share), 1)
        yield structs.replace(asked, parallel=slots, unified=slots > 1)
    elif asked.apart:
        for slots in (AUTO_PARALLEL, 2, 1):
            for each in _halved(min(shape.trained, most // slots), share if slots > 1 else least):
                yield structs.replace(asked, parallel=slots, unified=slots > 1, context=each * slots)
    else:
        for slots in (asked.parallel,) if asked.parallel else (0, 1):
            wanted = structs.replace(asked, parallel=slots)
            low = least * batch_of(shape, wanted).sequences
            for context in _halved(max(shape.trained, low), low) if asked.context is None else [asked.context]:
                yield structs.replace(wanted, context=context)


def _halved(most: int, least: int) -> list[int]:
    """Return ``most``, the powers of two between, and ``least``; nothing if ``most`` is less than that."""
    powers = (1 << bits for bits in range(most.bit_length()))
    return sorted({size for size in (most, least, *powers) if least <= size <= most}, reverse=True)


def _start(shape: Shape, options: Options, left: Sizes) -> _Start:
    """Place the layers: as many on GPUs as somebody said, or as fit; evenly where even that is too much."""
    costs = costs_of(shape, options)
    places = _places(costs, left)
    if places is None and options.gpus and options.gpu_layers is None:  # not even the room to compute with
        return _start(shape, structs.replace(options, gpus=()), left)
    if places is not None:
        packed = _Start(costs=costs, places=places, fits=True)
        if all(use.total <= left.get(device, use.total) for device, use in packed.uses.items()):
            return packed
    return _Start(costs=costs, places=places_of(shape, options), fits=False)


def _places(costs: Costs, left: Sizes) -> tuple[str, ...] | None:
    """Put as many layers on GPUs as fit: all of them, or the last ones that fit beside the copies for the others.

    Or as many as somebody said. Main memory needs no check: the more layers on GPUs, the less it holds.
    """
    count, said = len(costs.parts), costs.options.gpu_layers if costs.options.gpus else 0
    if said is not None:
        return _packed(costs, min(said, count), left)
    if (whole := _packed(costs, count, left)) is not None:
        return whole
    fitting = bisect_left(range(count), True, key=lambda number: _packed(costs, number, left) is None)
    return _packed(costs, fitting - 1, left) if fitting else None


def _packed(costs: Costs, number: int, left: Sizes) -> tuple[str, ...] | None:
    """Put the last ``number`` of all layers on the GPUs, each filled in turn; None when they do not fit."""
    count, gpus = len(costs.parts), costs.options.gpus
    places = [RAM] * (count - number)
    for gpu in gpus:
        copied = costs.copied_compute if number < count and gpu == gpus[0] else 0
        size = copied + (costs.extra.total if gpu == gpus[0] else 0)
        if size > left.get(gpu, 0):
            return None
        size += max(0, costs.gpu_compute - copied)
        for part in costs.parts[len(places) :]:
            size += part.on_gpu + part.kept
            if size > left.get(gpu, 0):
                break
            places.append(gpu)
    return tuple(places) if len(places) == count else None


def _flags(one: _Start, shape: Shape, asked: Options, reserve: int) -> tuple[str, ...]:
    flags, options = list[str](), one.costs.options
    context = options.context or shape.trained
    on_gpus = bool(options.gpus) and asked.fit
    is_apart = asked.apart and options.parallel > 1
    if asked.context is None and (is_apart or (context < shape.trained and not on_gpus)):
        flags += ["--ctx-size", str(context)]
    if not asked.parallel and options.parallel:
        flags += ["--parallel", str(options.parallel)]
    if is_apart:
        flags += ["--kv-unified", PER_SLOT, str(context // options.parallel)]
    if on_gpus:
        flags += ["--fit-target", ",".join([str(reserve // MIB)] * len(asked.gpus))]
    elif asked.gpus and not options.gpus:
        flags += ["--device", "none"]
    elif asked.gpus and asked.gpu_layers is None:
        flags += ["--n-gpu-layers", str(one.on_gpus)]
    return tuple(flags)


# llama-server (b11434) copies the state of a prompt that leaves its slot, with its checkpoints, into main memory, and
# drops the oldest when all of them are larger than --cache-ram. The memory is taken as prompts come, so that neither
# the estimate nor what is free shows it: ``spoken_for`` is what other processes may still take. Half of the
# rest leaves the same to the next model, and so on; together they never take more than there is.
def _prompt_cache(one: _Start, left: Sizes, asked: Options, spoken_for: int) -> int:
    if asked.prompt_cache is not None or not one.fits:
        return asked.prompt_cache or 0
    spare = max(0, left.get(RAM, 0) - one.uses[RAM].total - spoken_for)
    return min(MOST_CACHED, spare // 2 // CACHE_STEP * CACHE_STEP)


# A model with sliding windows or states cannot go back within its context. So llama-server copies them into main memory
# from time to time. The copies of a large state, 32 of each slot, may take more than the model. Together they get as
# much as the cache of prompts, which copies them too.
def _cache_flags(shape: Shape, cached: int, slots: int, asked: Options) -> tuple[str, ...]:
    windows = sum((layer.keys + layer.values) * HALF for layer in shape.layers if layer.windowed) * shape.window
    size = slots * (windows + sum(layer.state for layer in shape.layers) * FLOAT)
    most = max(LEAST_CHECKPOINTS, cached // size) if size and asked.checkpoints else MOST_CHECKPOINTS
    flags: tuple[str, ...] = ()
    if asked.prompt_cache is None and asked.understood and cached < MOST_CACHED:
        flags = (CACHE, str(cached // MIB))
    return (*flags, CHECKPOINTS, str(most)) if most < MOST_CHECKPOINTS else flags


def _why(one: _Start, shape: Shape, asked: Options, left: Sizes) -> str:
    context, slots, on_gpus, layers = one.costs.batch.context, one.costs.batch.slots, one.on_gpus, len(one.places)
    words = [", ".join(_of(device, use.total, left) for device, use in one.uses.items() if use.total)]
    if asked.context is None and context < shape.trained:
        words.append(f"context {context} of {shape.trained} tokens, so that it fits")
    if asked.apart and slots > 1:
        words.append(f"{slots} slots of {context // slots} tokens, so that none ends the others")
    elif asked.apart:
        words.append("one slot, so that it has the whole context")
    elif not asked.parallel and slots < AUTO_PARALLEL:
        words.append("one slot, so that it fits")
    if 0 < on_gpus < layers:
        words.append(f"{on_gpus} of {layers} layers on GPUs, the others in main memory")
    elif not on_gpus and asked.gpus:
        words.append("no layer on a GPU")
    if one.costs.options.gpus and asked.fit and (asked.context is None or asked.gpu_layers is None):
        words.append("llama-server settles context and layers itself (--fit)")
    return "; ".join(words)


def _too_large(one: _Start, left: Sizes) -> str:
    over = [(device, use) for device, use in one.uses.items() if use.total > left.get(device, use.total)]
    said = " and ".join(_of(device, use.total, left) for device, use in over)
    greatest = max((use for _, use in over), key=lambda use: use.total, default=DeviceUse())
    fix = "a smaller quantisation" if greatest.model >= greatest.total // 2 else "less context"
    return f"it takes {said or 'more than there is'}; give it {fix}, or free memory"


def _of(device: str, size: int, left: Sizes) -> str:
    known = f" of {left[device] // MIB} MiB" if device in left else ""
    return f"{-(-size // MIB)} MiB{known} on {device}"
