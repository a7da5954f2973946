"""The plan to start a model in the free memory: the places of its parts, its context, and whether it fits at all.

Theory. llama-server (b11434) fits a model itself (``--fit``, on unless somebody turns it off): if nobody set the
context, it lowers it, down to 4096, and then moves layers to main memory, and for experts single tensors, which it does
better than a rule from outside. So the layers are left to it, with the reserve as its target, and are only predicted
here. It does not do five things, which are done here: without a GPU it counts the memory that a machine *has*, not the
memory that other models leave free; it never lowers the number of slots; it has no reserve in main memory; every
process may keep 8 GiB of prompts there, however many processes there are (`_prompt_cache`); and slots that share one
context may use it up, which ends the answers of all of them (`_apart`). A user's setting is always kept: `FitOptions`
holds those of the model's own engine flags that concern its memory.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct, structs

from appliance.core.engine import Manual
from appliance.core.llama.flags import Option, from_env, last, merge, split
from appliance.core.memory import RAM, DeviceUse, FitPlan
from appliance.core.models.shape import Shape
from appliance.core.sizes import GIB, MIB
from appliance.errors import UsageError
from appliance.features.fit.core.compute import FLOAT
from appliance.features.fit.core.estimate import (
    AUTO_PARALLEL,
    Costs,
    Estimated,
    Options,
    costs_of,
    placed,
    places_of,
    slots_of,
)

NOTHING: Mapping[str, str] = {}
MOST = 1 << 31
CACHE, PER_SLOT, CHECKPOINTS = "--cache-ram", "--kv-unified-per-slot", "--ctx-checkpoints"
LEAST_CHECKPOINTS, MOST_CHECKPOINTS = 4, 32
"""Checkpoints of each slot: fewer are of little use, and llama-server (b11434) keeps so many unless somebody says."""
HALF = 2
"""Bytes of a number in a checkpoint of a window, as in its cache by default."""
MOST_CACHED = 8 * GIB
"""The cache of prompts that llama-server has unless somebody sets another (``--cache-ram``); here also the largest."""
LEAST_CONTEXT = 4096
"""A smaller context is never chosen, unless the model was trained for less."""
RESERVE = 1 << 30
"""Bytes that stay free on each device; llama-server's own ``--fit-target``."""
SHARE = 16384
"""Tokens that a slot can have before there is another one beside it, or all that the model was trained for."""
CACHE_STEP = 64 * MIB
"""Caches of prompts have sizes that are multiples of it; below one step there is no cache."""


class FitOptions(Struct, frozen=True, kw_only=True):
    """The options of one start, and which of them the user has set: those are not chosen again."""

    options: Options = Options()
    context: bool = False
    gpu_layers: bool = False
    parallel: bool = False
    prompt_cache: int | None = None
    """Bytes that its cache of prompts may take (``--cache-ram``); None: nobody has set it."""
    slot_context: int = 0
    """Tokens that a slot may have (`PER_SLOT`); 0: nobody has set it."""
    caches: bool = True
    """The build has `CACHE`, as far as known."""
    apart: bool = False
    """The build has `PER_SLOT`, and nobody has said how many slots there are, or how they share the context."""
    checkpoints: bool = False
    """The build has `CHECKPOINTS`, and nobody has set it."""
    fit: bool = True
    """llama-server may adjust options that nobody has set."""
    understood: bool = True
    """False if the flags are for another engine than the known one; the options are then the defaults."""


def asked_of(
    args: Sequence[str],
    *,
    environ: Mapping[str, str] = NOTHING,
    gpus: Sequence[str] = (),
    projector: int = 0,
    draft: Shape | None = None,
    manual: Manual | None = None,
) -> FitOptions:
    """Read the flags of a model's start, as llama-server would: later ones win, flags before the environment.

    ``manual`` is what the build says of itself. An option that is not known to be there is not chosen; but `CACHE`,
    which is older, is taken to be there in a build that has not said.
    """
    try:
        said = merge(split(args), from_env(environ))
    except UsageError:
        return FitOptions(options=Options(gpus=tuple(gpus), projector=projector, draft=draft), understood=False)
    words = _Words(said)
    layers, cached = words.whole("--n-gpu-layers"), words.whole(CACHE)
    parallel, context, each = words.whole("--parallel") or 0, words.whole("--ctx-size"), words.whole(PER_SLOT) or 0
    if context is None and each:
        context = each * (parallel or AUTO_PARALLEL)  # as the server then sizes it
    ranking = words.on("--reranking") or words.text("--pooling") not in ("", "none")
    options = Options(
        context=context or 0,
        parallel=parallel,
        unified=words.toggle("--kv-unified"),
        keys_type=words.text("--cache-type-k") or "f16",
        values_type=words.text("--cache-type-v") or "f16",
        batch=words.whole("--batch-size") or 2048,
        ubatch=words.whole("--ubatch-size") or 512,
        flash=words.text("--flash-attn") not in ("off", "0", "false", "disabled"),
        gpu_layers=layers,
        window_full=words.on("--swa-full"),
        embedding=words.on("--embedding") or ranking,
        experts_in_ram=MOST if words.on("--cpu-moe") else words.whole("--n-cpu-moe") or 0,
        cache_in_ram=words.toggle("--kv-offload") is False,
        repack=words.toggle("--repack") is not False,
        projector=projector,
        draft=draft,
        gpus=() if words.text("--device") == "none" else tuple(gpus),
    )
    return FitOptions(
        options=options,
        context=context is not None,
        gpu_layers=words.text("--n-gpu-layers") not in ("", "auto"),
        parallel=options.parallel > 0,
        prompt_cache=(MOST_CACHED if cached is None else cached * MIB) if words.text(CACHE) else None,
        slot_context=each,
        caches=manual is None or not manual.options or manual.names(CACHE),
        apart=manual is not None
        and manual.names(PER_SLOT)
        and not (parallel or words.text(PER_SLOT) or options.embedding)
        and options.unified is None,
        checkpoints=manual is not None and manual.names(CHECKPOINTS) and not words.text(CHECKPOINTS),
        fit=words.text("--fit") not in ("off", "0", "false", "disabled"),
    )


class _Words:
    """The last value of each option. A value that is not a number counts as unset: the engine will refuse it."""

    def __init__(self, said: Sequence[Option]) -> None:
        self._said = said

    def text(self, name: str) -> str:
        option = last(self._said, name)
        return option.values[-1].strip().lower() if option and option.values else ""

    def whole(self, name: str) -> int | None:
        text = self.text(name)
        return min(int(text), MOST) if text.isascii() and text.isdecimal() else None

    def toggle(self, name: str) -> bool | None:
        option = last(self._said, name)
        return option.on if option else None

    def on(self, name: str) -> bool:
        return self.toggle(name) is True


class _Try(Struct, frozen=True):
    """One way to start it: the options, and the places of its layers if they all find one."""

    options: Options
    costs: Costs
    places: tuple[str, ...] | None


def plan(
    shape: Shape, room: Mapping[str, int], asked: FitOptions, *, reserve: int = RESERVE, spoken_for: int = 0
) -> FitPlan:
    """Choose a plan. Pure.

    ``room`` is the free memory by device, ``ram`` among them; the GPUs are filled in its order. More room never makes
    the verdict worse, or the layers on GPUs fewer. ``spoken_for`` are bytes of free main memory that this model's cache
    of prompts leaves alone: the caches of other models may still grow into them, or the budget is smaller.
    """
    gpus = tuple(device for device in room if device != RAM) if asked.options.gpus or not asked.understood else ()
    left = {device: max(0, size - reserve) for device, size in room.items()}
    options = structs.replace(asked.options, gpus=gpus)
    asked = structs.replace(asked, apart=asked.apart and shape.trained > 0)
    tries, whole = list[_Try](), None
    for choice in _choices(shape, options, asked):  # the best one that fits whole needs no look at the others
        tries.append(one := _tried(shape, choice, left, asked))
        if one.places and (not gpus or RAM not in one.places):
            whole = one
            break
    chosen = whole or max((one for one in tries if one.places), key=_on_gpus, default=None)
    one, places = (chosen, chosen.places) if chosen else (tries[-1], None)
    found = placed(one.costs, places or places_of(len(shape.layers), one.options), one.options.gpus)
    cached = _prompt_cache(found, left, asked, spoken_for) if places else asked.prompt_cache or 0
    return FitPlan(
        verdict="no" if not places else "fits" if one is whole else "partly",
        why=_why(found, shape, asked, left, gpus) if places else _too_large(found, left),
        flags=(
            *(_flags(one, shape, asked, gpus, reserve) if places else ()),
            *_cache_flags(cached, asked),
            *_checkpoint_flags(shape, cached, found.parallel, asked),
        ),
        context=found.context,
        parallel=found.parallel,
        gpu_layers=found.gpu_layers,
        layers=found.layers,
        memory={device: use for device, use in found.devices.items() if use.total},
        room=room,
        reserve=reserve,
        prompt_cache=cached,
        slot_context=_each(one, asked),
    )


def _choices(shape: Shape, options: Options, asked: FitOptions) -> Iterator[Options]:
    """Return ways to start it, best first: less context before fewer slots."""
    if asked.apart:
        yield from _apart(shape, options, asked)
        return
    for slots in (0, 1) if not asked.parallel else (options.parallel,):
        wanted = structs.replace(options, parallel=slots)
        many, unified = slots_of(wanted)
        share = 1 if unified else many
        if asked.context:
            yield wanted
            continue
        least = min(shape.trained or LEAST_CONTEXT, LEAST_CONTEXT) * share
        for context in _halved(max(shape.trained or LEAST_CONTEXT, least), least):
            yield structs.replace(wanted, context=context)


# The slots of a unified cache share one context. When it is full, llama-server (b11434) ends the answers of all slots
# with an error (llama.cpp #23652): one long conversation ends the others. PER_SLOT limits each slot; the limits
# together are the context here, so that it is never full before a slot is. The price is a conversation's length: there
# is another slot only where each can have SHARE tokens, and a small trained context grows up to two shares.
def _apart(shape: Shape, options: Options, asked: FitOptions) -> Iterator[Options]:
    """Return ways to start it with slots that cannot use up each other's context, best first."""
    share = min(shape.trained, SHARE)
    if asked.context:
        context = options.context or shape.trained
        slots = next((slots for slots in (AUTO_PARALLEL, 2) if context // slots >= share), 1)
        yield structs.replace(options, parallel=slots, unified=slots > 1)
        return
    most = max(shape.trained, 2 * SHARE)
    for slots, least in ((AUTO_PARALLEL, share), (2, share), (1, min(shape.trained, LEAST_CONTEXT))):
        for each in _halved(min(shape.trained, most // slots), least):
            yield structs.replace(options, parallel=slots, unified=slots > 1, context=each * slots)


def _halved(most: int, least: int) -> Iterator[int]:
    """Return ``most``, the powers of two between, and ``least``; nothing if ``most`` is less than that."""
    while most > least:
        yield most
        most = max(least, 1 << (most - 1).bit_length() - 1)
    if most == least:
        yield least


def _each(one: _Try, asked: FitOptions) -> int:
    slots, unified = slots_of(one.options)
    each = one.costs.context // slots if asked.apart or not unified else one.costs.context
    return min(each, asked.slot_context or each)


def _tried(shape: Shape, options: Options, left: Mapping[str, int], asked: FitOptions) -> _Try:
    costs, count = costs_of(shape, options), len(shape.layers) + 1
    places: tuple[str, ...] | None = (RAM,) * count
    if options.gpus:
        if asked.gpu_layers:
            wanted = count if options.gpu_layers is None else min(options.gpu_layers, count)
            places = _packed(costs, count, wanted, left, options.gpus)
        else:
            places = _most_packed(costs, count, left, options.gpus)
            if places is None:  # not even the room to compute with
                return _tried(shape, structs.replace(options, gpus=()), left, asked)
    if places is not None:
        taken = placed(costs, places, options.gpus).by_device()
        places = places if all(size <= left[device] for device, size in taken.items() if device in left) else None
    return _Try(options, costs, places)


def _most_packed(costs: Costs, count: int, left: Mapping[str, int], gpus: Sequence[str]) -> tuple[str, ...] | None:
    """Put as many layers on GPUs as fit: all of them, or the last ones that fit beside the copies for the others.

    Main memory needs no check: the more layers on GPUs, the less it holds.
    """
    whole = _packed(costs, count, count, left, gpus)
    if whole is not None:
        return whole
    fitting = bisect_left(range(count), True, key=lambda number: _packed(costs, count, number, left, gpus) is None)
    return _packed(costs, count, fitting - 1, left, gpus) if fitting else None


def _packed(
    costs: Costs, count: int, number: int, left: Mapping[str, int], gpus: Sequence[str]
) -> tuple[str, ...] | None:
    """Put the last ``number`` of ``count`` layers on the GPUs, each filled in turn; None when they do not fit."""
    places = [RAM] * (count - number)
    for gpu in gpus:
        size, compute = 0, costs.gpu_compute
        if gpu == gpus[0]:
            size = costs.extra.total + (costs.copied_compute if number < count else 0)
            compute = max(0, compute - costs.copied_compute) if number < count else compute
        if size > left.get(gpu, 0):
            return None
        size += compute
        while len(places) < count:
            at = len(places)
            size += costs.weights[at] - costs.in_ram[at] + costs.kept[at]
            if size > left.get(gpu, 0):
                break
            places.append(gpu)
    return tuple(places) if len(places) == count else None


def _on_gpus(one: _Try) -> int:
    return sum(place != RAM for place in one.places or ())


def _flags(chosen: _Try, shape: Shape, asked: FitOptions, gpus: Sequence[str], reserve: int) -> tuple[str, ...]:
    flags: list[str] = []
    options = chosen.options
    on_gpus = bool(options.gpus) and asked.fit
    is_apart = asked.apart and options.parallel > 1
    if not asked.context and (is_apart or (0 < options.context < shape.trained and not on_gpus)):
        flags += ["--ctx-size", str(options.context)]
    if not asked.parallel and options.parallel:
        flags += ["--parallel", str(options.parallel)]
    if is_apart:
        flags += ["--kv-unified", PER_SLOT, str((options.context or shape.trained) // options.parallel)]
    if on_gpus:
        flags += ["--fit-target", ",".join([str(reserve // MIB)] * len(gpus))]
    elif gpus and not options.gpus:
        flags += ["--device", "none"]
    elif gpus and not asked.gpu_layers:
        flags += ["--n-gpu-layers", str(_on_gpus(chosen))]
    return tuple(flags)


# llama-server (b11434) copies the state of a prompt that leaves its slot, with its checkpoints, into main memory, and
# drops the oldest when all of them are larger than --cache-ram. The memory is taken as prompts come, so that neither
# the estimate nor what is free shows it: ``spoken_for`` is what other processes may still take. Half of the
# rest leaves the same to the next model, and so on; together they never take more than there is.
def _prompt_cache(found: Estimated, left: Mapping[str, int], asked: FitOptions, spoken_for: int) -> int:
    if asked.prompt_cache is not None:
        return asked.prompt_cache
    if asked.options.embedding or not asked.caches:
        return 0  # it keeps nothing of a prompt
    if RAM not in left:
        return MOST_CACHED
    spare = max(0, left[RAM] - found.devices[RAM].total - spoken_for)
    return min(MOST_CACHED, spare // 2 // CACHE_STEP * CACHE_STEP)


def _cache_flags(cached: int, asked: FitOptions) -> tuple[str, ...]:
    is_ours = asked.prompt_cache is None and asked.understood and asked.caches and not asked.options.embedding
    return (CACHE, str(cached // MIB)) if is_ours and cached < MOST_CACHED else ()


# A model with sliding windows or states cannot go back within its context. So llama-server copies them into main memory
# from time to time. The copies of a large state, 32 of each slot, may take more than the model. Together they get as
# much as the cache of prompts, which copies them too.
def _checkpoint_flags(shape: Shape, cached: int, slots: int, asked: FitOptions) -> tuple[str, ...]:
    windows = sum((layer.keys + layer.values) * HALF for layer in shape.layers if layer.windowed) * shape.window
    size = max(slots, 1) * (windows + sum(layer.state for layer in shape.layers) * FLOAT)
    most = max(LEAST_CHECKPOINTS, cached // size) if size and asked.checkpoints else MOST_CHECKPOINTS
    return (CHECKPOINTS, str(most)) if most < MOST_CHECKPOINTS else ()


def _why(found: Estimated, shape: Shape, asked: FitOptions, left: Mapping[str, int], gpus: Sequence[str]) -> str:
    words = [", ".join(_of(device, use.total, left) for device, use in found.devices.items() if use.total)]
    if not asked.context and 0 < found.context < shape.trained:
        words.append(f"context {found.context} of {shape.trained} tokens, so that it fits")
    if asked.apart and found.parallel > 1:
        words.append(
            f"{found.parallel} slots of {found.context // found.parallel} tokens, so that none ends the others"
        )
    elif asked.apart:
        words.append("one slot, so that it has the whole context")
    elif not asked.parallel and found.parallel < AUTO_PARALLEL:
        words.append("one slot, so that it fits")
    if 0 < found.gpu_layers < found.layers:
        words.append(f"{found.gpu_layers} of {found.layers} layers on GPUs, the others in main memory")
    elif not found.gpu_layers and gpus:
        words.append("no layer on a GPU")
    if len(found.devices) > 1 and asked.fit and not (asked.context and asked.gpu_layers):
        words.append("llama-server settles context and layers itself (--fit)")
    return "; ".join(words)


def _too_large(found: Estimated, left: Mapping[str, int]) -> str:
    over = [(device, use) for device, use in found.devices.items() if use.total > left.get(device, use.total)]
    said = " and ".join(_of(device, use.total, left) for device, use in over)
    greatest = max((use for _, use in over), key=lambda use: use.total, default=DeviceUse())
    fix = "a smaller quantisation" if greatest.model >= greatest.total // 2 else "less context"
    return f"it takes {said or 'more than there is'}; give it {fix}, or free memory"


def _of(device: str, size: int, left: Mapping[str, int]) -> str:
    known = f" of {left[device] // MIB} MiB" if device in left else ""
    return f"{-(-size // MIB)} MiB{known} on {device}"
